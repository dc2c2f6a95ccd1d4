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
	n       *node
	process uint64 // of the node
	cell    uint16
	id      actor.EffectID
	attempt uint32
	call    *actor.Call // on whose behalf
	until   actor.Time
	once    bool // asking twice may do harm
	machine *upstream.Exchange
	pace    *upstream.Backoff
	serve   func(*wire, upstream.Request) // who is asked
	wire    *wire                         // of the try that is out
	came    []arrival                     // and was not looked at yet
	out     []runtime.Input               // for the cell
	offered bool                          // the first of them is on its way
	awaited bool                          // by the incarnation that there is
	over    bool                          // nobody waits any more
	timer   actor.Time
}

// arrival is what came over a wire; nil: by the clock.
type arrival struct {
	wire *wire
	in   upstream.Input
}

// outside is what a node knows of those that it asks. It is lost with its process.
type outside struct {
	exchanges []*exchange
	paces     map[string]*upstream.Backoff
	health    map[string]*upstream.Health
}

// pace is the back-off that all who ask for one thing share.
func (n *node) pace(who string) *upstream.Backoff {
	b := n.outside.paces[who]
	if b == nil {
		b = upstream.NewBackoff(upstream.BackoffConfig{})
		n.outside.paces[who] = b
	}
	return b
}

// askModel has a model asked.
func (n *node) askModel(h *held, op runtime.Model) {
	x := n.newExchange(h, op.Left, &op.Call)
	prompt, err := upstream.DecodePrompt(op.Body)
	if err != nil {
		n.w.violate(CodecRoundTrip, "the prompt of a turn cannot be read: "+err.Error())
		return
	}
	n.w.keepSpecimen(promptCodec, op.Body)
	prompt.Model = op.Name
	order, refusal := modelAt(op.Name).Order(prompt, x.until, n.w.plan.Patience)
	x.serve = n.w.answerPrompt
	x.begin("model "+op.Name, order, refusal)
}

// invoke hands a call to an external agent, if that is healthy.
func (n *node) invoke(h *held, op runtime.Invoke) {
	w, x := n.w, n.newExchange(h, op.Left, &op.Call)
	target, err := upstream.DecodeTarget(op.Target)
	if err != nil {
		w.violate(CodecRoundTrip, "the target of a turn cannot be read: "+err.Error())
		return
	}
	w.keepSpecimen(targetCodec, op.Target)
	in := upstream.InvocationOf(op.Name, &op.Call, w.token(op.Call.ID, op.Call.To))
	order, refusal := upstream.Agent{URL: target.URL, Auth: authOf(target.AuthEnv)}.Order(in, op.Idempotent, x.until, w.plan.Patience)
	if refusal == nil {
		refusal = n.healthOf(op.Name).Refuse("agent "+op.Name, w.now)
	}
	x.serve, x.once = w.takeInvocation, !op.Idempotent
	x.begin("agent "+op.Name, order, refusal)
}

// newExchange gives up what an earlier life of an unjournaled actor had asked
// under the same name.
func (n *node) newExchange(h *held, left actor.Duration, call *actor.Call) *exchange {
	n.abandonExchange(&h.effect)
	x := &exchange{n: n, process: n.process, cell: h.c.index, id: h.effect.ID, attempt: h.effect.Attempt, call: call,
		until: n.w.now.Add(left), awaited: true}
	n.outside.exchanges = append(n.outside.exchanges, x)
	if h.c.gone && !h.again {
		x.orphan()
	}
	return x
}

func (x *exchange) begin(who string, order upstream.Order, refusal *actor.Refusal) {
	if refusal != nil {
		x.tell(x.outcome(actor.Answer{Refusal: refusal}))
		x.offer()
		return
	}
	x.machine, x.pace = upstream.NewExchange(order), x.n.pace(who)
	x.take(nil, upstream.Begin{})
}

func (x *exchange) outcome(a actor.Answer) runtime.Input {
	return runtime.Outcome{ID: x.id, Attempt: x.attempt, Answer: a}
}

// take brings in what came over a wire, or by the clock.
func (x *exchange) take(s *wire, in upstream.Input) {
	x.came = append(x.came, arrival{s, in})
	x.goOn()
}

// goOn looks at what came, one after the other, until the cell has a piece to take.
func (x *exchange) goOn() {
	for len(x.out) == 0 && len(x.came) > 0 {
		a := x.came[0]
		x.came = x.came[1:]
		x.step(a)
	}
	x.offer()
	x.arm()
}

func (x *exchange) step(a arrival) {
	w, before := x.n.w, x.machine.Late()
	ops := x.machine.Step(w.now, a.in, x.pace, w.chance())
	if a.wire != nil && a.wire.deaf && x.machine.Late() > before {
		w.hit(a.wire.late, "%s, which is given up", a.wire)
	}
	for _, op := range ops {
		switch op := op.(type) {
		case upstream.Send:
			x.wire = &wire{x: x, try: op.Attempt, half: never, hang: never, garbage: never}
			w.outward(x, "try", uint64(op.Attempt))
			if err := x.n.dial(op.Request); err != nil {
				x.wire.astray(err)
				continue
			}
			x.serve(x.wire, op.Request)
		case upstream.Close:
			x.wire.closed = true
		case upstream.PassOn:
			w.outward(x, "pass", uint64(x.wire.try))
			x.piece(actor.Piece{Text: op.Delta.Text, State: op.Delta.State, Detail: op.Delta.Detail})
		case upstream.Again:
			x.piece(actor.Piece{Retry: op.Failure.Refusal})
		case upstream.Ended:
			x.end(op.Outcome)
		}
	}
}

func (x *exchange) end(o upstream.Outcome) {
	if o.Refusal != nil {
		x.tell(x.outcome(actor.Answer{Refusal: o.Refusal}))
		return
	}
	body := o.Completion.Encode()
	x.n.w.keepSpecimen(completionCodec, body)
	x.tell(x.outcome(actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: body}}}))
}

func (x *exchange) piece(p actor.Piece) {
	x.tell(runtime.Streamed{ID: x.id, Attempt: x.attempt, Piece: p})
}

func (x *exchange) tell(in runtime.Input) {
	if !x.over {
		x.out = append(x.out, in)
	}
}

// arm has the exchange told the time when it is due.
func (x *exchange) arm() {
	if x.machine == nil || len(x.out) > 0 || x.over {
		return
	}
	due, ok := x.machine.NextDeadline()
	if !ok || x.timer != 0 && x.timer <= due {
		return
	}
	x.timer = due
	x.n.later(due.Sub(x.n.w.now), func() {
		if x.timer == due {
			x.timer = 0
			x.take(nil, upstream.Tick{})
		}
	})
}

// offer brings the next piece to the cell.
func (x *exchange) offer() {
	if len(x.out) == 0 || x.offered || !x.awaited {
		return
	}
	x.offered = true
	x.n.cells[x.cell].put(input{stream: anyOrder, in: x.out[0], taken: x.taken})
}

// taken says that the cell has stepped with what it was offered.
func (x *exchange) taken() {
	if x.over {
		return
	}
	_, last := x.out[0].(runtime.Outcome)
	x.out, x.offered = x.out[1:], false
	if last {
		x.forget()
		return
	}
	x.goOn()
}

// forget takes the exchange off the list of what is under way.
func (x *exchange) forget() {
	x.over, x.out = true, nil
	all := x.n.outside.exchanges
	if i := slices.Index(all, x); i >= 0 {
		x.n.outside.exchanges = slices.Delete(all, i, i+1)
	}
}

// exchange finds what is under way for an effect.
func (n *node) exchange(id actor.EffectID, attempt uint32) *exchange {
	for _, x := range n.outside.exchanges {
		if x.id == id && x.attempt == attempt {
			return x
		}
	}
	return nil
}

// abandonExchange gives an exchange up. What still comes for it changes nothing.
func (n *node) abandonExchange(e *runtime.Effect) {
	x := n.exchange(e.ID, e.Attempt)
	if x == nil {
		return
	}
	x.forget()
	if x.came = nil; x.machine != nil {
		x.step(arrival{in: upstream.Cancel{Reason: actor.Stopped}})
	}
}

// orphanExchanges notes that nobody takes what comes for a cell, until its next
// incarnation awaits it.
func (n *node) orphanExchanges(cell uint16) {
	for _, x := range n.outside.exchanges {
		if x.cell == cell {
			x.orphan()
		}
	}
}

// orphan has nobody take what comes, until somebody awaits it, or nobody can any more.
func (x *exchange) orphan() {
	x.awaited, x.offered = false, false
	x.n.later(max(x.until.Sub(x.n.w.now), 0)+time.Second, func() {
		if !x.awaited {
			x.forget()
		}
	})
}

// awaitExchange has an exchange of an incarnation before tell its pieces to the one that there is.
func (n *node) awaitExchange(e *runtime.Effect) {
	if x := n.exchange(e.ID, e.Attempt); x != nil {
		x.awaited = true
		x.offer()
	}
}

// outward tells the specs of what passes between a node and who stands behind it.
func (w *World) outward(x *exchange, what string, n uint64) {
	e := history.Event{Kind: history.Perform, At: x.n.clock.now(w.now), From: x.n.cells[x.cell].self, Call: x.id.Run, What: what,
		Step: x.id.Step, Index: x.id.Index, Attempt: x.attempt, N: n}
	if x.once {
		e.Why = specs.Once
	}
	w.tell(e)
}

// chance is the next of the numbers that nodes draw for themselves.
func (w *World) chance() uint64 {
	w.draws++
	return mix(w.seed, ^w.draws)
}

// once is the mark of an effect that must not be repeated.
func once(idempotent bool) string {
	if idempotent {
		return ""
	}
	return specs.Once
}

// healthOf is what a node knows of an external agent.
func (n *node) healthOf(agent string) *upstream.Health {
	h := n.outside.health[agent]
	if h == nil {
		fresh := upstream.NewHealth(n.w.now)
		h = &fresh
		n.outside.health[agent] = h
	}
	return h
}

// watchAgents polls the external agents, as long as the process lives.
func (n *node) watchAgents() {
	for i := range n.w.plan.Agents {
		if def := &n.w.plan.Agents[i]; def.Kind == actor.External {
			n.poll(def.Name)
		}
	}
}

func (n *node) poll(agent string) {
	w, h := n.w, n.healthOf(agent)
	n.later(h.NextPoll().Sub(w.now), func() {
		external := upstream.Agent{URL: "http://" + agent + domain}
		if agent == externalNames[1] {
			external.Auth = authOf(authEnv)
		}
		r, refusal := external.HealthRequest()
		if refusal != nil {
			w.violate(CodecRoundTrip, "an agent cannot be asked how it is: "+refusal.Error())
			return
		}
		status := 200
		if err := n.dial(r); err != nil {
			w.hit(NameAstray, "%s does not ask %s how it is: %v", n.id, agent, err)
			status = 0
		} else if w.fault(AgentUnhealthy) {
			w.hit(AgentUnhealthy, "%s tells %s that it is not well", agent, n.id)
			status = 503
		}
		h.Polled(w.now, status)
		n.poll(agent)
	})
}

// attemptOf is the attempt of which an input brings a piece; 0: it brings none.
func attemptOf(in runtime.Input) uint32 {
	if s, ok := in.(runtime.Streamed); ok {
		return s.Attempt
	}
	return 0
}

// shown tells the specs which piece of which attempt is shown.
func (w *World) shown(h *held, e store.RunEvent) {
	if h.shows > 0 && runs.TypeOf(e.Body) == runs.AgentStreamDelta {
		w.pieces(h.c, "show", h.shows, e)
	}
}

// tookBack tells them which pieces a step takes back. It does so even if a crash
// takes it back in turn: then the next incarnation has to do it again.
func (w *World) tookBack(c *cell, effects []runtime.Effect) {
	for i := range effects {
		if op, ok := effects[i].Op.(runtime.Publish); ok && runs.TypeOf(op.Event.Body) == runs.Attempt {
			w.pieces(c, "take back", 0, op.Event)
		}
	}
}

func (w *World) pieces(c *cell, what string, attempt uint32, e store.RunEvent) {
	event, err := runs.Decode(e.Body)
	if err != nil {
		w.violate(StreamsFold, fmt.Sprintf("event %d of run %s: %v", e.Seq, e.Run, err))
		return
	}
	n := e.Seq
	if event.Type == runs.Attempt {
		if n = event.Discards; n == 0 {
			return // nothing was shown
		}
	}
	w.tell(history.Event{Kind: history.Perform, At: c.n.clock.now(w.now), From: c.self, Call: e.Run, What: what, Step: event.Step, Index: event.Index,
		Attempt: attempt, N: n})
}

// authEnv is the variable in which a node has what it shows to one of the agents,
// and modelKey what it shows to one of the models.
const (
	authEnv  = upstream.AuthEnvPrefix + "XIA"
	modelKey = upstream.Secret("a key for the other")
)

// authOf is what a node's environment has under a name.
func authOf(env string) upstream.Secret {
	if env == authEnv {
		return "who shows this is a node"
	}
	return ""
}

// modelAt is how a model is reached: each in its way.
func modelAt(name string) upstream.Model {
	m := upstream.Model{URL: "http://" + name}
	if name == modelNames[1] {
		m.URL, m.Key, m.MaxTokensName = m.URL+":8080/v1", modelKey, "max_completion_tokens"
	}
	return m
}

// shows tells whether a request has a secret in its header.
func shows(r upstream.Request, s upstream.Secret) bool {
	return slices.ContainsFunc(r.Headers, func(h upstream.Header) bool { return h.Name == "authorization" && h.Value == "Bearer "+s.Reveal() })
}
