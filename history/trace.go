// SPDX-License-Identifier: Apache-2.0

package history

import (
	"encoding/json"
	"strconv"

	"github.com/troupe-run/troupe/actor"
)

// TraceVersion is that of the form in which histories are written to files.
const TraceVersion = 1

// A TraceHeader is the first line of a trace: what a judge must know of the
// world besides what happened in it. After it comes one line for each event, as
// AppendJSON writes it, in the order in which they happened.
type TraceHeader struct {
	Trace  int          `json:"trace"`  // TraceVersion
	Source string       `json:"source"` // who wrote it: "sim seed 7", "serve n1"
	Limits TraceLimits  `json:"limits"`
	Agents []TraceAgent `json:"agents"` // by name
}

// TraceLimits are the bounds that the specs know, times in nanoseconds.
type TraceLimits struct {
	AgentCallDepthMax       int            `json:"agent_call_depth_max"`
	AgentConcurrentCallsMax int            `json:"agent_concurrent_calls_max"`
	MaxPendingPerActor      int            `json:"max_pending_per_actor"`
	AgentCallTimeoutMax     actor.Duration `json:"agent_call_timeout_max"`
}

// A TraceAgent is what a definition promises.
type TraceAgent struct {
	Name        string `json:"name"`
	Volatile    bool   `json:"volatile,omitempty"`
	Interleaved bool   `json:"interleaved,omitempty"`
	ByActor     bool   `json:"by_actor,omitempty"`
}

// AppendTo writes the header as one line, with its end.
func (h TraceHeader) AppendTo(b []byte) []byte {
	h.Trace = TraceVersion
	return appendLine(b, h)
}

// AppendAgents writes, as one line, which agents there are from here on besides
// those that were named before.
func AppendAgents(b []byte, agents []TraceAgent) []byte {
	return appendLine(b, struct {
		Agents []TraceAgent `json:"agents"`
	}{agents})
}

// AppendLost writes, as one line, that so many events are missing here.
func AppendLost(b []byte, events int) []byte {
	return append(strconv.AppendInt(append(b, `{"lost":`...), int64(events), 10), "}\n"...)
}

// hop is one wait of a ring.
type hop struct {
	Call string `json:"call"`
	Turn string `json:"turn"`
}

// AppendJSON writes the event as one line of JSON, with its end: the fields that
// are set, under the names that AppendTo gives them, always in the same order.
func (e *Event) AppendJSON(b []byte) []byte {
	line := struct {
		Kind        string   `json:"kind"`
		At          int64    `json:"at"`
		Node        string   `json:"node,omitempty"`
		Cell        uint16   `json:"cell"`
		Incarnation uint64   `json:"incarnation,omitempty"`
		Actor       string   `json:"actor,omitempty"`
		Epoch       uint64   `json:"epoch,omitempty"`
		Call        string   `json:"call,omitempty"`
		Parent      string   `json:"parent,omitempty"`
		Root        string   `json:"root,omitempty"`
		Peer        string   `json:"peer,omitempty"`
		What        string   `json:"what,omitempty"`
		Why         string   `json:"why,omitempty"`
		Chain       []string `json:"chain,omitempty"`
		Left        int64    `json:"left,omitempty"`
		ParentLeft  int64    `json:"parent_left,omitempty"`
		Given       int64    `json:"given,omitempty"`
		Attempt     uint32   `json:"attempt,omitempty"`
		Status      string   `json:"status,omitempty"`
		Reason      string   `json:"reason,omitempty"`
		Scope       string   `json:"scope,omitempty"`
		Said        uint32   `json:"said,omitempty"`
		Count       int      `json:"count,omitempty"`
		Bytes       int      `json:"bytes,omitempty"`
		Pending     int      `json:"pending,omitempty"`
		N           uint64   `json:"n,omitempty"`
		Until       int64    `json:"until,omitempty"`
		Step        uint32   `json:"step,omitempty"`
		Index       uint16   `json:"index,omitempty"`
		Durable     bool     `json:"durable,omitempty"`
		Pos         uint64   `json:"pos,omitempty"`
		Synced      uint64   `json:"synced,omitempty"`
		Wrote       int      `json:"wrote,omitempty"`
		Ring        []hop    `json:"ring,omitempty"`
		ShardLo     uint16   `json:"shard_lo,omitempty"`
		ShardHi     uint16   `json:"shard_hi,omitempty"`
	}{Kind: e.Kind.String(), At: int64(e.At), Node: string(e.From.Node), Cell: e.From.Cell, Incarnation: e.From.Incarnation,
		Actor: actorName(e.Actor), Epoch: uint64(e.Epoch), Call: callName(e.Call), Parent: callName(e.Parent), Root: callName(e.Root), Peer: actorName(e.Peer),
		What: e.What, Why: e.Why, Left: int64(e.Left), ParentLeft: int64(e.ParentLeft), Given: int64(e.Given), Attempt: e.Attempt,
		Scope: e.Scope.String(), Said: e.Said, Count: e.Count, Bytes: e.Bytes, Pending: e.Pending, N: e.N, Until: int64(e.Until), Step: e.Step, Index: e.Index,
		Durable: e.Durable, Pos: e.Pos, Synced: e.Synced, Wrote: e.Wrote, ShardLo: e.ShardLo, ShardHi: e.ShardHi}
	if e.Status != 0 {
		line.Status = e.Status.String()
	}
	if e.Reason != 0 {
		line.Reason = e.Reason.String()
	}
	for _, a := range e.Chain {
		line.Chain = append(line.Chain, a.String())
	}
	for _, h := range e.Ring {
		line.Ring = append(line.Ring, hop{callName(h.Call), callName(h.Turn)})
	}
	return appendLine(b, line)
}

func appendLine(b []byte, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil { // strings and numbers only
		panic("history: " + err.Error())
	}
	return append(append(b, text...), '\n')
}

func actorName(id actor.ID) string {
	if id == (actor.ID{}) {
		return ""
	}
	return id.String()
}

func callName(id actor.CallID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}
