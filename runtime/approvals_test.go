// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/tools"
)

// pay is a declared tool that needs an approval.
var pay = tools.Declared{Name: "payments.transfer", Kind: tools.KindServer, Via: tools.ViaHTTP, URL: "http://127.0.0.1/pay", Policy: "require_approval",
	InputSchema: []byte(`{"type":"object","properties":{"amount":{"type":"number"}}}`)}

func declared(all ...tools.Declared) *tools.Registry {
	return invariant.Must(tools.NewRegistry().With(all, nil))
}

// using returns an agent that uses a tool and completes with its result.
func using(tool, input string) script {
	return func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskTool, Name: tool, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(input)}}}}}, nil
		}
		a := answers[0][0]
		return actor.Complete(actor.Text(strings.Join(append([]string{answerText(a)}, a.Warnings...), " "))), nil
	}
}

// toolNode returns a node with an agent that uses pay, below two others, and the run of the
// client's message to the upper one.
func toolNode(t *testing.T, registry *tools.Registry) (*node, actor.CallID) {
	n := newNode(t, 2, agent("top", calling("mid")), agent("mid", calling("payer")), agent("payer", using("payments.transfer", `{"amount": 1.50}`)))
	n.tools = registry
	n.restart(2)
	return n, n.send("top/s", "go", func(c *actor.Call) { c.Left = 30 * time.Second })
}

// pending returns the approvals of all cells.
func (n *node) pending() (all []Approval) {
	for _, c := range n.cells {
		some, known := PendingApprovals(c, actor.DefaultTenant)
		if !known {
			n.t.Error("a cell is still loading its open runs")
		}
		all = append(all, some...)
	}
	return all
}

// decide sends a decision about an approval.
func (n *node) decide(a Approval, approve bool) actor.CallID {
	return n.send(a.Actor.String(), "", func(c *actor.Call) {
		c.Kind, c.Operation, c.Parent, c.Principal = actor.Signal, signals.OpDecide, a.ID.Run, "anna"
		c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: fmt.Appendf(nil, `{"approval_id":%q,"approve":%v,"reason":"because"}`, a.ID.Approval(), approve)}}
	})
}

// types returns the names of the events of a run.
func (n *node) types(run actor.CallID) string {
	var all []string
	for _, e := range n.events[run] {
		all = append(all, e.Type.String())
	}
	return strings.Join(all, " ")
}

// A call of 30 s whose tool waits for a person below it for 200 s, over a restart, ends
// well. The tool is performed once, after the approval.
func TestApprovalAtDepth(t *testing.T) {
	n, root := toolNode(t, declared(pay))
	if len(n.external) != 0 || len(n.pending()) != 1 {
		t.Fatalf("%d tools performed, approvals %v", len(n.external), n.pending())
	}
	n.advance(100 * time.Second)
	n.restart(2)
	n.advance(100 * time.Second)
	a := n.pending()[0]
	if a.Tool != pay.Name || string(a.Args) != `{"amount":1.5}` || a.Root != root || a.Until.Sub(a.Created).Round(time.Second) != n.limits.ApprovalTimeout {
		t.Errorf("got approval %+v", a)
	}
	for run, want := range map[actor.CallID]string{
		a.ID.Run: "run_started tool_call_created policy_decision approval_created",
		root:     "user_input run_started agent_called_child approval_required run_paused",
	} {
		if got := n.types(run); !strings.HasPrefix(got, want) {
			t.Errorf("got events %s, want %s …", got, want)
		}
	}
	if e := n.events[root][3]; e.Approval != a.ID.Approval() || e.Name != pay.Name || e.Text != a.Summary || e.Child.IsZero() {
		t.Errorf("the root shows %s", e.String())
	}
	if r := n.runs[a.ID.Run]; r.Status != runs.PausedWaitingApproval || len(r.Approvals()) != 1 || n.runs[root].Status != runs.PausedWaitingApproval {
		t.Errorf("got status %s with %d approvals", r.Status, len(r.Approvals()))
	}
	decision := n.decide(a, true)
	if len(n.external) != 1 {
		t.Fatalf("%d tools performed after the approval", len(n.external))
	}
	if op := n.external[0].effect; !op.Gated || string(op.Op.(Tool).Input) != `{"amount":1.5}` || op.Op.(Tool).Left > 30*time.Second {
		t.Errorf("got effect %+v", op)
	}
	n.want(n.decide(a, true), "ApprovalDecided")
	n.sendOutcome(n.external[0], actor.Answer{Parts: actor.Text("sent")})
	n.advance(time.Second)
	decided, ok := signals.ReadDecided(n.replies[decision].Parts)
	if i := slices.IndexFunc(n.events[a.ID.Run], func(e runs.Event) bool { return e.Type == runs.ApprovalDecision && e.At == decided.At }); !ok || i < 0 {
		t.Errorf("got %q, want the time of the decision", n.result(decision))
	}
	if state := n.runs[root]; state.Status != runs.Done || state.Text != "top(mid(sent))" {
		t.Errorf("got %s %q", state.Status, state.Text)
	}
	if got, want := n.types(a.ID.Run), "approval_created run_paused approval_decision run_resumed tool_dispatched tool_result run_done"; !strings.HasSuffix(got, want) {
		t.Errorf("got events %s, want … %s", got, want)
	}
	call, found, err := runs.FoldToolCall(n.events[a.ID.Run], a.ID)
	if !found || err != nil || call.Status != runs.ToolStatusSucceeded || call.Approval.By != "anna" || call.Approval.Status != runs.ApprovalStatusApproved {
		t.Errorf("got tool call %+v, error %v", call, err)
	}
	n.want(n.decide(a, false), "NotFound")
}

// Each end of an approval without an execution is a typed failure that the agent gets, or
// ends with the run.
func TestApprovalEndsWithoutExecution(t *testing.T) {
	changed := pay
	changed.URL = "http://127.0.0.1/other"
	replace := func(registry *tools.Registry) func(n *node, a Approval) {
		return func(n *node, a Approval) {
			for _, c := range n.cells {
				n.step(c, Agents{Definitions: n.agents, Tools: registry})
			}
			n.want(n.decide(a, true), "ApprovalDecided")
		}
	}
	blocked := pay
	for _, c := range []struct {
		name   string
		end    func(n *node, a Approval)
		want   string
		status runs.ToolStatus
		of     runs.ApprovalStatus
	}{
		{"rejected", func(n *node, a Approval) { n.decide(a, false) }, "top(mid(ApprovalRejected))", runs.ToolStatusFailed, runs.ApprovalStatusRejected},
		{"expired", func(n *node, _ Approval) { n.advance(n.limits.ApprovalTimeout) }, "top(mid(Deadline))", runs.ToolStatusTimeout, runs.ApprovalStatusExpired},
		{"definition changed", replace(declared(changed)), "top(mid(PolicyBlocked))", runs.ToolStatusFailed, runs.ApprovalStatusExpired},
		{"tool deleted", replace(declared()), "top(mid(PolicyBlocked))", runs.ToolStatusFailed, runs.ApprovalStatusExpired},
		{"run cancelled", func(n *node, a Approval) {
			n.step(n.cells[0], Deliver{actor.Envelope{To: actor.NewID("top", "s"), Body: actor.Cancel{Call: a.Root, Reason: actor.Stopped}}})
			n.drain()
			n.want(n.decide(a, true), "NotFound")
		}, "", runs.ToolStatusFailed, runs.ApprovalStatusExpired},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, root := toolNode(t, declared(blocked))
			a := n.pending()[0]
			c.end(n, a)
			n.advance(time.Second)
			if got := n.runs[root].Text; got != c.want || len(n.external) != 0 || len(n.pending()) != 0 {
				t.Errorf("got %q, %d tools performed, approvals %v; want %q", got, len(n.external), n.pending(), c.want)
			}
			call, _, err := runs.FoldToolCall(n.events[a.ID.Run], a.ID)
			if err != nil || call.Status != c.status || call.Approval.Status != c.of {
				t.Errorf("got tool call %s, approval %s, error %v; want %s, %s", call.Status, call.Approval.Status, err, c.status, c.of)
			}
		})
	}
}

// An approval that ends because its tool has changed no longer holds the callers.
func TestChangedToolReleasesCallers(t *testing.T) {
	n := newNode(t, 2, agent("top", calling("payer")), agent("payer", func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 1 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: time.Minute}}}, nil
		}
		return using(pay.Name, "{}")(b, answers)
	}))
	n.tools = declared(pay)
	n.restart(2)
	root := n.send("top/s", "go")
	a := n.pending()[0]
	if got := n.runs[root].Status; got != runs.PausedWaitingApproval {
		t.Fatalf("got status %s before the change", got)
	}
	for _, c := range n.cells {
		n.step(c, Agents{Definitions: n.agents, Tools: declared()})
	}
	n.want(n.decide(a, true), "ApprovalDecided")
	if got := n.runs[root].Status; got == runs.PausedWaitingApproval {
		t.Errorf("the caller has status %s after the approval has expired", got)
	}
}

// Sixteen people decide at once. The first decision counts.
func TestManyDecisions(t *testing.T) {
	n, _ := toolNode(t, declared(pay))
	a := n.pending()[0]
	n.paused = true
	var all []actor.CallID
	for i := range 16 {
		all = append(all, n.decide(a, i%2 == 0))
	}
	n.paused = false
	n.drain()
	counted := slices.DeleteFunc(slices.Clone(all), func(id actor.CallID) bool { return n.result(id) == "ApprovalDecided" })
	if len(counted) != 1 || counted[0] != all[0] || len(n.external) != 1 {
		t.Errorf("%d decisions counted, %d tools performed", len(counted), len(n.external))
	}
}

// An approved tool that was interrupted by a crash is not repeated unless it is idempotent.
func TestApprovedToolAfterCrash(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		tool := pay
		tool.Idempotent = idempotent
		n, root := toolNode(t, declared(tool))
		n.decide(n.pending()[0], true)
		n.restart(2)
		n.advance(time.Second)
		if performed := len(n.external) == 1; performed != idempotent {
			t.Errorf("idempotent %v: repeated %v", idempotent, performed)
		}
		if got := n.runs[root].Text; !idempotent && got != "top(mid(Unknown))" {
			t.Errorf("got %q", got)
		}
	}
}

// An approved tool that was interrupted is not repeated under another definition than the one
// that was approved.
func TestApprovedToolAfterCrashAndChange(t *testing.T) {
	tool := pay
	tool.Idempotent = true
	n, root := toolNode(t, declared(tool))
	n.decide(n.pending()[0], true)
	tool.URL = "http://127.0.0.1/other"
	n.tools = declared(tool)
	n.external = nil
	n.restart(2)
	n.advance(time.Second)
	if got := n.runs[root].Text; len(n.external) != 0 || got != "top(mid(Unknown))" {
		t.Errorf("%d tools performed, got %q", len(n.external), got)
	}
}

// A tool that was allowed is not repeated after a crash if the policy has changed, even if it
// is idempotent.
func TestRepeatIsDecidedAgain(t *testing.T) {
	for _, policy := range []string{"allow", "block", "require_approval"} {
		tool := pay
		tool.Idempotent, tool.Policy = true, "allow"
		n, root := toolNode(t, declared(tool))
		tool.Policy = policy
		n.tools = declared(tool)
		n.restart(2)
		n.advance(time.Second)
		if repeated := len(n.external) == 1; repeated != (policy == "allow") {
			t.Errorf("%s: repeated %v", policy, repeated)
		}
		if got := n.runs[root].Text; policy != "allow" && got != "top(mid(Unknown))" {
			t.Errorf("%s: got %q", policy, got)
		}
	}
}

// The agent learns that a tool which has not answered in time may have been performed.
func TestTimeOfToolIsOver(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		tool := pay
		tool.Idempotent, tool.Policy, tool.TimeoutMS = idempotent, "allow", 1000
		n, _ := toolNode(t, declared(tool))
		run := n.external[0].effect.ID.Run
		n.advance(2 * time.Second)
		last := n.events[run][len(n.events[run])-2]
		if last.Type != runs.ToolResult || last.Refusal == nil || last.Refusal.Reason != actor.Deadline || strings.Contains(last.Refusal.Detail, "may have been performed") == idempotent {
			t.Errorf("idempotent %v: got %s", idempotent, last.String())
		}
	}
}

func TestServerLimitBoundsToolWithoutTimeout(t *testing.T) {
	for own, want := range map[int64]actor.Duration{0: 5 * time.Second, 7: 7 * time.Millisecond} {
		tool := pay
		tool.Policy, tool.TimeoutMS = "allow", own
		n := newNode(t, 1, agent("payer", using(pay.Name, `{"amount": 1}`)))
		n.tools, n.limits.ToolTimeoutDefault = declared(tool), 5*time.Second
		n.restart(1)
		n.send("payer/s", "go")
		if got := n.external[0].effect.Op.(Tool).Left; got != want {
			t.Errorf("timeout_ms %d: the call has %v, want %v", own, got, want)
		}
	}
}

func TestToolCallChecks(t *testing.T) {
	open, closed, short := pay, pay, pay
	open.Policy, closed.Policy = "allow", "block"
	short.Policy, short.MaxResultBytes = "allow", 100
	n := newNode(t, 1, agent("payer", using(pay.Name, `{"amount":1}`)), agent("precise", using(pay.Name, `{"amount":9007199254740993}`)),
		agent("wrong", using(pay.Name, `{"amount":"x"}`)),
		agent("repeating", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if n := len(answers); n > 0 && answers[n-1][0].Refusal != nil {
				return actor.Complete(actor.Text(fmt.Sprint(n, " ", answers[n-1][0].Refusal.Reason))), nil
			}
			return using(pay.Name, `{"amount":1}`)(actor.Begin{}, nil)
		}))
	for _, c := range []struct {
		tool        tools.Declared
		agent, want string
	}{
		{closed, "payer", "PolicyBlocked"},
		{open, "payer", "ok"},
		{open, "precise", "ok"}, // whole numbers keep their digits
		{open, "wrong", "Invalid"},
		{open, "repeating", "4 Rejected"},
		{short, "payer", strings.Repeat("x", 97) + "… the result of payments.transfer has 1000 bytes, and these are the first 100; the ref " + tools.BlobRef([]byte(strings.Repeat("x", 1000))) + " has the rest from offset 97 on"},
	} {
		n.tools = declared(c.tool)
		n.restart(1)
		run := n.send(c.agent, "go")
		for len(n.external) > 0 {
			call := n.external[0]
			n.external = n.external[1:]
			result := "ok"
			if c.tool.MaxResultBytes > 0 {
				result = strings.Repeat("x", 1000)
			}
			n.sendOutcome(call, actor.Answer{Parts: actor.Text(result)})
		}
		n.want(run, c.want)
	}
}

// The owner of an agent is that of the definition that its turn executes.
func TestPolicyKnowsOwnerOfAgent(t *testing.T) {
	policy, err := tools.NewPolicy([]tools.Rule{{Tool: "*", Agent: "pay*", Decision: "allow"}, {Tool: "*", Decision: "block"}}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	as := func(kind actor.AgentKind, owner string) func(*actor.Definition) {
		return func(d *actor.Definition) { d.Kind, d.Owner = kind, owner }
	}
	for _, c := range []struct {
		as   func(*actor.Definition)
		want string
	}{
		{as(actor.Native, ""), "ok"},
		{as(actor.Declared, actor.OperatorUser), "ok"},
		{as(actor.External, actor.OperatorUser), "ok"},
		{as(actor.Declared, "mallory"), "PolicyBlocked"},
		{as(actor.External, "mallory"), "PolicyBlocked"},
		{as(actor.Declared, ""), "PolicyBlocked"},
	} {
		n := newNode(t, 1, agent("payer", using(pay.Name, `{"amount":1}`), c.as))
		registry, err := tools.NewRegistry().With([]tools.Declared{pay}, policy)
		if err != nil {
			t.Fatal(err)
		}
		n.tools = registry
		n.restart(1)
		run := n.send("payer", "go")
		for _, call := range n.external {
			n.sendOutcome(call, actor.Answer{Parts: actor.Text("ok")})
		}
		n.want(run, c.want)
	}
}

// An external agent adds tool calls to its run.
func TestAddedToolCall(t *testing.T) {
	open := pay
	open.Name, open.Policy, open.OnFailure = "open.tool", "allow", tools.ReturnError
	n := newNode(t, 1, externalAgent(false))
	n.tools = declared(open, pay)
	if err := n.tools.Register(invariant.Must(tools.Builtin(tools.AgentsList, nil))); err != nil {
		t.Fatal(err)
	}
	n.restart(1)
	run := n.send("worker", "go")
	add := func(tool, key string) actor.CallID {
		return n.send("worker", "", func(c *actor.Call) {
			c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpAddTool, run
			c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: key}
			c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: fmt.Appendf(nil, `{"tool_name":%q,"args":{"amount":2}}`, tool)}}
		})
	}
	first := add("open.tool", "k")
	at := runs.ToolCallID{Run: run, Step: 1, Index: 1}
	for _, id := range []actor.CallID{first, add("open.tool", "k")} {
		if got := string(inlineBytes(n.replies[id].Parts)); got != `{"tool_call_id":"`+at.String()+`"}` {
			t.Errorf("got answer %s, want the ID %s", got, at)
		}
	}
	n.want(add("no.tool", ""), "NotFound")
	n.want(add(tools.AgentsList, ""), "NotFound") // the agent does not list it
	if len(n.external) != 2 {
		t.Fatalf("%d requests, want that to the agent and that to the tool", len(n.external))
	}
	n.sendOutcome(n.external[1], actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "down")})
	if n.runs[run].Status.Ended() {
		t.Error("the run has ended although the tool returns its error")
	}
	add(pay.Name, "")
	a := n.pending()[0]
	n.restart(1)
	n.advance(time.Second)
	if n.runs[run].Refusal == nil || n.runs[run].Refusal.Reason != actor.Unknown {
		t.Errorf("got %v, want an unknown outcome of the agent", n.runs[run].Refusal)
	}
	if call, _, err := runs.FoldToolCall(n.events[run], a.ID); err != nil || call.Status != runs.ToolStatusFailed || call.Approval.Status != runs.ApprovalStatusExpired {
		t.Errorf("got tool call %s, approval %s, error %v", call.Status, call.Approval.Status, err)
	}
}

// While an added tool call waits for a person, the time of its agent is stopped. Its
// rejection ends the run, because the tool does not return errors.
func TestAddedToolCallHoldsItsAgent(t *testing.T) {
	n := newNode(t, 1, externalAgent(true))
	n.tools = declared(pay)
	n.restart(1)
	run := n.send("worker", "go", func(c *actor.Call) { c.Left = 30 * time.Second })
	n.send("worker", "", func(c *actor.Call) {
		c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpAddTool, run
		c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"tool_name":"payments.transfer","args":{}}`)}}
	})
	n.advance(200 * time.Second)
	if n.runs[run].Status != runs.PausedWaitingApproval || len(n.adjusted) == 0 {
		t.Fatalf("got status %s, %d adjustments", n.runs[run].Status, len(n.adjusted))
	}
	n.decide(n.pending()[0], false)
	n.advance(time.Second)
	if r := n.runs[run]; r.Refusal == nil || r.Refusal.Reason != actor.ApprovalRejected || len(n.aborted) != 1 {
		t.Errorf("got %v, %d aborted", r.Refusal, len(n.aborted))
	}
}

// A call of 30 s to an external agent ends well although a person approves its tool call
// only after 200 s, also over a restart. The tool is performed once.
func TestApprovalBelowExternalAgent(t *testing.T) {
	n := newNode(t, 2, agent("top", calling("worker")), externalAgent(true))
	n.tools = declared(pay)
	n.restart(2)
	root := n.send("top/s", "go", func(c *actor.Call) { c.Left = 30 * time.Second })
	invoked := n.external[0].effect.Op.(Invoke).Call
	request := func() {
		n.send(invoked.To.String(), "", func(c *actor.Call) {
			c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpAddTool, invoked.ID
			c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"tool_name":"payments.transfer","args":{"amount":1.5}}`)}}
		})
	}
	request()
	n.advance(100 * time.Second)
	n.restart(2)
	n.drain()
	request()
	n.advance(100 * time.Second)
	if n.runs[root].Status != runs.PausedWaitingApproval {
		t.Fatalf("got status %s of the root", n.runs[root].Status)
	}
	n.decide(n.pending()[0], true)
	if len(n.external) != 2 {
		t.Fatalf("%d effects, want the repeated invocation and the tool", len(n.external))
	}
	n.sendOutcome(n.external[1], actor.Answer{Parts: actor.Text("sent")})
	n.sendOutcome(n.external[0], completion("sent"))
	n.advance(time.Second)
	if state := n.runs[root]; state.Status != runs.Done || state.Text != "top(sent)" {
		t.Errorf("got %s %q", state.Status, state.Text)
	}
	if len(n.external) != 2 {
		t.Errorf("got effects %+v after the first two", n.external[2:])
	}
}

// A user has a bounded number of tool calls that wait for a person, over a restart too. A further one
// gets a refusal that can be repeated, and other users are served.
func TestApprovalsOfAUserAreBounded(t *testing.T) {
	n := newNode(t, 1, agent("payer", using("payments.transfer", `{"amount":1}`)))
	n.tools = declared(pay)
	n.restart(1)
	send := func(tenant string, i int) actor.CallID {
		return n.send("payer/s", "go", func(c *actor.Call) {
			c.To = actor.ID{Tenant: tenant, Agent: "payer", Key: fmt.Sprint("s", i)}
		})
	}
	for i := range ApprovalsPerUserMax {
		n.want(send("mallory", i), "nothing")
	}
	over := send("mallory", ApprovalsPerUserMax)
	n.want(over, "Busy")
	n.restart(1)
	n.drain()
	over = send("mallory", ApprovalsPerUserMax+1)
	n.want(over, "Busy")
	n.want(send("bob", 0), "nothing")
	all, _ := PendingApprovals(n.cells[0], "")
	if len(all) != ApprovalsPerUserMax+1 {
		t.Errorf("%d approvals wait", len(all))
	}
	i := slices.IndexFunc(all, func(a Approval) bool { return a.Actor.Tenant == "mallory" })
	n.decide(all[i], false)
	n.want(send("mallory", ApprovalsPerUserMax+2), "nothing")
}

// A call of a client tool is listed while it waits for a device, over a restart, and neither while it waits for a
// decision nor after its result.
func TestClientCallsAreListed(t *testing.T) {
	ask := tools.Declared{Name: "user.ask", Kind: tools.KindClient, Policy: "require_approval"}
	n := newNode(t, 1, agent("payer", using("user.ask", `{"question":"x"}`)))
	n.tools = declared(ask)
	n.restart(1)
	root := n.send("payer/s", "go")
	calls := func() []Approval {
		all, known := ClientCalls(n.cells[0], "")
		if !known {
			t.Error("the cell is still loading its open runs")
		}
		return all
	}
	if all := calls(); len(all) != 0 || len(n.pending()) != 1 {
		t.Fatalf("before the decision %+v wait for a device, %+v for a person", all, n.pending())
	}
	n.decide(n.pending()[0], true)
	n.restart(1)
	n.drain()
	all := calls()
	if len(all) != 1 || all[0].Tool != "user.ask" || all[0].ID.Run != root || string(all[0].Args) != `{"question":"x"}` || all[0].Until <= n.now || len(n.pending()) != 0 {
		t.Fatalf("after the decision %+v wait for a device, %+v for a person", all, n.pending())
	}
	n.send("payer/s", "", func(c *actor.Call) {
		c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpGiveResult, all[0].ID.Run
		c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: fmt.Appendf(nil, `{"tool_call_id":%q,"ok":true,"result":"y"}`, all[0].ID)}}
	})
	if all := calls(); len(all) != 0 {
		t.Errorf("after the result %+v wait", all)
	}
}

// No other tool is named in place of one that a crash has repeated: the earlier attempt may have been performed.
func TestRepeatedToolHasNoFallback(t *testing.T) {
	tool := pay
	tool.Policy, tool.Idempotent = "", true
	for _, crash := range []bool{false, true} {
		field := "none"
		n := newNode(t, 1, agent("payer", func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) > 0 {
				field = answers[0][0].Refusal.Field
			}
			return using("payments.transfer", `{"amount":1}`)(b, answers)
		}))
		n.tools = declared(tool)
		n.restart(1)
		n.send("payer", "go")
		if crash {
			n.restart(1)
			n.advance(time.Second)
		}
		n.sendOutcome(n.external[0], actor.Answer{Refusal: &actor.Refusal{Reason: actor.Unavailable, Detail: "away", Field: actor.FallbackField + "other"}})
		want := actor.FallbackField + "other"
		if crash {
			want = ""
		}
		if field != want {
			t.Errorf("crash %v: got the field %q, want %q", crash, field, want)
		}
	}
}
