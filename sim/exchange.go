// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// exchange is a call of a node to a model or an external agent: the production
// upstream.Exchange, driven by received bytes, lost connections and time. As in
// production, it processes further input only when its cell has stepped with the
// previous piece, and it survives its cell but not its node.
type exchange struct {
	n             *node
	process       uint64 // process of the node
	cell          uint16
	id            actor.EffectID
	attempt       uint32
	call          *actor.Call      // call that needs the exchange
	prompt        *upstream.Prompt // nil: an external agent is asked
	body          []byte           // the prompt as the agent encoded it
	deadline      actor.Time
	nonIdempotent bool // a repeated request could do harm
	repeats       bool // nevertheless it is repeated after a restart
	machine       *upstream.Exchange
	judge         *exchangeJudge
	pacer         upstream.Pacer
	pacing        *pacingJudge
	respond       func(*upstreamConn, upstream.Request) // simulated upstream
	conn          *upstreamConn                         // connection of the current attempt
	inbox         []connInput                           // received input, not yet processed
	outbox        []exchangeOutput                      // output for the cell
	offered       bool                                  // the first input of outbox is queued at the cell
	awaited       bool                                  // the current incarnation of the cell awaits the outcome
	done          bool                                  // abandoned or complete
	timer         actor.Time
}

// exchangeOutput is an input for the cell and the number of the upstream's attempt that
// caused it.
type exchangeOutput struct {
	in  runtime.Input
	try int
}

// connInput is an input of an exchange and the connection that received the input. The
// connection is nil for timers.
type connInput struct {
	conn *upstreamConn
	in   upstream.Input
}

// agentHealth is the health of an external agent as a node knows it, and as it would know
// it without the fault AgentUnhealthy.
type agentHealth struct {
	known, plain upstream.Health
	counted      bool // the fault has delayed an invocation since the last poll with an error
}

// admit refuses an invocation while the node believes that the agent is unhealthy. The
// fault counts if the invocation would otherwise be admitted.
func (h *agentHealth) admit(n *node, agent string) upstream.Admission {
	known, plain := h.known.Admit(n.w.now), h.plain.Admit(n.w.now)
	if !h.counted {
		h.counted = recordChange(n.w, AgentUnhealthy, plain.Refusal == nil, known.Refusal == nil, "%s does not invoke %s: %v", n.id, agent, known.Refusal)
	}
	return known
}

// simulatedGate is the health of an external agent for one invocation. Both healths get the same
// records, so their circuits are the same.
type simulatedGate struct {
	n     *node
	agent string
}

// Admit implements upstream.AgentGate.
func (g simulatedGate) Admit(actor.Time) upstream.Admission {
	return g.n.agentHealth(g.agent).admit(g.n, g.agent)
}

// Start implements upstream.AgentGate.
func (g simulatedGate) Start(now actor.Time) (probe bool, refusal *actor.Refusal) {
	h := g.n.agentHealth(g.agent)
	_, _ = h.plain.Start(now)
	return h.known.Start(now)
}

// Answering implements upstream.AgentGate.
func (g simulatedGate) Answering(now actor.Time) {
	h := g.n.agentHealth(g.agent)
	h.known.Answering(now)
	h.plain.Answering(now)
}

// Record implements upstream.AgentGate.
func (g simulatedGate) Record(now actor.Time, o *upstream.Outcome, probe bool) {
	h := g.n.agentHealth(g.agent)
	h.known.Record(now, o, probe)
	h.plain.Record(now, o, probe)
}

// upstreamState is the state that a process keeps for its upstreams. It is lost with the
// process.
type upstreamState struct {
	exchanges []*exchange
	backoffs  map[string]*upstream.Backoff
	pacings   map[string]*pacingJudge // by upstream, like backoffs
	health    map[string]*agentHealth
	judged    map[string]*judgedHealth // like health
}

// backoff returns the back-off shared by all calls to one upstream. That of an external agent has no
// circuit: its health has one.
func (n *node) backoff(upstreamName string, external bool) *upstream.Backoff {
	b := n.upstreams.backoffs[upstreamName]
	if b == nil {
		config, pacing := n.w.plan.Backoff, newPacingJudge(n.w)
		if external {
			config.NoCircuit, pacing.circuitless = true, true
		}
		b = upstream.NewBackoff(config)
		n.upstreams.backoffs[upstreamName], n.upstreams.pacings[upstreamName] = b, pacing
	}
	return b
}

// callModel starts the call of a model.
func (n *node) callModel(h *gatedEffect, op runtime.Model) {
	x := n.newExchange(h, op.Left, &op.Call)
	prompt, err := upstream.DecodePrompt(op.Body)
	if err != nil {
		n.w.fail(CodecRoundTrip, "prompt cannot be decoded: "+err.Error())
		return
	}
	n.w.addToCorpus(promptCodec, op.Body)
	prompt.OfferTools(op.Tools)
	prompt.Model = op.Name
	x.prompt, x.body = &prompt, op.Body
	n.checkAnswerTime(x, op.Left, "model_timeout_ms", n.w.plan.Limits.ModelTimeoutDefault)
	order, refusal := modelConfig(op.Name).Exchange(prompt, x.deadline, n.w.plan.Patience)
	x.respond = n.w.serveModel
	x.begin("model "+op.Name, n.backoff("model "+op.Name, false), order, refusal)
}

// invokeAgent starts the invocation of an external agent. It waits for the health of the
// agent as in production.
func (n *node) invokeAgent(h *gatedEffect, op runtime.Invoke) {
	w, x := n.w, n.newExchange(h, op.Left, &op.Call)
	target, err := upstream.DecodeTarget(op.Target)
	if err != nil {
		w.fail(CodecRoundTrip, "target cannot be decoded: "+err.Error())
		return
	}
	w.addToCorpus(targetCodec, op.Target)
	n.checkAnswerTime(x, op.Left, "invoke_timeout_ms", max(w.plan.Limits.InvokeTimeoutDefault, registeredInvokeTimeMax))
	in := upstream.InvocationOf(op.Name, &op.Call, w.mintToken(op.Call.ID, op.Call.To))
	if in.Messages, err = upstream.DecodeTranscript(op.Messages); err != nil {
		w.fail(CodecRoundTrip, "messages cannot be decoded: "+err.Error())
	}
	if err := secretBindings.Permit(target); err != nil {
		w.fail(NobodyAstray, fmt.Sprintf("%s may not invoke %s: %v", n.id, op.Name, err))
	}
	limits := w.plan.Patience
	limits.Retry = target.Retry.Or(limits.Retry)
	w.checkRetryPolicy(op.Name, limits.Retry)
	order, refusal := upstream.Agent{URL: target.URL, Auth: authSecret(target.AuthEnv)}.Exchange(in, target.Safe, x.deadline, limits)
	x.respond, x.nonIdempotent, x.repeats = w.serveExternalAgent, !target.Safe, op.Idempotent
	x.begin("agent "+op.Name, &upstream.InvocationPacer{Pacer: n.backoff("agent "+op.Name, true), Gate: simulatedGate{n, op.Name}}, order, refusal)
}

// newExchange registers an exchange for an effect. It first cancels an exchange with the
// same effect ID and attempt, which an earlier activation of an unjournaled actor has
// requested.
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

// begin starts the exchange, or ends it with the refusal if there is one.
func (x *exchange) begin(upstreamName string, pacer upstream.Pacer, order upstream.ExchangeConfig, refusal *actor.Refusal) {
	if refusal != nil {
		x.emit(x.outcome(actor.Answer{Refusal: refusal}))
		x.offerNext()
		return
	}
	x.machine, x.pacer, x.pacing = upstream.NewExchange(order), pacer, x.n.upstreams.pacings[upstreamName]
	x.judge = newExchangeJudge(x, order)
	x.receive(nil, upstream.Begin{})
}

// outcome returns the input that reports the answer to the cell.
func (x *exchange) outcome(a actor.Answer) runtime.Input {
	return runtime.Outcome{ID: x.id, Attempt: x.attempt, Answer: a}
}

// receive enqueues an input and processes the inbox.
func (x *exchange) receive(conn *upstreamConn, in upstream.Input) {
	x.inbox = append(x.inbox, connInput{conn, in})
	x.advance()
}

// advance processes the inbox in order, until there is output for the cell.
func (x *exchange) advance() {
	for len(x.outbox) == 0 && len(x.inbox) > 0 {
		a := x.inbox[0]
		x.inbox = x.inbox[1:]
		x.step(a)
	}
	x.offerNext()
	x.armTimer()
}

// step steps the production exchange with one input, and performs its ops.
func (x *exchange) step(a connInput) {
	w := x.n.w
	x.judge.input(a.conn, a.in)
	if in, ok := a.in.(upstream.Bytes); ok { // the buffer of a connection is used again
		in.Bytes = bytes.Clone(in.Bytes)
		a.in = in
		defer clear(in.Bytes)
	}
	ops := x.machine.Step(w.now, a.in, x.pacer, w.random())
	defer x.judge.stepped()
	for _, op := range ops {
		x.judge.op(op)
		switch op := op.(type) {
		case upstream.Send:
			x.conn = newUpstreamConn(x, op)
			x.judge.connected(x.conn)
			w.recordUpstream(x, "try", uint64(op.Attempt))
			if err := x.n.dial(op.Request); err != nil {
				x.conn.refuseDial(err)
				continue
			}
			x.respond(x.conn, op.Request)
		case upstream.Close:
			x.conn.closed = true
		case upstream.Forward:
			w.recordUpstream(x, "pass", uint64(x.conn.attempt))
			x.emitPiece(actor.Piece{Text: op.Delta.Text, State: op.Delta.State, Detail: op.Delta.Detail})
		case upstream.Retry:
			x.emitPiece(actor.Piece{Retry: op.Refusal(w.now)})
		case upstream.Ended:
			x.finish(op.Outcome)
		}
	}
}

func (x *exchange) finish(o upstream.Outcome) {
	if pacer, ok := x.pacer.(*upstream.InvocationPacer); ok {
		pacer.End(x.n.w.now, &o)
	}
	answer := o.Answer()
	if o.Refusal == nil {
		x.n.w.addToCorpus(completionCodec, answer.Parts[0].Bytes)
	}
	x.emit(x.outcome(answer))
}

func (x *exchange) emitPiece(p actor.Piece) {
	x.emit(runtime.Streamed{ID: x.id, Attempt: x.attempt, Piece: p})
}

// emit appends output for the cell, unless the exchange is done.
func (x *exchange) emit(in runtime.Input) {
	if !x.done {
		out := exchangeOutput{in: in}
		if x.conn != nil {
			out.try = x.conn.attempt
		}
		x.outbox = append(x.outbox, out)
	}
}

// armTimer schedules a tick for the next deadline of the exchange.
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

// offerNext enqueues the next output at the cell.
func (x *exchange) offerNext() {
	if len(x.outbox) == 0 || x.offered || !x.awaited {
		return
	}
	x.offered = true
	x.n.cells[x.cell].enqueue(input{orderGroup: unordered, in: x.outbox[0].in, try: x.outbox[0].try, onStepped: x.accepted})
}

// accepted is called after the cell has stepped with the offered output.
func (x *exchange) accepted() {
	if x.done {
		return
	}
	_, last := x.outbox[0].in.(runtime.Outcome)
	x.outbox, x.offered = x.outbox[1:], false
	if last {
		x.remove()
		return
	}
	x.advance()
}

// remove removes the exchange from the list of exchanges in progress.
func (x *exchange) remove() {
	x.done, x.outbox = true, nil
	all := x.n.upstreams.exchanges
	if i := slices.Index(all, x); i >= 0 {
		x.n.upstreams.exchanges = slices.Delete(all, i, i+1)
	}
}

// findExchange returns the exchange in progress for an effect, or nil.
func (n *node) findExchange(id actor.EffectID, attempt uint32) *exchange {
	for _, x := range n.upstreams.exchanges {
		if x.id == id && x.attempt == attempt {
			return x
		}
	}
	return nil
}

// adjustExchange replaces the deadline of an exchange, also if it waits for its gate.
func (n *node) adjustExchange(e *runtime.Effect, left actor.Duration) {
	for i := range n.gated {
		g := &n.gated[i].effect
		if op, ok := g.Op.(runtime.Invoke); ok && g.ID == e.ID && g.Attempt == e.Attempt {
			op.Left = left
			g.Op = op
		}
	}
	x := n.findExchange(e.ID, e.Attempt)
	if x == nil {
		return
	}
	x.deadline = n.w.now.Add(left)
	if x.machine != nil {
		x.receive(nil, upstream.Adjust{Deadline: x.deadline})
	}
}

// cancelExchange cancels an exchange. Later input for it has no effect.
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

// orphanExchanges detaches the exchanges of a cell, until its next incarnation awaits
// them.
func (n *node) orphanExchanges(cell uint16) {
	for _, x := range n.upstreams.exchanges {
		if x.cell == cell {
			x.orphan()
		}
	}
}

// orphan detaches the exchange from its cell. It is removed 1 s after its deadline
// unless an incarnation of the cell awaits it by then.
func (x *exchange) orphan() {
	x.awaited, x.offered = false, false
	x.n.after(max(x.deadline.Sub(x.n.w.now), 0)+time.Second, func() {
		if !x.awaited {
			x.remove()
		}
	})
}

// awaitExchange attaches the exchange of an earlier incarnation to the current one,
// which receives its output.
func (n *node) awaitExchange(e *runtime.Effect) {
	if x := n.findExchange(e.ID, e.Attempt); x != nil {
		x.awaited = true
		x.offerNext()
	}
}

// recordUpstream records an interaction of a node with an upstream for the specs.
func (w *Simulation) recordUpstream(x *exchange, what string, n uint64) {
	e := history.Event{Kind: history.Perform, At: x.n.clock.now(w.now), From: x.n.cells[x.cell].self, Call: x.id.Run, What: what,
		Step: x.id.Step, Index: x.id.Index, Attempt: x.attempt, N: n}
	if x.nonIdempotent && !(what == "act" && x.repeats) {
		e.Why = specs.Once
	}
	w.emit(e)
}

// random returns the next random number drawn by a node.
func (w *Simulation) random() uint64 {
	w.nodeDraws++
	return mix(w.seed, ^w.nodeDraws)
}

// onceMark returns the mark of an effect that MUST NOT be repeated, or "".
func onceMark(idempotent bool) string {
	if idempotent {
		return ""
	}
	return specs.Once
}

// newAgentHealth returns the health of an agent that was healthy at the given time.
func newAgentHealth(at actor.Time, circuit dispatcher.BreakerConfig) *agentHealth {
	fresh := upstream.NewHealth(at, circuit)
	return &agentHealth{known: fresh, plain: fresh}
}

// agentHealth returns the health of an external agent as the node knows it.
func (n *node) agentHealth(agent string) *agentHealth {
	h := n.upstreams.health[agent]
	if h == nil {
		h = newAgentHealth(n.w.now, n.w.plan.Breaker)
		n.upstreams.health[agent] = h
	}
	return h
}

// pollAgents polls the external agents for as long as the process lives. The first process
// of a node has polled them before, because faults often end before a new process polls.
func (n *node) pollAgents() {
	for i := range n.w.plan.Agents {
		def := &n.w.plan.Agents[i]
		if def.Kind != actor.External {
			continue
		}
		if n.process == 1 {
			n.upstreams.health[def.Name] = newAgentHealth(n.w.now.Add(-n.w.between(0, upstream.HeartbeatEvery)), n.w.plan.Breaker)
		}
		n.pollAgent(def.Name)
	}
}

// pollAgent schedules the next health request to an external agent. After each answer it
// schedules another one.
func (n *node) pollAgent(agent string) {
	w, h := n.w, n.agentHealth(agent)
	n.after(h.known.NextPoll().Sub(w.now), func() {
		external := upstream.Agent{URL: "http://" + agent + hostSuffix}
		if agent == externalNames[1] {
			external.Auth = authSecret(authEnv)
		}
		r, refusal := external.HealthRequest()
		if refusal != nil {
			w.fail(CodecRoundTrip, "no health request: "+refusal.Error())
			return
		}
		status, plain := 200, 200
		if err := n.dial(r); recordChange(w, NameAstray, true, err == nil, "%s cannot poll the health of %s: %v", n.id, agent, err) {
			status, plain = 0, 0
		} else if w.faultFires(AgentUnhealthy) && w.acts(AgentUnhealthy) {
			status = 503
		}
		h.known.RecordPoll(w.now, status)
		h.plain.RecordPoll(w.now, plain)
		h.counted = h.counted && status == plain
		n.judgedHealth(agent).recordPoll(w.now, status)
		n.pollAgent(agent)
	})
}

// pieceAttempt returns the attempt whose piece the input carries, or 0 if it carries
// none.
func pieceAttempt(in runtime.Input) uint32 {
	if s, ok := in.(runtime.Streamed); ok {
		return s.Attempt
	}
	return 0
}

// recordShown records for the specs that a piece of an attempt was shown to readers, or
// that pieces were retracted.
func (w *Simulation) recordShown(h *gatedEffect, e store.RunEvent) {
	if runs.TypeOf(e.Body) == runs.Attempt {
		w.recordPiece(h.cell, "take back", 0, 0, e)
	}
	if h.pieceAttempt > 0 && runs.TypeOf(e.Body) == runs.AgentStreamDelta {
		w.recordPiece(h.cell, "show", h.pieceAttempt, h.pieceTry, e)
	}
}

// recordRetracted records for the specs the pieces that a step retracts. A retraction
// that is lost in a crash is recorded too: the next incarnation MUST repeat it.
func (w *Simulation) recordRetracted(c *cell, effects []runtime.Effect) {
	for i := range effects {
		if op, ok := effects[i].Op.(runtime.Publish); ok && runs.TypeOf(op.Event.Body) == runs.Attempt {
			w.recordPiece(c, "take back", 0, 0, op.Event)
		}
	}
}

// recordPiece records for the specs that a piece was shown or retracted. The count of a
// retraction is the number of its event.
func (w *Simulation) recordPiece(c *cell, what string, attempt uint32, try int, e store.RunEvent) {
	event, err := runs.Decode(e.Body)
	if err != nil {
		w.fail(StreamsFold, fmt.Sprintf("event %d of run %s: %v", e.Seq, e.Run, err))
		return
	}
	n := e.Seq
	if event.Type == runs.Attempt {
		if n = event.Discards; n == 0 {
			return // no piece was shown
		}
		try = int(e.Seq)
	}
	w.emit(history.Event{Kind: history.Perform, At: c.n.clock.now(w.now), From: c.self, Call: e.Run, What: what, Step: event.Step, Index: event.Index,
		Attempt: attempt, Count: try, N: n})
}

// authEnv is the environment variable with the secret for one of the agents, and
// modelKey is the API key of one of the models.
const (
	authEnv  = upstream.AuthEnvPrefix + "XIA"
	modelKey = upstream.Secret("secret key of the second model")
)

// secretBindings are the addresses to which the operator has bound secrets.
var secretBindings = upstream.Bindings{authEnv: externalNames[1] + hostSuffix}

// authSecret returns the value of an environment variable of a node.
func authSecret(env string) upstream.Secret {
	if env == authEnv {
		return "secret shared by the nodes"
	}
	return ""
}

// modelConfig returns the configuration of a model. The two models differ in each setting.
func modelConfig(name string) upstream.Model {
	m := upstream.Model{URL: "http://" + name}
	if name == modelNames[1] {
		m.URL, m.Key, m.MaxTokensName = m.URL+":8080/v1", modelKey, "max_completion_tokens"
	}
	return m
}

// presentsSecret reports whether a request carries the secret in its authorization
// header.
func presentsSecret(r upstream.Request, s upstream.Secret) bool {
	return slices.ContainsFunc(r.Headers, func(h upstream.Header) bool { return h.Name == "authorization" && h.Value == "Bearer "+s.Reveal() })
}
