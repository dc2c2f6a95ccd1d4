// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
)

// A corruption turns a valid history into one that is no behaviour of Calls. apply returns the
// line at which TLC must reject it, or 0 if the corruption does not apply to the history.
type corruption struct {
	name  string
	apply func(events []event) ([]event, int)
}

// lineOf returns the line number of event i in its file.
func lineOf(i int) int { return i + 2 }

func find(events []event, from int, is func(*event) bool) int {
	for i := from; i < len(events); i++ {
		if is(&events[i]) {
			return i
		}
	}
	return -1
}

func kindIs(k string, more ...func(*event) bool) func(*event) bool {
	return func(e *event) bool {
		for _, is := range more {
			if !is(e) {
				return false
			}
		}
		return e.Kind == k
	}
}

func whatIs(w string) func(*event) bool         { return func(e *event) bool { return e.What == w } }
func callIs(call string) func(*event) bool      { return func(e *event) bool { return e.Call == call } }
func statusIs(s string) func(*event) bool       { return func(e *event) bool { return e.Status == s } }
func whyIs(w string) func(*event) bool          { return func(e *event) bool { return e.Why == w } }
func reasonIs(r string) func(*event) bool       { return func(e *event) bool { return e.Reason == r } }
func nodeIs(n string) func(*event) bool         { return func(e *event) bool { return e.Node == n } }
func nested(e *event) bool                      { return e.Parent != "" && len(e.Chain) > 0 }
func insert(e []event, at int, x event) []event { return slices.Insert(slices.Clone(e), at, x) }

// dropEvent removes the first event that satisfies the callback is and on which a later event
// depends. Given the removed event, the function needs returns the test for that later event.
// The history stays valid up to the later event.
func dropEvent(name string, is func(*event) bool, needs func(e *event) func(*event) bool) corruption {
	return corruption{"dropped: " + name, func(events []event) ([]event, int) {
		for i := find(events, 0, is); i >= 0; i = find(events, i+1, is) {
			if j := find(events, i+1, needs(&events[i])); j >= 0 {
				return slices.Delete(slices.Clone(events), i, i+1), lineOf(j - 1)
			}
		}
		return nil, 0
	}}
}

// duplicateEvent repeats an event immediately after itself.
func duplicateEvent(name string, is func(*event) bool) corruption {
	return corruption{"twice: " + name, func(events []event) ([]event, int) {
		i := find(events, 0, is)
		if i < 0 {
			return nil, 0
		}
		return insert(events, i+1, events[i]), lineOf(i + 1)
	}}
}

// swapEvents exchanges two adjacent events: the first pair for which the callbacks first,
// second and same return true.
func swapEvents(name string, first, second func(*event) bool, same func(a, b *event) bool) corruption {
	return corruption{"swapped: " + name, func(events []event) ([]event, int) {
		for i := find(events, 0, first); i >= 0; i = find(events, i+1, first) {
			if i+1 < len(events) && second(&events[i+1]) && same(&events[i], &events[i+1]) {
				out := slices.Clone(events)
				out[i], out[i+1] = out[i+1], out[i]
				out[i].At = events[i].At
				return out, lineOf(i)
			}
		}
		return nil, 0
	}}
}

// changeEvent modifies one event.
func changeEvent(name string, is func(*event) bool, change func(*event)) corruption {
	return corruption{"changed: " + name, func(events []event) ([]event, int) {
		i := find(events, 0, is)
		if i < 0 {
			return nil, 0
		}
		out := slices.Clone(events)
		change(&out[i])
		return out, lineOf(i)
	}}
}

func sameCall(a, b *event) bool { return a.Call == b.Call }

var corruptions = []corruption{
	dropEvent("a call's Ask", kindIs("Ask", whatIs("call")), func(e *event) func(*event) bool {
		return func(x *event) bool { // the asks of a step are numbered, and precede what it sends
			return (x.Kind == "Ask" || x.Kind == "Refuse") && x.Parent == e.Parent || x.Kind == "Send" && x.What == "request" && x.Call == e.Call
		}
	}),
	dropEvent("its Admit", kindIs("Admit", nested), func(e *event) func(*event) bool { return kindIs("Start", callIs(e.Call)) }),
	dropEvent("its Start", kindIs("Start"), func(e *event) func(*event) bool {
		return func(x *event) bool { // a refusal by the caller's own rules also is a step of the turn
			return x.Parent == e.Call && (x.Kind == "Ask" && x.What == "call" || x.Kind == "Refuse" && x.Why == "caller")
		}
	}),
	dropEvent("its Reply", kindIs("Reply", statusIs("succeeded")), func(e *event) func(*event) bool { return kindIs("Send", whatIs("answered"), callIs(e.Call)) }),
	dropEvent("a Sync", kindIs("Sync"), func(e *event) func(*event) bool {
		return kindIs("Perform", func(x *event) bool {
			return (x.What == "work" || x.What == "publish") && x.Pos == e.Synced && x.Node == e.Node
		})
	}),
	swapEvents("Start and Admit", kindIs("Admit"), kindIs("Start"), sameCall),
	swapEvents("Ask and what it sends", kindIs("Ask", whatIs("call")), kindIs("Send", whatIs("request")), sameCall),
	swapEvents("a reply and its Send", kindIs("Reply"), kindIs("Send", whatIs("answered")), sameCall),
	changeEvent("a call with more time than its turn", kindIs("Ask", whatIs("call")), func(e *event) { e.Left = e.ParentLeft + 1e9 }),
	changeEvent("a request with more time", kindIs("Send", whatIs("request"), nested), func(e *event) { e.Left += 1e9 }),
	changeEvent("a call back up its chain", kindIs("Ask", whatIs("call"), func(e *event) bool { return len(e.Chain) > 1 }), func(e *event) { e.Peer = e.Chain[0] }),
	changeEvent("a chain dropped", kindIs("Admit", nested), func(e *event) { e.Chain = nil }),
	changeEvent("an Admit under a later epoch", kindIs("Admit"), func(e *event) { e.Epoch++ }),
	changeEvent("a Sync beyond the log", kindIs("Sync"), func(e *event) { e.Synced += 1000 }),
	changeEvent("a refusal of the caller with another reason", kindIs("Refuse", whyIs("caller"), reasonIs("Cycle")), func(e *event) { e.Reason = "Busy" }),
	dropEvent("a refusal of the caller", kindIs("Refuse", whyIs("caller")), func(e *event) func(*event) bool {
		return func(x *event) bool {
			return (x.Kind == "Ask" || x.Kind == "Refuse") && x.Parent == e.Parent || x.Kind == "Reply" && x.Call == e.Parent
		}
	}),
	dropEvent("a Crash", kindIs("Crash"), func(e *event) func(*event) bool { return kindIs("Restart", nodeIs(e.Node)) }),
	dropEvent("a Restart", kindIs("Restart"), func(e *event) func(*event) bool {
		return func(x *event) bool { return x.Node == e.Node && x.Incarnation > 0 && x.Kind != "Lose" }
	}),
	dropEvent("a Deliver", kindIs("Deliver", whatIs("request"), func(e *event) bool { return e.Epoch > 0 }), func(e *event) func(*event) bool {
		return kindIs("Admit", nested, callIs(e.Call))
	}),
	dropEvent("an Expire", kindIs("Expire", whatIs("call")), func(e *event) func(*event) bool { return kindIs("Answer", callIs(e.Call)) }),
	dropEvent("an Append", kindIs("Append"), func(e *event) func(*event) bool {
		return func(x *event) bool { return (x.Kind == "Append" || x.Kind == "Sync") && x.Node == e.Node }
	}),
	duplicateEvent("Send of a reply", kindIs("Send", whatIs("answered"), func(e *event) bool { return e.Peer != "" })),
	duplicateEvent("Append", kindIs("Append")),
	changeEvent("another outcome", kindIs("Answer", whatIs("call"), statusIs("succeeded")), func(e *event) { e.Status, e.Reason = "failed", "Rejected" }),
	duplicateEvent("Reply", kindIs("Reply")),
	duplicateEvent("Answer", kindIs("Answer", whatIs("call"))),
	duplicateEvent("Start", kindIs("Start")),
	duplicateEvent("work", kindIs("Perform", whatIs("work"))),
	{"a cancel before its request, of a call to another actor", func(events []event) ([]event, int) {
		for i, ask := range events {
			other := find(events, 0, func(e *event) bool { return e.Actor != "" && e.Actor != ask.Peer })
			if ask.Kind == "Ask" && ask.What == "client" && other >= 0 && find(events[:i], 0, kindIs("Ask", callIs(ask.Call))) < 0 {
				cancel := event{Kind: "Send", At: ask.At, Node: ask.Node, Cell: ask.Cell, Incarnation: ask.Incarnation, Call: ask.Call, Peer: events[other].Actor, What: "cancel"}
				return insert(events, i, cancel), lineOf(i + 1)
			}
		}
		return nil, 0
	}},
	{"a completed call runs again", func(events []event) ([]event, int) {
		for i := range events {
			admit := find(events, 0, kindIs("Admit", callIs(events[i].Call)))
			if events[i].Kind == "Reply" && admit >= 0 {
				e := events[admit]
				e.At, e.Count = events[i].At, 1
				return insert(events, i+1, e), lineOf(i + 1)
			}
		}
		return nil, 0
	}},
}

// applyToFirst applies the corruption to the first given history to which it can be applied.
func (c corruption) applyToFirst(good []trace) (trace, int, error) {
	for _, t := range good {
		if events, at := c.apply(t.Events); at > 0 {
			t.Name, t.Events = c.name, events
			return t, at, nil
		}
	}
	return trace{}, 0, fmt.Errorf("corruption %q applies to no history", c.name)
}
