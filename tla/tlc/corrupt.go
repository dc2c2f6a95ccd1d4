// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
)

// A corruption makes of a good history one that no behaviour of Calls is. It
// gives the line at which that must show; 0 if the history has no place for it.
type corruption struct {
	name  string
	apply func(events []event) ([]event, int)
}

// line is where event i stands in its file.
func line(i int) int { return i + 2 }

func find(events []event, from int, is func(*event) bool) int {
	for i := from; i < len(events); i++ {
		if is(&events[i]) {
			return i
		}
	}
	return -1
}

func kind(k string, more ...func(*event) bool) func(*event) bool {
	return func(e *event) bool {
		for _, is := range more {
			if !is(e) {
				return false
			}
		}
		return e.Kind == k
	}
}

func what(w string) func(*event) bool           { return func(e *event) bool { return e.What == w } }
func of(call string) func(*event) bool          { return func(e *event) bool { return e.Call == call } }
func status(s string) func(*event) bool         { return func(e *event) bool { return e.Status == s } }
func nested(e *event) bool                      { return e.Parent != "" && len(e.Chain) > 0 }
func insert(e []event, at int, x event) []event { return slices.Insert(slices.Clone(e), at, x) }

// dropped leaves out the first event that is such, and before which nothing is
// wrong until the next one that needs it.
func dropped(name string, is func(*event) bool, needs func(e *event) func(*event) bool) corruption {
	return corruption{"dropped: " + name, func(events []event) ([]event, int) {
		for i := find(events, 0, is); i >= 0; i = find(events, i+1, is) {
			if j := find(events, i+1, needs(&events[i])); j >= 0 {
				return slices.Delete(slices.Clone(events), i, i+1), line(j - 1)
			}
		}
		return nil, 0
	}}
}

// again has an event happen a second time, right behind the first.
func again(name string, is func(*event) bool) corruption {
	return corruption{"twice: " + name, func(events []event) ([]event, int) {
		i := find(events, 0, is)
		if i < 0 {
			return nil, 0
		}
		return insert(events, i+1, events[i]), line(i + 1)
	}}
}

// swapped exchanges two events that follow each other.
func swapped(name string, first, second func(*event) bool, same func(a, b *event) bool) corruption {
	return corruption{"swapped: " + name, func(events []event) ([]event, int) {
		for i := find(events, 0, first); i >= 0; i = find(events, i+1, first) {
			if i+1 < len(events) && second(&events[i+1]) && same(&events[i], &events[i+1]) {
				out := slices.Clone(events)
				out[i], out[i+1] = out[i+1], out[i]
				out[i].At = events[i].At
				return out, line(i)
			}
		}
		return nil, 0
	}}
}

// changed alters one event.
func changed(name string, is func(*event) bool, change func(*event)) corruption {
	return corruption{"changed: " + name, func(events []event) ([]event, int) {
		i := find(events, 0, is)
		if i < 0 {
			return nil, 0
		}
		out := slices.Clone(events)
		change(&out[i])
		return out, line(i)
	}}
}

func sameCall(a, b *event) bool { return a.Call == b.Call }

var corruptions = []corruption{
	dropped("a call's Ask", kind("Ask", what("call")), func(e *event) func(*event) bool { return kind("Send", what("request"), of(e.Call)) }),
	dropped("its Admit", kind("Admit", nested), func(e *event) func(*event) bool { return kind("Start", of(e.Call)) }),
	dropped("its Start", kind("Start"), func(e *event) func(*event) bool {
		return kind("Ask", what("call"), func(x *event) bool { return x.Parent == e.Call })
	}),
	dropped("its Reply", kind("Reply", status("succeeded")), func(e *event) func(*event) bool { return kind("Send", what("answered"), of(e.Call)) }),
	dropped("a Sync", kind("Sync"), func(e *event) func(*event) bool {
		return kind("Perform", func(x *event) bool {
			return (x.What == "work" || x.What == "publish") && x.Pos == e.Synced && x.Node == e.Node
		})
	}),
	swapped("Start and Admit", kind("Admit"), kind("Start"), sameCall),
	swapped("Ask and what it sends", kind("Ask", what("call")), kind("Send", what("request")), sameCall),
	swapped("a reply and its Send", kind("Reply"), kind("Send", what("answered")), sameCall),
	changed("more time than the turn has", kind("Ask", what("call")), func(e *event) { e.Left = e.ParentLeft + 1e9 }),
	changed("a request with more time", kind("Send", what("request"), nested), func(e *event) { e.Left += 1e9 }),
	changed("a call back up its chain", kind("Ask", what("call"), func(e *event) bool { return len(e.Chain) > 1 }), func(e *event) { e.Peer = e.Chain[0] }),
	changed("a chain that forgets", kind("Admit", nested), func(e *event) { e.Chain = nil }),
	changed("another outcome", kind("Answer", what("call"), status("succeeded")), func(e *event) { e.Status, e.Reason = "failed", "Rejected" }),
	again("Reply", kind("Reply")),
	again("Answer", kind("Answer", what("call"))),
	again("Start", kind("Start")),
	again("work", kind("Perform", what("work"))),
	{"a call runs again when it is done", func(events []event) ([]event, int) {
		for i := range events {
			admit := find(events, 0, kind("Admit", of(events[i].Call)))
			if events[i].Kind == "Reply" && admit >= 0 {
				e := events[admit]
				e.At, e.Count = events[i].At, 1
				return insert(events, i+1, e), line(i + 1)
			}
		}
		return nil, 0
	}},
}

// corrupted makes of a corruption the first history, of those given, that has a place for it.
func (c corruption) corrupted(good []trace) (trace, int, error) {
	for _, t := range good {
		if events, at := c.apply(t.Events); at > 0 {
			t.Name, t.Events = c.name, events
			return t, at, nil
		}
	}
	return trace{}, 0, fmt.Errorf("no history has a place for %q", c.name)
}
