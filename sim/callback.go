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

// tokenSecret is under which the tokens of a world's runs are made: all its nodes are one server's.
func (w *Simulation) tokenSecret() []byte {
	s := seed32(w.seed, 0x7365_6372_6574)
	return s[:]
}

// mintToken is with what an external agent speaks for a run.
func (w *Simulation) mintToken(run actor.CallID, id actor.ID) upstream.Secret {
	return upstream.Secret(ingress.MintToken(w.tokenSecret(), run, id))
}

// sendCallback brings what an external agent asks of another to some node: a signal
// to the run whose token it has. Told gets the answer, or nil if none came.
func (w *Simulation) sendCallback(j *externalCall, body string, told func(*actor.Reply)) {
	run, id, refusal := ingress.ReadToken(w.tokenSecret(), j.token)
	if refusal != nil {
		w.fail(CodecRoundTrip, "the token of a run cannot be read: "+refusal.Error())
		return
	}
	if w.faultFires(CallbackForged) {
		w.forgeToken(j.token)
	}
	n := w.drawNode()
	if n == nil {
		told(nil)
		return
	}
	call, refusal := parseInvocation(run, id, body)
	if refusal != nil {
		told(&actor.Reply{Status: actor.Failed, Refusal: refusal})
		return
	}
	call.ID, call.Lane, call.Left, call.Attempt = w.newCallID(), actor.Normal, 5*time.Second+w.between(0, 10*time.Second), 1
	call.Root, call.Principal, call.Origin = call.ID, "agent:"+j.agent, actor.Agent
	var first *actor.Reply
	same := func(reply *actor.Reply) {
		forgets := w.isVolatile(id.Agent) // one that writes nothing down asks anew when it has moved
		if !forgets && first != nil && reply != nil && first.Refusal == nil && reply.Refusal == nil && first.Run != reply.Run {
			w.fail(specs.OneAnswer, fmt.Sprintf("%s calls back once, and has the answers of two runs, %s and %s", j.agent, first.Run, reply.Run))
		}
		if reply != nil {
			first = reply
		}
	}
	w.log.note(w.now, "%s calls back for run %s: %s", j.agent, run.Short(), body)
	w.submitCall(n, call, func(reply *actor.Reply) { same(reply); told(reply) })
	if w.faultFires(CallbackDuplicate) {
		w.after(w.between(0, 300*time.Millisecond), func() {
			if again := w.drawNode(); again != nil && again != n { // at one node there is one who waits for a call
				w.recordFault(CallbackDuplicate, "%s calls back twice", j.agent)
				w.submitCall(again, call, same)
			}
		})
	}
}

// parseInvocation is what an external agent asks, as a door reads it: the agent stands
// in the path, the rest in the body.
func parseInvocation(run actor.CallID, of actor.ID, wants string) (actor.Call, *actor.Refusal) {
	var in struct {
		Agent   string `json:"agent_id"`
		Message string `json:"message"`
		Timeout int64  `json:"timeout_ms"`
	}
	if err := json.Unmarshal([]byte(wants), &in); err != nil {
		return actor.Call{}, actor.Refuse(actor.Invalid, "%v", err)
	}
	agent, session, _ := strings.Cut(in.Agent, "/")
	call, _, r := ingress.Invoke(run, of, agent, invariant.Must(json.Marshal(map[string]any{"message": in.Message, "session_id": session, "timeout_ms": in.Timeout})))
	return call, r
}

// submitCall has somebody wait at a node for what comes of a signal.
func (w *Simulation) submitCall(n *node, call actor.Call, told func(*actor.Reply)) {
	at := n.cells[w.entropy.Int(len(n.cells))]
	l := &pendingRequest{client: &client{no: noOffset, stream: w.queue.stream, to: call.To, onReply: told}, call: call.ID, cell: at}
	w.pending = append(w.pending, l)
	at.enqueue(input{orderGroup: unordered, in: runtime.Deliver{Envelope: actor.Envelope{To: call.To, Body: actor.Request{Call: call}}}})
	w.after(call.Left+5*time.Second, func() { w.disconnectClient(l, noFault) })
}
