// SPDX-License-Identifier: Apache-2.0

package history

import (
	"encoding/json"
	"strconv"

	"github.com/troupe-run/troupe/actor"
)

// TraceVersion is the version of the file format of histories.
const TraceVersion = 1

// TraceHeader is the first line of a trace. It holds the limits and agents that a
// checker needs. The following lines are the events in order, appended by AppendJSON.
type TraceHeader struct {
	Trace  int          `json:"trace"`  // TraceVersion
	Source string       `json:"source"` // origin of the trace: "sim seed 7", "serve n1"
	Limits TraceLimits  `json:"limits"`
	Agents []TraceAgent `json:"agents"` // sorted by name
}

// TraceLimits are the limits that the specs check. Times are in nanoseconds.
type TraceLimits struct {
	AgentCallDepthMax       int            `json:"agent_call_depth_max"`
	AgentConcurrentCallsMax int            `json:"agent_concurrent_calls_max"`
	MaxPendingPerActor      int            `json:"max_pending_per_actor"`
	AgentCallTimeoutMax     actor.Duration `json:"agent_call_timeout_max"`
}

// TraceAgent is the part of an agent definition that the specs use.
type TraceAgent struct {
	Name        string `json:"name"`
	Volatile    bool   `json:"volatile,omitempty"`
	Interleaved bool   `json:"interleaved,omitempty"`
	ByActor     bool   `json:"by_actor,omitempty"`
}

// AppendTo appends the header as one line with a newline.
func (h TraceHeader) AppendTo(b []byte) []byte {
	h.Trace = TraceVersion
	return appendLine(b, h)
}

// AppendAgents appends a line that declares further agents for the events after it, in
// addition to the agents declared before.
func AppendAgents(b []byte, agents []TraceAgent) []byte {
	return appendLine(b, struct {
		Agents []TraceAgent `json:"agents"`
	}{agents})
}

// AppendLost appends a line with the number of events that are missing at this point.
func AppendLost(b []byte, events int) []byte {
	return append(strconv.AppendInt(append(b, `{"lost":`...), int64(events), 10), "}\n"...)
}

// hop is the JSON form of one wait of a wait cycle.
type hop struct {
	Call string `json:"call"`
	Turn string `json:"turn"`
}

// AppendJSON appends the event as one line of JSON with a newline. The line has kind,
// at, cell and the other non-zero fields in a fixed order. Most names are the same as
// in AppendTo.
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
		Lane        string   `json:"lane,omitempty"`
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
		Scope: e.Scope.String(), Lane: e.lane(), Said: e.Digest, Count: e.Count, Bytes: e.Bytes, Pending: e.Pending, N: e.N, Until: int64(e.Until), Step: e.Step, Index: e.Index,
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
	if err != nil { // impossible: v has only strings, numbers and booleans
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
