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
	mu            sync.Mutex
	backoffConfig upstream.BackoffConfig
	known         map[string]*knownAgent
	backoffs      map[string]*sharedBackoff // by endpoint, while somebody uses them
	invocations   map[string]int            // invocations by agent
}

type knownAgent struct {
	Agent
	health  upstream.Health
	polling bool
	stats   *statCounter
}

func newAgents(backoff upstream.BackoffConfig) *agents {
	return &agents{backoffConfig: backoff, known: map[string]*knownAgent{}, backoffs: map[string]*sharedBackoff{}, invocations: map[string]int{}}
}

// retainBackoff is the back-off of an endpoint, until it is let go.
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

// invocation is one that may go.
type invocation struct {
	name, url string
	backoff   *sharedBackoff
	stats     *statCounter
}

// acquire counts one more invocation, or says why the agent is not asked.
func (s *agents) acquire(name string, target upstream.Target, now actor.Time) (*invocation, *actor.Refusal) {
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
	t := &statCounter{}
	if k != nil {
		t = k.stats
	}
	if s.invocations[name] >= limit {
		t.countRefused()
		return nil, busyRefusal("agent", name, limit)
	}
	s.invocations[name]++
	t.acquire(0)
	return &invocation{name, target.URL, s.retainBackoff(target.URL), t}, nil
}

func (s *agents) release(i *invocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i.stats.release()
	if s.invocations[i.name]--; s.invocations[i.name] == 0 {
		delete(s.invocations, i.name)
	}
	s.releaseBackoff(i.url)
}

// SetAgents replaces the external agents that exist. One that has just come, or
// has moved, is believed to be well until it shows otherwise.
func (o *Outbound) SetAgents(all []Agent) {
	s := o.agents
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make(map[string]*knownAgent, len(all))
	for _, a := range all {
		k := &knownAgent{Agent: a, health: upstream.NewHealth(o.now()), stats: &statCounter{}}
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

// Heartbeat takes a heartbeat of an agent; false if there is none of that name.
func (o *Outbound) Heartbeat(name string) bool {
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

// pollAgents asks the agents for their health, each when it is due.
func (o *Outbound) pollAgents() {
	room := make(chan struct{}, pollsMax)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next := o.agents.takeDue(o.now())
		for _, a := range due {
			select {
			case room <- struct{}{}:
			case <-o.ctx.Done():
				return
			}
			o.work.Go(func() {
				defer func() { <-room }()
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

// takeDue are the agents to ask now, and how long it is until there are more. No
// agent is due sooner than HeartbeatEvery after it came or was asked, so nobody
// is forgotten who comes meanwhile.
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

// recordPoll takes what came of asking, unless the agent has moved meanwhile: then it
// is somebody else who answers, and nobody was asked yet.
func (s *agents) recordPoll(a Agent, status int, now actor.Time) {
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
	_, _ = io.CopyN(io.Discard, response.Body, drainBytesMax) // so that its connection serves again
	return response.StatusCode
}
