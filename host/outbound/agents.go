// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/shares"
	"github.com/troupe-run/troupe/upstream"
)

// Agent is a registered external agent.
type Agent struct {
	Name   string
	Target upstream.Target
}

// pollsMax is the maximum number of concurrent health polls.
const pollsMax = 16

// agents tracks the health and the open invocations of external agents. A run
// of an older definition may still invoke an agent that is no longer registered
// or that is now registered at another endpoint. Such invocations are limited
// in number, but do not depend on the health of the agent.
type agents struct {
	mu            sync.Mutex
	backoffConfig upstream.BackoffConfig
	known         map[string]*knownAgent
	backoffs      map[string]*sharedBackoff // by endpoint URL, while referenced
	queues        map[string]*agentQueue    // by agent, while it has invocations
}

type knownAgent struct {
	Agent
	health  upstream.Health
	polling bool
	stats   *statCounter
}

func newAgents(backoff upstream.BackoffConfig) *agents {
	backoff.NoCircuit = true // each agent has a circuit of its own, also if several share an endpoint
	return &agents{backoffConfig: backoff, known: map[string]*knownAgent{}, backoffs: map[string]*sharedBackoff{}, queues: map[string]*agentQueue{}}
}

// agentQueue is the queue of an agent. refs counts its invocations, open and waiting.
type agentQueue struct {
	shares.Queue
	refs int
}

// retainBackoff returns the back-off of an endpoint and adds a reference to it,
// which releaseBackoff removes. The caller holds mu.
func (s *agents) retainBackoff(url string) *sharedBackoff {
	p := s.backoffs[url]
	if p == nil {
		p = newSharedBackoff(s.backoffConfig)
		s.backoffs[url] = p
	}
	p.refs++
	return p
}

func (s *agents) releaseBackoff(url string) {
	if p := s.backoffs[url]; p != nil {
		if p.refs--; p.refs == 0 {
			delete(s.backoffs, url)
		}
	}
}

// invocation is an admitted invocation. It MUST be released.
type invocation struct {
	name, user, url string
	backoff         *sharedBackoff
	stats           *statCounter
	queue           *agentQueue
}

// healthGate is the health of an agent for one invocation. An invocation of an agent that is no
// longer registered at that endpoint depends on no health.
type healthGate struct {
	agents    *agents
	name, url string
}

// use calls f with the health of the agent while it holds mu.
func (g healthGate) use(f func(*upstream.Health)) {
	g.agents.mu.Lock()
	defer g.agents.mu.Unlock()
	if k := g.agents.known[g.name]; k != nil && k.Target.URL == g.url {
		f(&k.health)
	}
}

// Admit implements upstream.AgentGate.
func (g healthGate) Admit(now actor.Time) (pass upstream.Admission) {
	g.use(func(h *upstream.Health) { pass = h.Admit(now) })
	return pass
}

// Start implements upstream.AgentGate.
func (g healthGate) Start(now actor.Time) (probe bool, refusal *actor.Refusal) {
	g.use(func(h *upstream.Health) { probe, refusal = h.Start(now) })
	return probe, refusal
}

// Answering implements upstream.AgentGate.
func (g healthGate) Answering(now actor.Time) {
	g.use(func(h *upstream.Health) { h.Answering(now) })
}

// Record implements upstream.AgentGate.
func (g healthGate) Record(now actor.Time, o *upstream.Outcome, probe bool) {
	g.use(func(h *upstream.Health) { h.Record(now, o, probe) })
}

// acquire admits an invocation of a user once the agent is below its limit. It refuses the
// invocation if too many wait already, or if ctx ends first.
func (s *agents) acquire(ctx context.Context, user, name string, target upstream.Target, now func() actor.Time) (*invocation, *actor.Refusal) {
	s.mu.Lock()
	k := s.known[name]
	limit := target.Concurrency
	if limit == 0 {
		limit = upstream.ConcurrencyDefault
	}
	stats := &statCounter{}
	if k != nil {
		stats = k.stats
	}
	q := s.queues[name]
	if q == nil {
		q = &agentQueue{}
		s.queues[name] = q
	}
	q.refs++
	i := &invocation{name, user, target.URL, s.retainBackoff(target.URL), stats, q}
	s.mu.Unlock()
	if err := q.Acquire(ctx, user, queueBounds(limit)); err != nil {
		s.drop(i)
		return nil, queueRefusal("agent", name, limit, err, stats.refuse(now()))
	}
	stats.acquire(0, now())
	return i, nil
}

// drop removes the references of an invocation.
func (s *agents) drop(i *invocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.queue.refs--; i.queue.refs == 0 {
		delete(s.queues, i.name)
	}
	s.releaseBackoff(i.url)
}

func (s *agents) release(i *invocation) {
	i.stats.release()
	i.queue.Release(i.user)
	s.drop(i)
}

// SetAgents replaces the registered agents. A new agent, or one with a new
// endpoint, is considered healthy until a poll shows otherwise.
func (o *Outbound) SetAgents(all []Agent) {
	s := o.agents
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make(map[string]*knownAgent, len(all))
	for _, a := range all {
		k := &knownAgent{Agent: a, health: upstream.NewHealth(o.now(), dispatcher.AgentBreaker()), stats: &statCounter{}}
		s.retainBackoff(a.Target.URL)
		if before := s.known[a.Name]; before != nil {
			k.stats = before.stats
			if before.Target.URL == a.Target.URL {
				k.health, k.polling = before.health, before.polling
			}
		}
		next[a.Name] = k
	}
	for _, k := range s.known {
		s.releaseBackoff(k.Target.URL)
	}
	s.known = next
}

// resetBackoff forgets the failures of an agent that has become healthy, so that it is
// invoked at once. The parameter before reports whether it was healthy until now. The
// caller holds mu.
func (s *agents) resetBackoff(k *knownAgent, before bool, now actor.Time) {
	if before || !k.health.Healthy(now) {
		return
	}
	if p := s.backoffs[k.Target.URL]; p != nil {
		p.mu.Lock()
		p.backoff = upstream.NewBackoff(s.backoffConfig)
		p.mu.Unlock()
	}
}

// Permit returns an error if the secret in a variable may not be sent to a URL.
func (o *Outbound) Permit(url, authEnv string) error {
	return o.config.Permit(url, authEnv)
}

// Permit returns an error if the secret in a variable may not be sent to a URL.
func (c *Config) Permit(url, authEnv string) error {
	return c.Auth.Permit(upstream.Target{URL: url, AuthEnv: authEnv})
}

// CheckAddress returns an error if the host of a URL is an address that this node may not reach.
// Names are checked when they are called.
func (o *Outbound) CheckAddress(url string) error { return o.dialer.egress.CheckURL(url) }

// Heartbeat records a heartbeat of an agent. It reports whether an agent of that
// name exists.
func (o *Outbound) Heartbeat(name string) bool {
	s := o.agents
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[name]
	if k == nil {
		return false
	}
	before := k.health.Healthy(o.now())
	k.health.Heartbeat(o.now())
	s.resetBackoff(k, before, o.now())
	return true
}

// LastSeen returns the time of the last registration, heartbeat or successful poll of
// an agent since the start; 0 if there was none, or there is no agent of that name.
func (o *Outbound) LastSeen(name string) actor.Time {
	s := o.agents
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.known[name]; k != nil && k.health.Contacted() {
		return k.health.LastSeen()
	}
	return 0
}

// Healthy reports whether an agent is registered and healthy.
func (o *Outbound) Healthy(name string) bool {
	s := o.agents
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[name]
	return k != nil && k.health.Healthy(o.now())
}

// Circuit returns the name of the state of the circuit breaker of an agent, or "" if there is no agent
// of that name.
func (o *Outbound) Circuit(name string) string {
	s := o.agents
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[name]
	if k == nil {
		return ""
	}
	state, _ := k.health.Circuit(o.now())
	return state.String()
}

// CircuitStat is the circuit breaker of an agent.
type CircuitStat struct {
	Agent  string
	Open   bool // it is open or half-open
	Opened uint64
}

// Circuits returns the circuit breaker of each registered agent, in order of their names.
func (o *Outbound) Circuits() []CircuitStat {
	s := o.agents
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]CircuitStat, 0, len(s.known))
	for _, name := range slices.Sorted(maps.Keys(s.known)) {
		state, opened := s.known[name].health.Circuit(o.now())
		all = append(all, CircuitStat{name, state != dispatcher.Closed, opened})
	}
	return all
}

// pollAgents polls the health of each agent when it is due, until Close.
func (o *Outbound) pollAgents() {
	slots := make(chan struct{}, pollsMax)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next := o.agents.takeDue(o.now())
		for _, a := range due {
			select {
			case slots <- struct{}{}:
			case <-o.ctx.Done():
				return
			}
			o.work.Go(func() {
				defer func() { <-slots }()
				o.agents.recordPoll(a, o.poll(a), o.now())
			})
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-o.ctx.Done():
			return
		}
	}
}

// takeDue returns the agents to poll now and the time until the next poll. An
// agent is due HeartbeatEvery after it was added or last polled. The result
// next is at most HeartbeatEvery, so an agent added during the wait is not
// polled late.
func (s *agents) takeDue(now actor.Time) (due []Agent, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = upstream.HeartbeatEvery
	for _, k := range s.known {
		switch wait := k.health.NextPoll().Sub(now); {
		case k.polling:
		case wait <= 0:
			k.polling = true
			due = append(due, k.Agent)
		default:
			next = min(next, wait)
		}
	}
	return due, next
}

// recordPoll records the result of a poll. It ignores the result if the agent's
// endpoint has changed since, because the result concerns the old endpoint.
func (s *agents) recordPoll(a Agent, status int, now actor.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.known[a.Name]; k != nil && k.polling {
		k.polling = false
		before := k.health.Healthy(now)
		k.health.RecordPoll(now, status)
		s.resetBackoff(k, before, now)
	}
}

// poll polls the health of one agent and returns the HTTP status, or 0 if it got
// no response.
func (o *Outbound) poll(a Agent) (status int) {
	agent, err := o.config.agentOf(a.Target)
	if err != nil || o.config.Auth.Permit(a.Target) != nil {
		return 0
	}
	r, refusal := agent.HealthRequest()
	if refusal != nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(o.ctx, upstream.HealthTimeout)
	defer cancel()
	request, err := newRequest(ctx, r, o.config.Server)
	if err != nil {
		return 0
	}
	response, err := o.transport.RoundTrip(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, drainBytesMax) // so that the connection can be reused
	return response.StatusCode
}
