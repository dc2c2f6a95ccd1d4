// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"testing"

	"pgregory.net/rapid"
)

// model are what is known of a run, a tool call or an approval from what has
// happened to it, in words that the tables do not know.
type model struct {
	created   bool // it exists
	checked   bool // by policy
	asked     bool // a person
	sent      bool // to who does it
	executing bool // they have begun
	paused    string
	ended     bool
	ends      int
}

// The machines walk the three tables: wherever they stand, the table must allow
// exactly those steps that the facts do, of which one is drawn. So each ends once, and what was sent is never sent
// again, on any way through them.
func TestTransitionsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run, tool, approval := &walk[Status]{}, &walk[ToolStatus]{}, &walk[ApprovalStatus]{}
		t.Repeat(map[string]func(*rapid.T){
			"run": func(t *rapid.T) {
				run.step(t, Statuses(), Transition, func(f *model, to Status) bool {
					switch to {
					case Running:
						return !f.created || f.paused != ""
					case PausedWaitingApproval, PausedWaitingTool:
						return f.created && f.paused != to.String()
					case Done: // nobody is waited for who could still say something
						return f.created && f.paused == ""
					}
					return f.created
				}, func(f *model, to Status) {
					f.created, f.paused = true, ""
					if to.Paused() {
						f.paused = to.String()
					}
				})
			},
			"tool": func(t *rapid.T) {
				tool.step(t, ToolStatuses(), ToolTransition, func(f *model, to ToolStatus) bool {
					switch to {
					case ToolStatusCreated:
						return !f.created
					case ToolStatusPolicyChecked:
						return f.created && !f.checked
					case ToolStatusWaitingApproval, ToolStatusBlocked:
						return f.checked && !f.asked && !f.sent
					case ToolStatusDispatched:
						return f.checked && !f.sent
					case ToolStatusRunning, ToolStatusWaitingClient:
						return f.sent && !f.executing
					case ToolStatusSucceeded:
						return f.executing
					case ToolStatusTimeout:
						return f.asked || f.sent
					}
					return f.created
				}, func(f *model, to ToolStatus) {
					f.created = true
					f.checked = f.checked || to == ToolStatusPolicyChecked
					f.asked = f.asked || to == ToolStatusWaitingApproval
					f.sent = f.sent || to == ToolStatusDispatched
					f.executing = f.executing || to == ToolStatusRunning || to == ToolStatusWaitingClient
				})
			},
			"approval": func(t *rapid.T) {
				approval.step(t, ApprovalStatuses(), ApprovalTransition, func(f *model, to ApprovalStatus) bool {
					return f.created == (to != ApprovalStatusPending)
				}, func(f *model, _ ApprovalStatus) { f.created = true })
			},
			"": func(t *rapid.T) {
				if run.ends > 1 || tool.ends > 1 || approval.ends > 1 {
					t.Fatalf("ended more than once: %+v, %+v, %+v", run, tool, approval)
				}
			},
		})
	})
}

// walk is one way through a table, and a new one each time that has ended for a while.
type walk[S interface {
	~uint8
	String() string
	Ended() bool
}] struct {
	model
	state         S
	stepsAfterEnd int
}

func (w *walk[S]) step(t *rapid.T, all []S, table func(from, to S) error, may func(*model, S) bool, then func(*model, S)) {
	var ways []S
	for _, to := range all {
		want := !w.ended && may(&w.model, to)
		if err := table(w.state, to); (err == nil) != want {
			t.Fatalf("from %s to %s: %v, and the facts are %+v", w.state, to, err, w.model)
		}
		if want {
			ways = append(ways, to)
		}
	}
	if len(ways) > 0 {
		w.state = rapid.SampledFrom(ways).Draw(t, "to")
		then(&w.model, w.state)
		if w.ended = w.state.Ended(); w.ended {
			w.ends++
		}
	}
	if w.ended {
		if w.stepsAfterEnd++; w.stepsAfterEnd > 2 {
			*w = walk[S]{}
		}
	}
}
