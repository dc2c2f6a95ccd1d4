// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"testing"

	"pgregory.net/rapid"
)

// facts are what is known of a run, a tool call or an approval from what has
// happened to it, in words that the tables do not know.
type facts struct {
	begun   bool // it exists
	checked bool // by policy
	asked   bool // a person
	sent    bool // to who does it
	doing   bool // they have begun
	paused  string
	over    bool
	ends    int
}

// The machines walk the three tables: wherever they stand, the table must allow
// exactly those steps that the facts do, of which one is drawn. So each ends once, and what was sent is never sent
// again, on any way through them.
func TestTablesAgainstFacts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run, tool, approval := &walk[Status]{}, &walk[ToolStatus]{}, &walk[ApprovalStatus]{}
		t.Repeat(map[string]func(*rapid.T){
			"run": func(t *rapid.T) {
				run.step(t, Statuses(), Transition, func(f *facts, to Status) bool {
					switch to {
					case Running:
						return !f.begun || f.paused != ""
					case PausedWaitingApproval, PausedWaitingTool:
						return f.begun && f.paused != to.String()
					case Done: // nobody is waited for who could still say something
						return f.begun && f.paused == ""
					}
					return f.begun
				}, func(f *facts, to Status) {
					f.begun, f.paused = true, ""
					if to.Paused() {
						f.paused = to.String()
					}
				})
			},
			"tool": func(t *rapid.T) {
				tool.step(t, ToolStatuses(), ToolTransition, func(f *facts, to ToolStatus) bool {
					switch to {
					case ToolStatusCreated:
						return !f.begun
					case ToolStatusPolicyChecked:
						return f.begun && !f.checked
					case ToolStatusWaitingApproval, ToolStatusBlocked:
						return f.checked && !f.asked && !f.sent
					case ToolStatusDispatched:
						return f.checked && !f.sent
					case ToolStatusRunning, ToolStatusWaitingClient:
						return f.sent && !f.doing
					case ToolStatusSucceeded:
						return f.doing
					case ToolStatusTimeout:
						return f.asked || f.sent
					}
					return f.begun
				}, func(f *facts, to ToolStatus) {
					f.begun = true
					f.checked = f.checked || to == ToolStatusPolicyChecked
					f.asked = f.asked || to == ToolStatusWaitingApproval
					f.sent = f.sent || to == ToolStatusDispatched
					f.doing = f.doing || to == ToolStatusRunning || to == ToolStatusWaitingClient
				})
			},
			"approval": func(t *rapid.T) {
				approval.step(t, ApprovalStatuses(), ApprovalTransition, func(f *facts, to ApprovalStatus) bool {
					return f.begun == (to != ApprovalStatusPending)
				}, func(f *facts, _ ApprovalStatus) { f.begun = true })
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
	facts
	at    S
	stood int
}

func (w *walk[S]) step(t *rapid.T, all []S, table func(from, to S) error, may func(*facts, S) bool, then func(*facts, S)) {
	var ways []S
	for _, to := range all {
		want := !w.over && may(&w.facts, to)
		if err := table(w.at, to); (err == nil) != want {
			t.Fatalf("from %s to %s: %v, and the facts are %+v", w.at, to, err, w.facts)
		}
		if want {
			ways = append(ways, to)
		}
	}
	if len(ways) > 0 {
		w.at = rapid.SampledFrom(ways).Draw(t, "to")
		then(&w.facts, w.at)
		if w.over = w.at.Ended(); w.over {
			w.ends++
		}
	}
	if w.over {
		if w.stood++; w.stood > 2 {
			*w = walk[S]{}
		}
	}
}
