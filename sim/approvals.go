// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"

	"github.com/go-json-experiment/json/jsontext"
)

// approvals is the part of a simulation with declared tools: the server that performs them,
// the people who decide about their calls, and the operator who changes them meanwhile.
type approvals struct {
	*Simulation
	on      bool
	seen    map[runs.ToolCallID]bool // approvals that a person has found
	served  map[string][]string      // bodies of the requests that the server performed, by idempotency key
	results map[string][]string      // results that left the server, by the same
	approvalJudge
	devices devices
	models  modelRequests
	made    [toolChanges]*toolVersion // versions that were declared before, by their changes
}

// toolChanges is the number of versions of the tools.
const toolChanges = 8

// toolVersion is a version of the declared tools and of the policy.
type toolVersion struct {
	declared []tools.Declared
	blocked  string // tool that a rule of the policy blocks; "": none
	registry *tools.Registry
}

// decision returns the decision that the policy MUST make about a call of a tool.
func (v *toolVersion) decision(tool *tools.Declared) runs.Decision {
	if tool.Name == v.blocked {
		return runs.Block
	}
	return invariant.Must(runs.ParseDecision(tool.Policy))
}

// tool returns a declared tool, or nil.
func (v *toolVersion) tool(name string) *tools.Declared {
	if i := slices.IndexFunc(v.declared, func(d tools.Declared) bool { return d.Name == name }); i >= 0 {
		return &v.declared[i]
	}
	return nil
}

// declaredTools are the tools of the first version. Later ones change or lack some of them.
var declaredTools = []tools.Declared{
	{Name: "mail.send", Policy: "allow"}, {Name: "door.open", Policy: "block"},
	{Name: "bulk.read", Policy: "allow", Idempotent: true, MaxResultBytes: 64, OnFailure: tools.FailRun},
	{Name: "pay.out", Policy: "require_approval", OnFailure: tools.FailRun},
	{Name: askTool, Kind: tools.KindClient, Policy: "allow", OnFailure: tools.ReturnError},
	{Name: "pay.note", Policy: "require_approval", Idempotent: true, ApprovalTimeoutMS: 6000, ArgsSummary: "note {{n}}", OnFailure: tools.ReturnError},
}

// newToolVersion returns the version with changes of some tools, one bit each.
func newToolVersion(changes int) *toolVersion {
	v := &toolVersion{declared: slices.Clone(declaredTools)}
	for i := range v.declared {
		d := &v.declared[i]
		if d.Kind == "" {
			d.Kind, d.Via, d.URL = tools.KindServer, tools.ViaHTTP, "http://tools"+hostSuffix+"/"+d.Name
		}
		d.InputSchema = []byte(`{"type":"object","properties":{"n":{"type":"integer","minimum":0}}}`)
		if changes&1 > 0 && d.Policy == "require_approval" {
			d.URL += "/v2"
		}
	}
	var rules []tools.Rule
	if changes&2 > 0 {
		v.blocked = "pay.out"
		rules = append(rules, tools.Rule{Tool: v.blocked, Decision: "block"})
	}
	if changes&4 > 0 {
		v.declared = v.declared[:len(v.declared)-1]
	}
	v.registry = invariant.Must(builtinTools().With(v.declared, invariant.Must(tools.NewPolicy(rules, "", ""))))
	return v
}

func newApprovals(w *Simulation) *approvals {
	a := &approvals{Simulation: w, seen: map[runs.ToolCallID]bool{}, served: map[string][]string{}, results: map[string][]string{}, approvalJudge: newApprovalJudge(w)}
	a.devices, a.models = newDevices(a), newModelRequests(a)
	return a
}

// start declares the tools and lets people look for approvals.
func (a *approvals) start() {
	if a.on = a.plan.Approvals; a.on {
		a.declare(0)
		defer a.setStream(a.setStream(topicApproval))
		a.after(time.Second, a.look)
	}
}

// instruction draws the use of a tool.
func (a *approvals) instruction() instruction {
	return instruction{verb: "use", name: declaredTools[a.entropy.Int(len(declaredTools))].Name, ms: a.entropy.Int(5) - 1}
}

// input returns the input of a tool that the instruction uses.
func (o instruction) input() []byte { return fmt.Appendf(nil, `{"n":%d}`, o.ms) }

// perform performs a declared tool without a fault. Half of the answers take seconds, so a
// crash may come between the effect and its answer.
func (a *approvals) perform(ctx context.Context, h *gatedEffect, op runtime.Tool) {
	n, answer := h.cell.n, a.execute(ctx, h.effect.ID, op)
	r := n.trackEffect(h)
	most := [...]time.Duration{40 * time.Millisecond, 8 * time.Second}[a.entropy.Int(2)]
	n.after(a.between(time.Millisecond, most), func() { n.completeEffect(r, op.Left, func() actor.Answer { return answer }) })
}

// execute performs a tool as the host does. A declared one is a request to its server.
func (a *approvals) execute(ctx context.Context, id actor.EffectID, op runtime.Tool) (answer actor.Answer) {
	d := op.Declared
	if d == nil {
		return a.tools.Execute(ctx, op.Name, op.Input, op.Context)
	}
	key := fmt.Sprintf("%s.%d.%d", id.Run, id.Step, id.Index)
	defer func() {
		if p := recover(); p != nil {
			answer = tools.Refused(actor.Refuse(actor.Unavailable, "panic: %v", p))
		}
		if answer.Refusal == nil {
			a.results[key] = append(a.results[key], string(answer.Parts[0].Bytes))
		}
	}()
	order, refusal := upstream.HTTPTool{Name: d.Name, URL: d.URL, Idempotent: d.Idempotent}.Exchange(upstream.ToolInput{Arguments: op.Input, Key: key},
		a.now.Add(op.Left), upstream.AttemptLimits{Retry: upstream.RetryPolicy{Tries: 1}})
	invariant.Check(refusal == nil, "sim: request of tool %s: %v", d.Name, refusal)
	x, pacer := upstream.NewExchange(order), upstream.NewBackoff(upstream.BackoffConfig{})
	for in := []upstream.Input{upstream.Begin{}}; len(in) > 0; in = in[1:] {
		for _, out := range x.Step(a.now, in[0], pacer, 0) {
			switch out := out.(type) {
			case upstream.Send:
				in = append(in, a.serve(op.Context.Call.To.Tenant, d, out)...)
			case upstream.Ended:
				answer = out.Outcome.Answer()
			}
		}
	}
	a.judgeServed(id, d, key)
	call, _ := ctx.Value(toolCallKey{}).(*toolCall)
	if call == nil {
		return answer
	}
	if call.text = answerText(answer); answer.Refusal != nil {
		return answer
	}
	return toolResult(ctx, call.text)
}

// serve performs a request at the server and returns its response. The server performs a
// request also if its response is an error or garbage.
func (a *approvals) serve(tenant string, d *tools.Declared, send upstream.Send) []upstream.Input {
	namespaces{a.Simulation}.checkApart(tenant, "the server of tool "+d.Name, string(send.Request.Body))
	i := slices.IndexFunc(send.Request.Headers, func(h upstream.Header) bool { return h.Name == "idempotency-key" })
	key := send.Request.Headers[i].Value
	a.served[key] = append(a.served[key], send.Request.URL+" "+string(send.Request.Body))
	status, media, body := 200, "application/json", fmt.Sprintf(`{"did":%q,"with":%s,"note":%0*d}`, d.Name, send.Request.Body, 1+a.entropy.Int(2)*100, 1)
	switch a.entropy.Int(12) {
	case 8:
		status = 500
	case 9:
		body = "{"
	case 10:
		media = "image/png"
	case 11:
		status, body = 204, ""
	default:
		media, body = "text/plain", "done: "+body
	}
	answer := []upstream.Input{upstream.Head{Attempt: send.Attempt, Status: status, Headers: headerList("content-type", media)}}
	if body != "" {
		answer = append(answer, upstream.Bytes{Attempt: send.Attempt, Bytes: []byte(body)})
	}
	return append(answer, upstream.End{Attempt: send.Attempt})
}

// look lets a person decide about each approval that is new. Sometimes an operator changes
// the tools.
func (a *approvals) look() {
	if a.recovering {
		return
	}
	a.after(a.between(100*time.Millisecond, time.Second), a.look)
	if a.entropy.Int(16) == 15 {
		a.change()
	}
	for _, n := range a.nodes {
		for _, c := range n.cells {
			for i := range a.plan.Namespaces {
				if !n.up || c.stopped {
					continue
				}
				all, _ := runtime.PendingApprovals(c.core, namespaceName(i))
				for _, p := range all {
					if !a.seen[p.ID] {
						a.seen[p.ID] = true
						a.consider(p)
					}
				}
			}
		}
	}
}

// change replaces the tools and the policy.
func (a *approvals) change() {
	changes := a.entropy.Int(toolChanges)
	a.log.note(a.now, "operator changes the tools: %b", changes)
	a.declare(changes)
	a.publishAgents()
}

// declare makes a version of the tools the present one.
func (a *approvals) declare(changes int) {
	if a.made[changes] == nil {
		a.made[changes] = newToolVersion(changes)
	}
	v := a.made[changes]
	a.tools, a.versions[v.registry] = v.registry, v
}

// crowd is the number of people who decide at once.
const crowd = 16

// consider draws the decision of a person about an approval.
func (a *approvals) consider(p runtime.Approval) {
	after, wrong, elsewhere := a.between(0, 2*time.Second), p, p
	decide := func(p runtime.Approval, id string, approve bool) {
		a.after(after, func() { a.decide(p, id, approve) })
	}
	switch a.entropy.Int(12) {
	case 4, 5:
		decide(p, p.ID.Approval(), false)
		return
	case 6:
		after += p.Until.Sub(p.Created) // too late
	case 7:
		return
	case 8:
		for i := range crowd {
			decide(p, p.ID.Approval(), i%2 == 0)
		}
	case 9:
		decide(p, p.ID.Approval(), false)
	case 10:
		wrong.ID.Index += 7
		decide(p, wrong.ID.Approval(), true)
		wrong.ID.Index, wrong.ID.Run = p.ID.Index, a.newCallID()
		decide(p, wrong.ID.Approval(), true)
	case 11:
		a.change()
		if elsewhere.Actor.Tenant = namespaceName(0); p.Actor.Tenant == namespaceName(0) {
			elsewhere.Actor.Tenant = namespaceName(1)
		}
		decide(elsewhere, p.ID.Approval(), true)
	}
	decide(p, p.ID.Approval(), true)
	if a.entropy.Int(3) == 2 { // while the tool may be performed
		a.after(after+a.between(0, time.Second), a.change)
	}
}

// decide sends the decision of a person about the approval with an ID.
func (a *approvals) decide(p runtime.Approval, id string, approve bool) {
	decision := signals.Decide{Approval: id, Approve: approve, Reason: "because"}
	call := a.signal(p.Actor, p.ID.Run, decision)
	call.Principal, call.Origin = "person of "+namespaceMarker(p.Actor.Tenant), actor.Human
	a.send(call, 1, func(reply *actor.Reply) { a.judgeReply(p, id, approve, &call, reply) })
}

// signal returns a signal to a run.
func (a *approvals) signal(to actor.ID, run actor.CallID, c signals.Content) actor.Call {
	call := signals.New(to, run, c)
	call.ID, call.Lane, call.Left, call.Attempt = a.newCallID(), actor.Normal, 10*time.Second, 1
	call.Root = call.ID
	return call
}

// send sends a signal. It is sent again if the reply is lost.
func (a *approvals) send(call actor.Call, try int, judge func(*actor.Reply)) {
	n := a.drawNode()
	if n == nil {
		return
	}
	a.log.note(a.now, "%s for run %s of %s: %s", call.Operation, call.Parent.Short(), call.To, call.Parts[0].Bytes)
	a.submitCall(n, call, func(reply *actor.Reply) {
		if reply != nil {
			judge(reply)
		} else if try < appendTriesMax && !a.recovering {
			a.after(a.between(time.Millisecond, time.Second), func() { a.send(call, try+1, judge) })
		}
	})
}

// add sometimes adds a tool call or a model request to the run of an external agent, which
// continues some time after. It reports whether it does.
func (a *approvals) add(e *externalCall) bool {
	if !a.on {
		return false
	}
	what := a.entropy.Int(6)
	n := a.drawNode()
	if what < 3 || n == nil { // 0 does nothing: a shrunk simulation draws it
		return false
	}
	run, id, refusal := ingress.ReadToken(a.tokenSecret(), e.token)
	invariant.Check(refusal == nil, "sim: run token: %v", refusal)
	if what == 5 {
		a.models.add(n, e, run, id)
		return true
	}
	use := a.instruction()
	call := a.signal(id, run, signals.AddTool{Tool: use.name, Args: jsontext.Value(use.input())})
	call.Principal, call.Origin = "agent:"+e.agent, actor.Agent
	a.submitCall(n, call, func(reply *actor.Reply) {
		a.judgeAdded(run, reply)
		a.after(a.between(time.Millisecond, 6*time.Second), e.advance)
	})
	return true
}
