// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/shares"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/upstream"
)

// Outbound calls models, external agents and tools. It implements engine.Outbound.
type Outbound struct {
	config    Config
	log       *slog.Logger
	started   time.Time
	dialer    *dialer
	transport *http.Transport
	models    map[string]*model
	agents    *agents
	tools     toolSet
	results   resultCache
	batches   batches

	ctx        context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup // exchanges, their attempts, and health polls
	mu         sync.Mutex
	open       load             // open exchanges
	principals map[string]*load // likewise, by principal
	closed     bool
}

// model is a configured model with its back-off and statistics.
type model struct {
	name     string
	config   Model
	next     []*model // asked in turn if this one is not available
	endpoint upstream.Model
	price    upstream.Price
	patience upstream.AttemptLimits
	backoff  *sharedBackoff
	stats    statCounter
	queue    shares.Queue
	refusals memberRefusals
}

// New validates the configuration, reads the keys of the models from the
// environment, and starts the health polls of agents added later.
func New(config Config) (*Outbound, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("outbound: %w", err)
	}
	o := &Outbound{config: config.withDefaults(), started: time.Now(), principals: map[string]*load{}, tools: toolSet{known: map[string]*tool{}}, batches: batches{open: map[batchKey]*batch{}}}
	o.log = o.config.Logger
	d, err := newDialer(&o.config)
	if err != nil {
		return nil, fmt.Errorf("outbound: %w", err)
	}
	o.dialer, o.transport = d, d.transport(&o.config)
	if o.models, err = newModels(&o.config); err != nil {
		return nil, fmt.Errorf("outbound: %w", err)
	}
	for _, err := range o.config.UnreachableModels() {
		o.log.Warn(err.Error())
	}
	for _, name := range o.Models() {
		if m := o.models[name]; m.endpoint.Key != "" && m.endpoint.Plaintext() {
			o.log.Warn("the key of a model is sent unencrypted over plain http", "model", name)
		}
	}
	o.agents = newAgents(o.config.Backoff)
	o.ctx, o.cancel = context.WithCancel(context.Background())
	o.work.Go(o.pollAgents)
	return o, nil
}

func newModels(config *Config) (map[string]*model, error) {
	models := map[string]*model{upstream.ScriptName: {name: upstream.ScriptName, config: Model{Model: upstream.ScriptName},
		endpoint: upstream.Model{URL: "http://" + upstream.ScriptName}, patience: config.Patience, backoff: newSharedBackoff(config.Backoff)}}
	for name, c := range config.Models {
		key, err := config.secret(c.KeyEnv)
		if err != nil {
			return nil, fmt.Errorf("models.%s.key_env: %w", name, err)
		}
		headers, err := config.headers(&c)
		if err != nil {
			return nil, fmt.Errorf("models.%s.header_env.%w", name, err)
		}
		if c.Model == "" {
			c.Model = name
		}
		patience := config.Patience
		if c.HeadTimeout > 0 {
			patience.Head = c.HeadTimeout
		}
		if c.IdleTimeout > 0 {
			patience.Idle = c.IdleTimeout
		}
		patience.Retry = c.retryPolicy().Or(patience.Retry)
		price, err := c.Price()
		if err != nil {
			return nil, fmt.Errorf("models.%s.%w", name, err)
		}
		models[name] = &model{name: name, config: c, price: price, patience: patience, backoff: newSharedBackoff(config.Backoff),
			endpoint: upstream.Model{URL: c.URL, Key: key, Headers: headers, MaxTokensName: c.MaxTokensName, Omit: c.Omit}}
	}
	for name, c := range config.Models {
		for _, other := range c.Fallback {
			models[name].next = append(models[name].next, models[other])
		}
	}
	return models, nil
}

// Close aborts all exchanges and closes all connections. When it returns, no
// goroutine remains, and later calls are refused.
func (o *Outbound) Close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.cancel()
	o.work.Wait()
	o.transport.CloseIdleConnections()
}

// now returns the wall time at start plus the monotonic time since. A back-off
// requires a clock that never goes backwards.
func (o *Outbound) now() actor.Time {
	return actor.Time(o.started.UnixNano()).Add(time.Since(o.started))
}

// Models returns the names of the models in order.
func (o *Outbound) Models() []string { return slices.Sorted(maps.Keys(o.models)) }

// Model sends a prompt to a model and returns its completion. It calls onPiece
// with each piece of the answer as the piece arrives.
func (o *Outbound) Model(ctx context.Context, op runtime.Model, onPiece func(actor.Piece)) actor.Answer {
	if op.Volatile {
		return o.model(ctx, op, onPiece, nil)
	}
	x, end := o.record(op.Name, op.Call.To, op.Call.ID)
	if end == nil {
		return o.model(ctx, op, onPiece, nil)
	}
	x.Request = op.Body
	answer := o.model(ctx, op, onPiece, x)
	x.Refusal = answer.Refusal
	end()
	return answer
}

// model is Model for a request whose record is x, nil if there is none.
func (o *Outbound) model(ctx context.Context, op runtime.Model, onPiece func(actor.Piece), x *Recorded) actor.Answer {
	m, ok := o.models[op.Name]
	if !ok {
		return refusedAnswer(o.unknownModel(op.Name))
	}
	prompt, err := upstream.DecodePrompt(op.Body)
	if err != nil {
		return refusedAnswer(actor.Refuse(actor.Invalid, "model %s: %v", m.name, err))
	}
	prompt.OfferTools(op.Tools)
	outcome := o.inTurn(m, o.deadline(ctx, op.Left), onPiece, func(t turn, onPiece func(actor.Piece)) *upstream.Outcome {
		return o.prompt(ctx, t, &op, prompt, onPiece, x)
	})
	return outcome.Answer()
}

// prompt sends a prompt to a model.
func (o *Outbound) prompt(ctx context.Context, t turn, op *runtime.Model, prompt upstream.Prompt, onPiece func(actor.Piece), x *Recorded) *upstream.Outcome {
	m := t.model
	prompt.Model = m.config.Model
	prompt.MaxTokens = cmp.Or(prompt.MaxTokens, m.config.MaxTokens, int(op.AnswerTokens))
	if prompt.Temperature == nil {
		prompt.Temperature = m.config.Temperature
	}
	endpoint := m.refusals.apply(m.endpoint)
	endpoint.Trace = o.config.traceIn(&op.Call, runs.SpanOf(op.Call.ID))
	order, refusal := endpoint.Exchange(prompt, t.deadline, t.limits())
	if refusal != nil {
		return &upstream.Outcome{Refusal: refusal}
	}
	x.setRequest(m, order.Request)
	release, refusal := o.acquireModel(ctx, m, op.Call.Principal, t.left())
	if refusal != nil {
		return &upstream.Outcome{Refusal: refusal}
	}
	defer release()
	var roundTripper http.RoundTripper = o.transport
	if m.name == upstream.ScriptName {
		roundTripper = scriptTransport{prompt, o.config.Pace}
	}
	outcome := o.runExchange(ctx, order, roundTripper, t.pacer(), &m.stats, nil, onPiece)
	m.setCost(outcome)
	o.remember(m, outcome)
	x.setOutcome(outcome)
	return outcome
}

// Costs returns what answers of the models can cost.
func (o *Outbound) Costs() map[string]runtime.ModelCost {
	all := map[string]runtime.ModelCost{}
	for name, m := range o.models {
		all[name] = m.cost()
	}
	return all
}

// setCost adds to an answer what it cost: a later change of the price does not change it.
func (m *model) setCost(o *upstream.Outcome) {
	o.Completion.Usage = m.price.Priced(o.Completion.Usage)
}

// traceIn returns the trace of a request of a call: that of its client, or within a span of this server.
func (c *Config) traceIn(call *actor.Call, span runs.SpanID) string {
	if !c.Spans {
		return call.Trace
	}
	return upstream.TraceIn(call, span)
}

func (o *Outbound) unknownModel(name string) *actor.Refusal {
	r := actor.Refuse(actor.ModelNotFound, "unknown model %.80q: want one of %s; the table [models] of the configuration has the others", name, joinNames(o.Models()))
	r.Field = runtime.AbsentField
	return r
}

// acquireModel admits an exchange with a model once it is its turn. The caller MUST release it.
func (o *Outbound) acquireModel(ctx context.Context, m *model, principal string, left actor.Duration) (release func(), refusal *actor.Refusal) {
	if refusal := o.acquire(principal); refusal != nil {
		return nil, refusal
	}
	limit := cmp.Or(m.config.Concurrency, ModelConcurrency)
	waiting, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	if err := m.queue.Acquire(waiting, principal, queueBounds(limit)); err != nil {
		o.release(principal)
		return nil, queueRefusal("model", m.name, limit, err, m.stats.refuse(o.now()))
	}
	m.stats.acquire(0, o.now())
	return func() {
		m.stats.release()
		m.queue.Release(principal)
		o.release(principal)
	}, nil
}

// Invoke sends a call to an external agent and returns its answer. It calls
// onPiece with each piece of the answer as the piece arrives. A duration received
// from adjusted replaces the time left; the deadline of ctx, if any, is the latest.
func (o *Outbound) Invoke(ctx context.Context, op runtime.Invoke, adjusted <-chan actor.Duration, onPiece func(actor.Piece)) actor.Answer {
	target, err := upstream.DecodeTarget(op.Target)
	if err != nil {
		return refusedAnswer(actor.Refuse(actor.Invalid, "agent %s: %v", op.Name, err))
	}
	if err := o.config.Auth.Permit(target); err != nil {
		return refusedAnswer(actor.Refuse(actor.Rejected, "agent %s: %v", op.Name, err))
	}
	agent, err := o.config.agentOf(target)
	if err != nil {
		return refusedAnswer(actor.Refuse(actor.Unavailable, "agent %s: %v", op.Name, err))
	}
	var token upstream.Secret
	if o.config.Token != nil {
		token = upstream.Secret(o.config.Token(op.Call.ID, op.Attempt, op.Call.To))
	}
	invocation := upstream.InvocationOf(op.Name, &op.Call, token)
	if o.config.Spans {
		invocation.Trace = o.config.traceIn(&op.Call, runs.SpanOf(op.Call.ID))
	}
	if invocation.Messages, err = upstream.DecodeTranscript(op.Messages); err != nil {
		return refusedAnswer(actor.Refuse(actor.Invalid, "agent %s: messages: %v", op.Name, err))
	}
	order, refusal := agent.Exchange(invocation, target.Safe,
		o.deadline(ctx, op.Left), upstream.AttemptLimits{Head: o.config.Patience.Head, Idle: o.config.Patience.Idle, Retry: target.Retry.Or(o.config.Patience.Retry)})
	if refusal != nil {
		return refusedAnswer(refusal)
	}
	if refusal := o.acquire(op.Call.Principal); refusal != nil {
		return refusedAnswer(refusal)
	}
	defer o.release(op.Call.Principal)
	waiting, cancel := context.WithTimeout(ctx, op.Left)
	a, refusal := o.agents.acquire(waiting, op.Call.Principal, op.Name, target, o.now)
	if cancel(); refusal != nil {
		return refusedAnswer(refusal)
	}
	defer o.agents.release(a)
	pacer := &upstream.InvocationPacer{Pacer: a.backoff, Gate: healthGate{o.agents, op.Name, target.URL}}
	outcome := o.runExchange(ctx, order, o.transport, pacer, a.stats, adjusted, onPiece)
	pacer.End(o.now(), outcome)
	return outcome.Answer()
}

// deadline returns the time by which an answer is due: the earlier of the
// deadline of ctx and the end of the time left.
func (o *Outbound) deadline(ctx context.Context, left actor.Duration) actor.Time {
	if at, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(at))
	}
	return o.now().Add(left)
}

// acquire admits one more exchange, or refuses it if Outbound is closed or at its
// limit. A principal has a limit of its own, so that agents which never answer
// cannot stop the work of the others.
func (o *Outbound) acquire(principal string) *actor.Refusal {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return actor.RefuseUnavailable(time.Second, "this node is stopping")
	}
	if retryAfter := o.open.acquire(o.config.ExchangesMax, o.now()); retryAfter > 0 {
		return actor.RefuseBusy(actor.ScopeNode, retryAfter, "%d requests to models, agents and tools are open, which is the limit", o.open.count)
	}
	p := o.principals[principal]
	if p == nil {
		p = &load{}
		o.principals[principal] = p
	}
	if retryAfter := p.acquire(o.config.PrincipalExchangesMax, o.now()); retryAfter > 0 {
		o.open.count--
		return actor.RefuseBusy(actor.ScopeCaller, retryAfter, "%d requests of this user to models, agents and tools are open, which is the limit for one user", p.count)
	}
	o.work.Add(1)
	return nil
}

func (o *Outbound) release(principal string) {
	o.mu.Lock()
	o.open.release()
	p := o.principals[principal]
	if p.release(); p.count == 0 {
		delete(o.principals, principal)
	}
	o.mu.Unlock()
	o.work.Done()
}

// load is a bounded number of open exchanges.
type load struct {
	count    int
	done     uint64 // exchanges that have ended
	turnover actor.Turnover
}

// acquire counts one more exchange and returns 0. If limit exchanges are open, it counts
// none and returns the retry delay.
func (l *load) acquire(limit int, now actor.Time) actor.Duration {
	if l.count >= limit {
		return l.turnover.RetryAfter(now, l.done, random())
	}
	l.count++
	return 0
}

func (l *load) release() {
	l.count--
	l.done++
}

// Numbers of requests that may wait for an upstream, as multiples of those that it may have open:
// of all users, and of one.
const (
	queueFactor     = 4
	userQueueFactor = 3
)

// queueBounds returns the bounds of the queue of an upstream that has limit requests open.
func queueBounds(limit int) shares.QueueBounds {
	b := shares.PlacesOf(limit)
	b.Waiting, b.Each = queueFactor*limit, userQueueFactor*limit
	return b
}

// queueRefusal returns the refusal of a request that a model, agent or tool at its limit did
// not take, or not in time.
func queueRefusal(kind, name string, limit int, err error, retryAfter actor.Duration) *actor.Refusal {
	var queue shares.Full
	switch {
	case errors.As(err, &queue) && queue.Scope == actor.ScopeCaller:
		return actor.RefuseBusy(queue.Scope, retryAfter, "%s %s is at its limit of concurrent requests (%d), and %d of this user wait, which is the limit for one user", kind, name, limit, userQueueFactor*limit)
	case errors.As(err, &queue):
		return actor.RefuseBusy(queue.Scope, retryAfter, "%s %s is at its limit of concurrent requests (%d), and %d wait", kind, name, limit, queueFactor*limit)
	}
	return actor.RefuseBusy(actor.ScopeCallee, retryAfter, "%s %s is at its limit of concurrent requests (%d): no place became free in time", kind, name, limit)
}

func refusedAnswer(refusal *actor.Refusal) actor.Answer { return actor.Answer{Refusal: refusal} }

// joinNames joins at most 20 names and states the number of the others.
func joinNames(names []string) string {
	const namesMax = 20
	if len(names) > namesMax {
		return strings.Join(names[:namesMax], ", ") + fmt.Sprintf(" and %d more", len(names)-namesMax)
	}
	return strings.Join(names, ", ")
}

// sharedBackoff is the back-off shared by all exchanges with one upstream.
type sharedBackoff struct {
	mu      sync.Mutex
	backoff *upstream.Backoff
	refs    int // number of registered agents and open invocations that use it; guarded by agents.mu
}

func newSharedBackoff(config upstream.BackoffConfig) *sharedBackoff {
	return &sharedBackoff{backoff: upstream.NewBackoff(config)}
}

// Admit implements upstream.Pacer.
func (p *sharedBackoff) Admit(now actor.Time, w upstream.Waiter, draw uint64) upstream.Admission {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backoff.Admit(now, w, draw)
}

// Report implements upstream.Pacer.
func (p *sharedBackoff) Report(now actor.Time, r upstream.Report, draw uint64) upstream.Advice {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backoff.Report(now, r, draw)
}

// random returns a number from the process-wide generator, which the system
// seeded.
func random() uint64 { return rand.Uint64() }
