// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/upstream"
)

// tokenSecret returns the secret from which run tokens are derived. All nodes share it,
// as the nodes of one server do.
func (w *Simulation) tokenSecret() []byte {
	s := seed32(w.seed, 0x7365_6372_6574)
	return s[:]
}

// mintToken returns the token with which an external agent acts on behalf of a run.
func (w *Simulation) mintToken(run actor.CallID, id actor.ID) upstream.Secret {
	return upstream.Secret(ingress.MintToken(w.tokenSecret(), run, id))
}

// sendCallback sends the request of an external agent to call another agent. The
// request is a signal to the run that its token names, sent through a random node. The
// callback done receives the reply, or nil if there was none.
func (w *Simulation) sendCallback(j *externalCall, body string, done func(*actor.Reply)) {
	token := j.token
	if w.faultFires(CallbackForged) {
		token = w.forgeToken(token)
	}
	run, id, refusal := ingress.ReadToken(w.tokenSecret(), token)
	if recordChange(w, CallbackForged, true, refusal == nil, "a callback of %s with a forged token is refused: %v", j.agent, refusal) {
		if token == j.token {
			w.fail(CodecRoundTrip, "run token rejected: "+refusal.Error())
		}
		done(&actor.Reply{Status: actor.Failed, Refusal: refusal})
		return
	}
	if token != j.token {
		w.fail(CodecRoundTrip, fmt.Sprintf("forged token accepted for run %s of %s", run, id))
	}
	n := w.drawNode()
	if n == nil {
		done(nil)
		return
	}
	call, refusal := parseInvocation(run, id, body)
	if refusal != nil {
		done(&actor.Reply{Status: actor.Failed, Refusal: refusal})
		return
	}
	call.ID, call.Lane, call.Left, call.Attempt = w.newCallID(), actor.Normal, 5*time.Second+w.between(0, 10*time.Second), 1
	call.Root, call.Principal, call.Origin = call.ID, "agent:"+j.agent, actor.Agent
	var first *actor.Reply
	checkSame := func(reply *actor.Reply) {
		volatile := w.isVolatile(id.Agent) // a volatile actor starts a new run after it has moved
		if !volatile && first != nil && reply != nil && first.Refusal == nil && reply.Refusal == nil && first.Run != reply.Run {
			w.fail(specs.OneAnswer, fmt.Sprintf("one callback of %s has answers of two runs, %s and %s", j.agent, first.Run, reply.Run))
		}
		if reply != nil {
			first = reply
		}
	}
	w.log.note(w.now, "callback of %s for run %s: %s", j.agent, run.Short(), body)
	w.submitCall(n, call, func(reply *actor.Reply) { checkSame(reply); done(reply) })
	if w.faultFires(CallbackDuplicate) {
		w.after(w.between(0, 300*time.Millisecond), func() {
			if other := w.drawNode(); other != nil && other != n { // a node keeps at most one waiter per call
				w.addInputs(CallbackDuplicate, func() { w.submitCall(other, call, checkSame) }, "%s sends a callback twice", j.agent)
			}
		})
	}
}

// parseInvocation parses the request of an external agent as the gateway does: the
// agent is part of the path, the rest is in the body.
func parseInvocation(run actor.CallID, owner actor.ID, body string) (actor.Call, *actor.Refusal) {
	var in struct {
		Agent   string `json:"agent_id"`
		Message string `json:"message"`
		Timeout int64  `json:"timeout_ms"`
	}
	if err := json.Unmarshal([]byte(body), &in); err != nil {
		return actor.Call{}, actor.Refuse(actor.Invalid, "%v", err)
	}
	agent, _, _ := strings.Cut(in.Agent, "/") // the session is that of the run
	fields := map[string]any{"message": in.Message, "session_id": owner.Key}
	if in.Timeout != 0 {
		fields["timeout_ms"] = in.Timeout
	}
	call, _, r := ingress.Invoke(run, owner, agent, invariant.Must(json.Marshal(fields)))
	return call, r
}

// submitCall delivers a call to a random cell of the node. The callback done receives the
// reply, or nil if there is none in time.
func (w *Simulation) submitCall(n *node, call actor.Call, done func(*actor.Reply)) {
	cell := n.cells[w.entropy.Int(len(n.cells))]
	req := &pendingRequest{client: &client{no: noOffset, stream: w.queue.stream, to: call.To, onReply: done}, call: call.ID, cell: cell}
	w.pending = append(w.pending, req)
	cell.enqueue(input{orderGroup: unordered, in: runtime.Deliver{Envelope: actor.Envelope{To: call.To, Body: actor.Request{Call: call}}}})
	w.after(call.Left+5*time.Second, func() { w.disconnectClient(req, noFault) })
}
