// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// A trace is a history as written by `troupe sim --trace` and `troupe serve --trace`: a header,
// and one line per event.
type trace struct {
	Name   string
	Header traceHeader
	Events []event
}

type traceHeader struct {
	Trace  int
	Source string
	Limits struct {
		Depth   int   `json:"agent_call_depth_max"`
		Calls   int   `json:"agent_concurrent_calls_max"`
		Mailbox int   `json:"max_pending_per_actor"`
		Timeout int64 `json:"agent_call_timeout_max"`
	}
	Agents []traceAgent
}

type traceAgent struct {
	Name        string
	Volatile    bool
	Interleaved bool
	ByActor     bool `json:"by_actor"`
}

// event is one line. A line that reports missing events sets Lost. A line that announces more
// agents sets Agents.
type event struct {
	Kind                      string
	At                        int64
	Node                      string
	Cell                      int
	Incarnation, Epoch        uint64
	Actor, Call, Parent, Peer string
	What, Why                 string
	Chain                     []string
	Left                      int64
	ParentLeft                int64 `json:"parent_left"`
	Attempt                   uint32
	Status, Reason            string
	Count, Pending            int
	N                         uint64
	Until                     int64
	Step                      uint32
	Index                     uint16
	Pos, Synced               uint64
	Wrote                     int
	Ring                      []struct{ Call, Turn string }
	Lost                      int
	Agents                    []traceAgent
}

const traceVersion = 1

// readTrace reads a file.
func readTrace(path string) (trace, error) {
	h := trace{Name: path}
	f, err := os.Open(path)
	if err != nil {
		return h, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for no := 1; lines.Scan(); no++ {
		var into any = &h.Header
		if no > 1 {
			h.Events = append(h.Events, event{})
			into = &h.Events[len(h.Events)-1]
		}
		if err := json.Unmarshal(lines.Bytes(), into); err != nil {
			return h, fmt.Errorf("%s:%d: %w", path, no, err)
		}
	}
	if err := lines.Err(); err != nil {
		return h, fmt.Errorf("%s: %w", path, err)
	}
	return h, h.check()
}

// check returns an error if the history cannot be checked by module Trace.
func (h *trace) check() error {
	if h.Header.Trace != traceVersion {
		return fmt.Errorf("%s: trace version %d, want %d", h.Name, h.Header.Trace, traceVersion)
	}
	if len(h.Events) == 0 {
		return fmt.Errorf("%s: no events", h.Name)
	}
	for i := range h.Events {
		h.Header.Agents = append(h.Header.Agents, h.Events[i].Agents...)
	}
	for _, a := range h.Header.Agents {
		if a.Volatile || a.Interleaved {
			return fmt.Errorf("%s: agent %s is not journaled and serial, which module Trace requires; troupe sim --plain simulates only such agents", h.Name, a.Name)
		}
	}
	for i := range h.Events {
		if n := h.Events[i].Lost; n > 0 {
			return fmt.Errorf("%s:%d: %d events were lost", h.Name, i+2, n)
		}
	}
	return nil
}

// An entry is one step of module Trace: a TLA+ record, and the number of the line it was made
// from.
type entry struct {
	text string
	line int
}

// translation is a history in the terms of module Trace.
type translation struct {
	trace     trace
	entries   []entry
	calls     map[string]int
	actors    []string
	nodes     []string
	words     map[string]bool
	recursive []string
	unknown   []string // actors of agents that no header names
}

func translate(h trace) *translation {
	t := &translation{trace: h, calls: map[string]int{}, words: map[string]bool{"ok": true, "due": true, "stop": true, "busy": true, "ring": true}}
	now := int64(-1)
	for i := range h.Events {
		e := &h.Events[i]
		if len(e.Agents) > 0 {
			continue
		}
		if now < 0 {
			now = e.At / 1000
		}
		if at := e.At / 1000; at > now {
			t.entries = append(t.entries, entry{fmt.Sprintf(`[k |-> "Tick", d |-> %d]`, min(at-now, microsMax)), i + 2})
			now = at
		}
		t.entries = append(t.entries, entry{t.entry(e), i + 2})
	}
	return t
}

// microsMax is the maximum duration in microseconds. TLC has 32-bit integers, and two such
// durations must not overflow when added.
const microsMax = 1_000_000_000

// micros converts nanoseconds to microseconds, rounded up and limited to microsMax.
func micros(nanos int64) int64 { return min((max(nanos, 0)+999)/1000, microsMax) }

func (t *translation) call(id string) int {
	n, ok := t.calls[id]
	if !ok {
		n = len(t.calls) + 1
		t.calls[id] = n
	}
	return n
}

func addUnique(list *[]string, name string) string {
	for _, known := range *list {
		if known == name {
			return name
		}
	}
	*list = append(*list, name)
	return name
}

func (t *translation) actor(id string) string {
	if id == "" {
		return ""
	}
	known := len(t.actors)
	addUnique(&t.actors, id)
	if len(t.actors) == known {
		return id
	}
	agent := agentOf(id)
	for _, a := range t.trace.Header.Agents {
		if a.Name == agent {
			if a.ByActor {
				t.recursive = append(t.recursive, id)
			}
			return id
		}
	}
	t.unknown = append(t.unknown, id)
	return id
}

// agentOf returns the agent of an actor. The tenant of the actor is included, except for the
// default tenant.
func agentOf(id string) string {
	i := strings.LastIndexByte(id, '/')
	return id[:max(i, 0)]
}

// outcomeWord returns the outcome of a call: "ok", or the reason of its failure.
func (t *translation) outcomeWord(status, reason string) string {
	w := strings.ToLower(reason)
	switch reason {
	case "Deadline":
		w = "due"
	case "Stopped":
		w = "stop"
	case "WaitCycle":
		w = "ring"
	case "":
		if w = "ok"; status == "failed" {
			w = "failed"
		}
	}
	t.words[w] = true
	return w
}

// record returns a TLA+ record of alternating names and values. A string is quoted; a value of
// type expression is not.
func record(fields ...any) string {
	var b strings.Builder
	for i := 0; i < len(fields); i += 2 {
		b.WriteString([...]string{"[", ", "}[min(i, 1)])
		fmt.Fprintf(&b, "%s |-> ", fields[i])
		switch v := fields[i+1].(type) {
		case string:
			fmt.Fprintf(&b, "%q", v)
		case []string:
			b.WriteString("<<")
			for j, s := range v {
				if j > 0 {
					b.WriteString(", ")
				}
				fmt.Fprintf(&b, "%q", s)
			}
			b.WriteString(">>")
		default:
			fmt.Fprint(&b, v)
		}
	}
	return b.String() + "]"
}

// expression is TLA+ text that is not a string literal.
type expression string

// messages returns the set of message kinds in module Calls that correspond to a message of the
// code.
func messages(name string) expression {
	switch name {
	case "request":
		return `{"req"}`
	case "cancel":
		return `{"cancel"}`
	case "answered":
		return `Words`
	case "held", "resumed", "open":
		return `{"hold"}`
	}
	return ""
}

// entry translates an event to the terms of module Trace. The event of a cell has the
// place of the cell, and that of an actor the epoch of its activation.
func (t *translation) entry(e *event) string {
	addUnique(&t.nodes, e.Node)
	for _, a := range e.Chain {
		t.actor(a)
	}
	fields := t.fields(e)
	switch {
	case e.Kind == "Lose": // says what the table did, also of a process that has ended
		return record(fields...)
	case e.Incarnation > 0:
		fields = append(fields, "n", e.Node, "cell", e.Cell, "i", fmt.Sprint(e.Incarnation))
	case e.Kind == "Perform": // a client reads a stream
		return record(passedOver...)
	default:
		fields = append(fields, "n", e.Node)
	}
	if e.Epoch > 0 && !messageEvent(e) {
		fields = append(fields, "e", e.Epoch)
	}
	return record(fields...)
}

// messageEvent reports whether the epoch of the event is that of a message. A message may
// arrive after the activation that it was sent to has ended.
func messageEvent(e *event) bool { return e.Kind == "Deliver" || e.Kind == "Drop" }

// fields returns the names and values of an entry, except those of the place.
func (t *translation) fields(e *event) []any {
	a, b := t.actor(e.Actor), t.actor(e.Peer)
	switch e.Kind {
	case "Append":
		return list("k", e.Kind, "pos", e.Pos, "wrote", e.Wrote)
	case "Sync", "Crash":
		return list("k", e.Kind, "pos", e.Synced)
	case "Restart":
		if e.Incarnation == 0 {
			return list("k", "Boot") // the restart of a node
		}
		return list("k", e.Kind)
	case "Activate", "Deactivate":
		return list("k", e.Kind, "a", a)
	case "Ask":
		switch e.What {
		case "client":
			return list("k", "client", "c", t.call(e.Call), "b", b, "left", micros(e.Left))
		case "call":
			return t.ask(e, "Ask", "c", t.call(e.Call), "b", b, "left", micros(e.Left), "chain", e.Chain)
		case "wait":
			return t.ask(e, "Wait")
		}
		return t.ask(e, "ask")
	case "Send":
		switch e.What {
		case "request":
			return list("k", "request", "m", e.What, "a", a, "c", t.call(e.Call), "b", b, "left", micros(e.Left), "chain", e.Chain)
		case "cancel", "answered":
			return list("k", e.What, "m", e.What, "a", a, "c", t.call(e.Call), "b", b)
		case "held", "resumed", "open":
			return list("k", "hold", "m", "hold", "a", a, "c", t.call(e.Call))
		}
		return passedOver
	case "Deliver":
		fromClient := e.Epoch == 0 && e.What != "answered" // from a client of this node
		if ks := messages(e.What); ks != "" && !fromClient {
			return list("k", "Deliver", "a", a, "c", t.call(e.Call), "ks", ks, "m", messageName(e.What))
		}
		return passedOver
	case "Admit":
		return list("k", "Admit", "a", a, "c", t.call(e.Call), "left", micros(e.Left), "chain", e.Chain, "count", e.Count)
	case "Refuse":
		switch e.Why {
		case "callee":
			return list("k", "Refuse", "a", a, "c", t.call(e.Call), "w", t.outcomeWord("failed", e.Reason))
		case "caller":
			return t.ask(e, "AskRefused", "b", b, "w", t.outcomeWord("failed", e.Reason))
		}
		return passedOver
	case "Start":
		return list("k", "Start", "a", a, "c", t.call(e.Call), "left", micros(e.Left))
	case "Answer":
		switch e.What {
		case "call":
		case "wait":
			return list("k", "Decide", "a", a)
		case "tool", "work", "model", "invoke":
			if e.Status == "succeeded" {
				return list("k", "result", "a", a, "p", t.call(e.Parent), "ask", position(e))
			}
			return list("k", "other", "a", a)
		default:
			return list("k", "other", "a", a)
		}
		return list("k", "Answer", "a", a, "p", t.call(e.Parent), "c", t.call(e.Call), "w", t.outcomeWord(e.Status, e.Reason), "pending", e.Pending)
	case "Reply":
		return list("k", "Reply", "a", a, "c", t.call(e.Call), "w", t.outcomeWord(e.Status, e.Reason), "pending", e.Pending, "s", e.Step)
	case "Cancel":
		return list("k", "Cancel", "a", a, "c", t.call(e.Call))
	case "Expire":
		if e.What != "run" && e.What != "call" {
			return list("k", "other", "a", a)
		}
		return list("k", "Expire", "a", a, "c", t.call(e.Call), "of", e.What)
	case "Hold", "Resume":
		k := "HoldRun"
		switch e.What {
		case "run":
		case "ask":
			k = "HoldCall"
		default: // an approval, or a parked run: if the clock of the run changes, another event says so
			return list("k", "other", "a", a)
		}
		left := int64(0)
		if e.Kind == "Hold" {
			left = micros(e.Until - e.At)
		}
		return list("k", k, "a", a, "c", t.call(e.Call), "m", e.N, "d", left)
	case "RefuseWaitCycle":
		hops := make([]string, len(e.Ring))
		for i, h := range e.Ring {
			hops[i] = record("c", t.call(h.Call), "t", t.call(h.Turn))
		}
		return list("k", "Ring", "a", a, "c", t.call(e.Call), "ring", expression("<<"+strings.Join(hops, ", ")+">>"))
	case "Perform":
		switch e.What {
		case "send":
			if ks := messages(e.Why); ks != "" {
				return list("k", "send", "c", t.call(e.Call), "ks", ks, "m", messageName(e.Why))
			}
			return passedOver
		case "respond":
			w := "held"
			if e.Status != "" {
				w = t.outcomeWord(e.Status, e.Reason)
			}
			return list("k", "respond", "c", t.call(e.Call), "w", w)
		case "tool", "work", "model", "invoke":
			return list("k", "effect", "c", t.call(e.Call), "ask", position(e), "pos", e.Pos, "key", fmt.Sprintf("%d.%d.%d", e.Step, e.Index, e.Attempt))
		}
		return list("k", "publish", "pos", e.Pos)
	}
	return list("k", e.Kind) // Claim, Lose, Drop, Queue and the probes
}

func list(fields ...any) []any { return fields }

var passedOver = list("k", "other")

// ask returns the fields of an ask: its kind, its position within its run, and more.
func (t *translation) ask(e *event, kind string, more ...any) []any {
	return append(list("k", kind, "a", t.actor(e.Actor), "p", t.call(e.Parent), "s", e.Step, "x", e.Index, "of", e.Count), more...)
}

// position returns the step and the index of an ask.
func position(e *event) expression { return expression(fmt.Sprintf("<<%d, %d>>", e.Step, e.Index)) }

// messageName returns the name of a message without the differences between those that
// stop and restart a clock.
func messageName(what string) string {
	if messages(what) == `{"hold"}` {
		return "hold"
	}
	return what
}
