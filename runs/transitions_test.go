// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"testing"

	"pgregory.net/rapid"
)

// model is the history of a run, a tool call or an approval, independent of the
// transition tables.
type model struct {
	created   bool
	checked   bool // by policy
	asked     bool // a person was asked
	sent      bool // handed to the executor
	executing bool // the executor has started
	paused    string
	ended     bool
	ends      int
}

// TestTransitionsAgainstModel walks the three tables at random. In every state a
// table MUST allow exactly the transitions that the model allows. It follows that
// each machine ends once, and that nothing is dispatched twice.
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
					case Done: // a waiting run cannot be done
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
					t.Fatalf("more than one end: %+v, %+v, %+v", run, tool, approval)
				}
			},
		})
	})
}

// walk is a path through one table. A new path starts some steps after the end of
// the last one.
type walk[S interface {
	~uint8
	String() string
	Ended() bool
}] struct {
	model
	state         S
	stepsAfterEnd int
}

func (w *walk[S]) step(t *rapid.T, all []S, table func(from, to S) error, allowed func(*model, S) bool, apply func(*model, S)) {
	var options []S
	for _, to := range all {
		want := !w.ended && allowed(&w.model, to)
		if err := table(w.state, to); (err == nil) != want {
			t.Fatalf("from %s to %s: %v, the model is %+v", w.state, to, err, w.model)
		}
		if want {
			options = append(options, to)
		}
	}
	if len(options) > 0 {
		w.state = rapid.SampledFrom(options).Draw(t, "to")
		apply(&w.model, w.state)
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
