// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// exchange is a node that asks a model or an external agent: production's
// upstream.Exchange, driven by bytes, their loss, and time. As in production it
// goes on with what came once its cell has taken the piece before, and outlives
// its cell, not its node.
type exchange struct {
	n             *node
	process       uint64 // of the node
	cell          uint16
	id            actor.EffectID
	attempt       uint32
	call          *actor.Call // on whose behalf
	deadline      actor.Time
	nonIdempotent bool // asking twice may do harm
	machine       *upstream.Exchange
	backoff       *upstream.Backoff
	respond       func(*upstreamConn, upstream.Request) // who is asked
	conn          *upstreamConn                         // of the try that is out
	inbox         []connInput                           // and was not looked at yet
	outbox        []runtime.Input                       // for the cell
	offered       bool                                  // the first of them is on its way
	awaited       bool                                  // by the incarnation that there is
	done          bool                                  // nobody waits any more
	timer         actor.Time
}

// connInput is what came over a wire; nil: by the clock.
type connInput struct {
	conn *upstreamConn
	in   upstream.Input
}

// upstreamState is what a node knows of those that it asks. It is lost with its process.
type upstreamState struct {
	exchanges []*exchange
	backoffs  map[string]*upstream.Backoff
	health    map[string]*upstream.Health
}

// backoff is the back-off that all who ask for one thing share.
func (n *node) backoff(who string) *upstream.Backoff {
	b := n.upstreams.backoffs[who]
	if b == nil {
		b = upstream.NewBackoff(upstream.BackoffConfig{})
		n.upstreams.backoffs[who] = b
	}
	return b
}

// callModel has a model asked.
func (n *node) callModel(h *gatedEffect, op runtime.Model) {
	x := n.newExchange(h, op.Left, &op.Call)
	prompt, err := upstream.DecodePrompt(op.Body)
	if err != nil {
		n.w.fail(CodecRoundTrip, "the prompt of a turn cannot be read: "+err.Error())
		return
	}
	n.w.addToCorpus(promptCodec, op.Body)
	prompt.Model = op.Name
	order, refusal := modelConfig(op.Name).Order(prompt, x.deadline, n.w.plan.Patience)
	x.respond = n.w.serveModel
	x.begin("model "+op.Name, order, refusal)
}

// invokeAgent hands a call to an external agent, if that is healthy.
func (n *node) invokeAgent(h *gatedEffect, op runtime.Invoke) {
	w, x := n.w, n.newExchange(h, op.Left, &op.Call)
	target, err := upstream.DecodeTarget(op.Target)
	if err != nil {
		w.fail(CodecRoundTrip, "the target of a turn cannot be read: "+err.Error())
		return
	}
	w.addToCorpus(targetCodec, op.Target)
	in := upstream.InvocationOf(op.Name, &op.Call, w.mintToken(op.Call.ID, op.Call.To))
	order, refusal := upstream.Agent{URL: target.URL, Auth: authSecret(target.AuthEnv)}.Order(in, op.Idempotent, x.deadline, w.plan.Patience)
	if refusal == nil {
		refusal = n.agentHealth(op.Name).Refuse("agent "+op.Name, w.now)
	}
	x.respond, x.nonIdempotent = w.serveExternalAgent, !op.Idempotent
	x.begin("agent "+op.Name, order, refusal)
}

// newExchange gives up what an earlier life of an unjournaled actor had asked
// under the same name.
func (n *node) newExchange(h *gatedEffect, left actor.Duration, call *actor.Call) *exchange {
	n.cancelExchange(&h.effect)
	x := &exchange{n: n, process: n.process, cell: h.cell.index, id: h.effect.ID, attempt: h.effect.Attempt, call: call,
		deadline: n.w.now.Add(left), awaited: true}
	n.upstreams.exchanges = append(n.upstreams.exchanges, x)
	if h.cell.stopped && !h.readopted {
		x.orphan()
	}
	return x
}

func (x *exchange) begin(who string, order upstream.Order, refusal *actor.Refusal) {
	if refusal != nil {
		x.emit(x.outcome(actor.Answer{Refusal: refusal}))
		x.offerNext()
		return
	}
	x.machine, x.backoff = upstream.NewExchange(order), x.n.backoff(who)
	x.receive(nil, upstream.Begin{})
}

func (x *exchange) outcome(a actor.Answer) runtime.Input {
	return runtime.Outcome{ID: x.id, Attempt: x.attempt, Answer: a}
}

// receive brings in what came over a wire, or by the clock.
func (x *exchange) receive(s *upstreamConn, in upstream.Input) {
	x.inbox = append(x.inbox, connInput{s, in})
	x.advance()
}

// advance looks at what came, one after the other, until the cell has a piece to take.
func (x *exchange) advance() {
	for len(x.outbox) == 0 && len(x.inbox) > 0 {
		a := x.inbox[0]
		x.inbox = x.inbox[1:]
		x.step(a)
	}
	x.offerNext()
	x.armTimer()
}

func (x *exchange) step(a connInput) {
	w, before := x.n.w, x.machine.Late()
	ops := x.machine.Step(w.now, a.in, x.backoff, w.random())
	if a.conn != nil && a.conn.deliverAfterClose && x.machine.Late() > before {
		w.recordFault(a.conn.lateFault, "%s, which is given up", a.conn)
	}
	for _, op := range ops {
		switch op := op.(type) {
		case upstream.Send:
			x.conn = &upstreamConn{exchange: x, attempt: op.Attempt, truncateAt: noOffset, hangAt: noOffset, garbageAt: noOffset}
			w.recordUpstream(x, "try", uint64(op.Attempt))
			if err := x.n.dial(op.Request); err != nil {
				x.conn.refuseDial(err)
				continue
			}
			x.respond(x.conn, op.Request)
		case upstream.Close:
			x.conn.closed = true
		case upstream.PassOn:
			w.recordUpstream(x, "pass", uint64(x.conn.attempt))
			x.emitPiece(actor.Piece{Text: op.Delta.Text, State: op.Delta.State, Detail: op.Delta.Detail})
		case upstream.Again:
			x.emitPiece(actor.Piece{Retry: op.Failure.Refusal})
		case upstream.Ended:
			x.finish(op.Outcome)
		}
	}
}

func (x *exchange) finish(o upstream.Outcome) {
	if o.Refusal != nil {
		x.emit(x.outcome(actor.Answer{Refusal: o.Refusal}))
		return
	}
	body := o.Completion.Encode()
	x.n.w.addToCorpus(completionCodec, body)
	x.emit(x.outcome(actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: body}}}))
}

func (x *exchange) emitPiece(p actor.Piece) {
	x.emit(runtime.Streamed{ID: x.id, Attempt: x.attempt, Piece: p})
}

func (x *exchange) emit(in runtime.Input) {
	if !x.done {
		x.outbox = append(x.outbox, in)
	}
}

// armTimer has the exchange told the time when it is due.
func (x *exchange) armTimer() {
	if x.machine == nil || len(x.outbox) > 0 || x.done {
		return
	}
	due, ok := x.machine.NextDeadline()
	if !ok || x.timer != 0 && x.timer <= due {
		return
	}
	x.timer = due
	x.n.after(due.Sub(x.n.w.now), func() {
		if x.timer == due {
			x.timer = 0
			x.receive(nil, upstream.Tick{})
		}
	})
}

// offerNext brings the next piece to the cell.
func (x *exchange) offerNext() {
	if len(x.outbox) == 0 || x.offered || !x.awaited {
		return
	}
	x.offered = true
	x.n.cells[x.cell].enqueue(input{orderGroup: unordered, in: x.outbox[0], onStepped: x.accepted})
}

// accepted says that the cell has stepped with what it was offered.
func (x *exchange) accepted() {
	if x.done {
		return
	}
	_, last := x.outbox[0].(runtime.Outcome)
	x.outbox, x.offered = x.outbox[1:], false
	if last {
		x.remove()
		return
	}
	x.advance()
}

// remove takes the exchange off the list of what is under way.
func (x *exchange) remove() {
	x.done, x.outbox = true, nil
	all := x.n.upstreams.exchanges
	if i := slices.Index(all, x); i >= 0 {
		x.n.upstreams.exchanges = slices.Delete(all, i, i+1)
	}
}

// findExchange finds what is under way for an effect.
func (n *node) findExchange(id actor.EffectID, attempt uint32) *exchange {
	for _, x := range n.upstreams.exchanges {
		if x.id == id && x.attempt == attempt {
			return x
		}
	}
	return nil
}

// cancelExchange gives an exchange up. What still comes for it changes nothing.
func (n *node) cancelExchange(e *runtime.Effect) {
	x := n.findExchange(e.ID, e.Attempt)
	if x == nil {
		return
	}
	x.remove()
	if x.inbox = nil; x.machine != nil {
		x.step(connInput{in: upstream.Cancel{Reason: actor.Stopped}})
	}
}

// orphanExchanges notes that nobody takes what comes for a cell, until its next
// incarnation awaits it.
func (n *node) orphanExchanges(cell uint16) {
	for _, x := range n.upstreams.exchanges {
		if x.cell == cell {
			x.orphan()
		}
	}
}

// orphan has nobody take what comes, until somebody awaits it, or nobody can any more.
func (x *exchange) orphan() {
	x.awaited, x.offered = false, false
	x.n.after(max(x.deadline.Sub(x.n.w.now), 0)+time.Second, func() {
		if !x.awaited {
			x.remove()
		}
	})
}

// awaitExchange has an exchange of an incarnation before tell its pieces to the one that there is.
func (n *node) awaitExchange(e *runtime.Effect) {
	if x := n.findExchange(e.ID, e.Attempt); x != nil {
		x.awaited = true
		x.offerNext()
	}
}

// recordUpstream tells the specs of what passes between a node and who stands behind it.
func (w *Simulation) recordUpstream(x *exchange, what string, n uint64) {
	e := history.Event{Kind: history.Perform, At: x.n.clock.now(w.now), From: x.n.cells[x.cell].self, Call: x.id.Run, What: what,
		Step: x.id.Step, Index: x.id.Index, Attempt: x.attempt, N: n}
	if x.nonIdempotent {
		e.Why = specs.Once
	}
	w.emit(e)
}

// random is the next of the numbers that nodes draw for themselves.
func (w *Simulation) random() uint64 {
	w.nodeDraws++
	return mix(w.seed, ^w.nodeDraws)
}

// onceMark is the mark of an effect that must not be repeated.
func onceMark(idempotent bool) string {
	if idempotent {
		return ""
	}
	return specs.Once
}

// agentHealth is what a node knows of an external agent.
func (n *node) agentHealth(agent string) *upstream.Health {
	h := n.upstreams.health[agent]
	if h == nil {
		fresh := upstream.NewHealth(n.w.now)
		h = &fresh
		n.upstreams.health[agent] = h
	}
	return h
}

// pollAgents polls the external agents, as long as the process lives.
func (n *node) pollAgents() {
	for i := range n.w.plan.Agents {
		if def := &n.w.plan.Agents[i]; def.Kind == actor.External {
			n.pollAgent(def.Name)
		}
	}
}

func (n *node) pollAgent(agent string) {
	w, h := n.w, n.agentHealth(agent)
	n.after(h.NextPoll().Sub(w.now), func() {
		external := upstream.Agent{URL: "http://" + agent + hostSuffix}
		if agent == externalNames[1] {
			external.Auth = authSecret(authEnv)
		}
		r, refusal := external.HealthRequest()
		if refusal != nil {
			w.fail(CodecRoundTrip, "an agent cannot be asked how it is: "+refusal.Error())
			return
		}
		status := 200
		if err := n.dial(r); err != nil {
			w.recordFault(NameAstray, "%s does not ask %s how it is: %v", n.id, agent, err)
			status = 0
		} else if w.faultFires(AgentUnhealthy) {
			w.recordFault(AgentUnhealthy, "%s tells %s that it is not well", agent, n.id)
			status = 503
		}
		h.Polled(w.now, status)
		n.pollAgent(agent)
	})
}

// pieceAttempt is the attempt of which an input brings a piece; 0: it brings none.
func pieceAttempt(in runtime.Input) uint32 {
	if s, ok := in.(runtime.Streamed); ok {
		return s.Attempt
	}
	return 0
}

// recordShown tells the specs which piece of which attempt is shown.
func (w *Simulation) recordShown(h *gatedEffect, e store.RunEvent) {
	if h.pieceAttempt > 0 && runs.TypeOf(e.Body) == runs.AgentStreamDelta {
		w.recordPiece(h.cell, "show", h.pieceAttempt, e)
	}
}

// recordRetracted tells them which pieces a step takes back. It does so even if a crash
// takes it back in turn: then the next incarnation has to do it again.
func (w *Simulation) recordRetracted(c *cell, effects []runtime.Effect) {
	for i := range effects {
		if op, ok := effects[i].Op.(runtime.Publish); ok && runs.TypeOf(op.Event.Body) == runs.Attempt {
			w.recordPiece(c, "take back", 0, op.Event)
		}
	}
}

func (w *Simulation) recordPiece(c *cell, what string, attempt uint32, e store.RunEvent) {
	event, err := runs.Decode(e.Body)
	if err != nil {
		w.fail(StreamsFold, fmt.Sprintf("event %d of run %s: %v", e.Seq, e.Run, err))
		return
	}
	n := e.Seq
	if event.Type == runs.Attempt {
		if n = event.Discards; n == 0 {
			return // nothing was shown
		}
	}
	w.emit(history.Event{Kind: history.Perform, At: c.n.clock.now(w.now), From: c.self, Call: e.Run, What: what, Step: event.Step, Index: event.Index,
		Attempt: attempt, N: n})
}

// authEnv is the variable in which a node has what it shows to one of the agents,
// and modelKey what it shows to one of the models.
const (
	authEnv  = upstream.AuthEnvPrefix + "XIA"
	modelKey = upstream.Secret("a key for the other")
)

// authSecret is what a node's environment has under a name.
func authSecret(env string) upstream.Secret {
	if env == authEnv {
		return "who shows this is a node"
	}
	return ""
}

// modelConfig is how a model is reached: each in its way.
func modelConfig(name string) upstream.Model {
	m := upstream.Model{URL: "http://" + name}
	if name == modelNames[1] {
		m.URL, m.Key, m.MaxTokensName = m.URL+":8080/v1", modelKey, "max_completion_tokens"
	}
	return m
}

// presentsSecret tells whether a request has a secret in its header.
func presentsSecret(r upstream.Request, s upstream.Secret) bool {
	return slices.ContainsFunc(r.Headers, func(h upstream.Header) bool { return h.Name == "authorization" && h.Value == "Bearer "+s.Reveal() })
}
