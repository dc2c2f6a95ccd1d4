// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// Agent is an external agent that exists.
type Agent struct {
	Name   string
	Target upstream.Target
}

// pollsMax agents are asked for their health at the same time.
const pollsMax = 16

// agents is what is known of external agents: of each its health, and how many
// invocations it has. Runs of an older definition may still invoke one that is
// not here any more, or at another endpoint; they are only counted.
type agents struct {
	mu      sync.Mutex
	backoff upstream.BackoffConfig
	known   map[string]*known
	pacers  map[string]*pacer // by endpoint, while somebody uses them
	busy    map[string]int    // invocations by agent
}

type known struct {
	Agent
	health  upstream.Health
	polling bool
	tally   *tally
}

func newAgents(backoff upstream.BackoffConfig) *agents {
	return &agents{backoff: backoff, known: map[string]*known{}, pacers: map[string]*pacer{}, busy: map[string]int{}}
}

// hold is the back-off of an endpoint, until it is let go.
func (s *agents) hold(url string) *pacer {
	p := s.pacers[url]
	if p == nil {
		p = newPacer(s.backoff)
		s.pacers[url] = p
	}
	p.users++
	return p
}

func (s *agents) letGo(url string) {
	if p := s.pacers[url]; p != nil {
		if p.users--; p.users == 0 {
			delete(s.pacers, url)
		}
	}
}

// invocation is one that may go.
type invocation struct {
	name, url string
	pace      *pacer
	tally     *tally
}

// begin counts one more invocation, or says why the agent is not asked.
func (s *agents) begin(name string, target upstream.Target, now actor.Time) (*invocation, *actor.Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[name]
	if k != nil && k.Target.URL == target.URL {
		if refusal := k.health.Refuse("agent "+name, now); refusal != nil {
			return nil, refusal
		}
	}
	limit := target.Concurrency
	if limit == 0 {
		limit = upstream.ConcurrencyDefault
	}
	t := &tally{}
	if k != nil {
		t = k.tally
	}
	if s.busy[name] >= limit {
		t.refused()
		return nil, full("agent", name, limit)
	}
	s.busy[name]++
	t.begin(0)
	return &invocation{name, target.URL, s.hold(target.URL), t}, nil
}

func (s *agents) end(i *invocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i.tally.end()
	if s.busy[i.name]--; s.busy[i.name] == 0 {
		delete(s.busy, i.name)
	}
	s.letGo(i.url)
}

// SetAgents replaces the external agents that exist. One that has just come, or
// has moved, is believed to be well until it shows otherwise.
func (o *Outbound) SetAgents(all []Agent) {
	s := o.agents
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make(map[string]*known, len(all))
	for _, a := range all {
		k := &known{Agent: a, health: upstream.NewHealth(o.now()), tally: &tally{}}
		s.hold(a.Target.URL)
		if before := s.known[a.Name]; before != nil {
			k.tally = before.tally
			if before.Target.URL == a.Target.URL {
				k.health, k.polling = before.health, before.polling
			}
		}
		next[a.Name] = k
	}
	for _, k := range s.known {
		s.letGo(k.Target.URL)
	}
	s.known = next
}

// Beat takes a heartbeat of an agent; false if there is none of that name.
func (o *Outbound) Beat(name string) bool {
	s := o.agents
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[name]
	if k == nil {
		return false
	}
	k.health.Beat(o.now())
	return true
}

// Healthy tells whether an agent would be invoked; false too if there is none of that name.
func (o *Outbound) Healthy(name string) bool {
	s := o.agents
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[name]
	return k != nil && k.health.Healthy(o.now())
}

// watch asks the agents for their health, each when it is due.
func (o *Outbound) watch() {
	room := make(chan struct{}, pollsMax)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next := o.agents.due(o.now())
		for _, a := range due {
			select {
			case room <- struct{}{}:
			case <-o.ctx.Done():
				return
			}
			o.work.Go(func() {
				defer func() { <-room }()
				o.agents.polled(a, o.poll(a), o.now())
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

// due are the agents to ask now, and how long it is until there are more. No
// agent is due sooner than HeartbeatEvery after it came or was asked, so nobody
// is forgotten who comes meanwhile.
func (s *agents) due(now actor.Time) (due []Agent, next time.Duration) {
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

// polled takes what came of asking, unless the agent has moved meanwhile: then it
// is somebody else who answers, and nobody was asked yet.
func (s *agents) polled(a Agent, status int, now actor.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.known[a.Name]; k != nil && k.polling {
		k.polling = false
		k.health.Polled(now, status)
	}
}

// poll asks one agent for its health; 0 is no answer.
func (o *Outbound) poll(a Agent) (status int) {
	auth, err := o.config.secret(a.Target.AuthEnv)
	if err != nil {
		return 0
	}
	r, refusal := upstream.Agent{URL: a.Target.URL, Auth: auth}.HealthRequest()
	if refusal != nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(o.ctx, upstream.HealthTimeout)
	defer cancel()
	request, err := newRequest(ctx, r)
	if err != nil {
		return 0
	}
	response, err := o.transport.RoundTrip(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, lingerBytes) // so that its connection serves again
	return response.StatusCode
}
