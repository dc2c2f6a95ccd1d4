// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
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
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/upstream"
)

// Outbound asks models and external agents. It is an engine.Outbound.
type Outbound struct {
	config    Config
	log       *slog.Logger
	started   time.Time
	dialer    *dialer
	transport *http.Transport
	models    map[string]*model
	agents    *agents

	ctx        context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup // exchanges, their attempts, and who watches agents
	mu         sync.Mutex
	inProgress int // exchanges under way
	closed     bool
}

// model is one of the models that this node may ask.
type model struct {
	name     string
	config   Model
	endpoint upstream.Model
	patience upstream.Patience
	backoff  *sharedBackoff
	stats    statCounter
}

// New checks the configuration, finds the models' keys, and begins to watch the
// agents that it will be told of.
func New(config Config) (*Outbound, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("outbound: %w", err)
	}
	o := &Outbound{config: config.withDefaults(), started: time.Now()}
	o.log = o.config.Logger
	d, err := newDialer(&o.config)
	if err != nil {
		return nil, fmt.Errorf("outbound: %w", err)
	}
	o.dialer, o.transport = d, d.transport(&o.config)
	if o.models, err = newModels(&o.config); err != nil {
		return nil, fmt.Errorf("outbound: %w", err)
	}
	for _, name := range o.Models() {
		if m := o.models[name]; m.endpoint.Key != "" && m.endpoint.Plain() {
			o.log.Warn("the key of a model goes over plain http, where others may read it", "model", name)
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
		models[name] = &model{name: name, config: c, patience: patience, backoff: newSharedBackoff(config.Backoff),
			endpoint: upstream.Model{URL: c.URL, Key: key, MaxTokensName: c.MaxTokensName}}
	}
	return models, nil
}

// Close gives up what is under way and closes all connections. No goroutine is
// left when it returns, and nothing more is asked.
func (o *Outbound) Close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.cancel()
	o.work.Wait()
	o.transport.CloseIdleConnections()
}

// now is the time of this process: that of the wall when it began, and from
// there on what has passed. What a back-off counts in must not go back.
func (o *Outbound) now() actor.Time {
	return actor.Time(o.started.UnixNano()).Add(time.Since(o.started))
}

// Models lists the models there are.
func (o *Outbound) Models() []string { return slices.Sorted(maps.Keys(o.models)) }

// Model asks a model.
func (o *Outbound) Model(ctx context.Context, op runtime.Model, pass func(actor.Piece)) actor.Answer {
	m, ok := o.models[op.Name]
	if !ok {
		return refusedAnswer(actor.Refuse(actor.NotFound, "model %.80q: this node knows %s", op.Name, joinNames(o.Models())))
	}
	prompt, err := upstream.DecodePrompt(op.Body)
	if err != nil {
		return refusedAnswer(actor.Refuse(actor.Invalid, "model %s: %v", m.name, err))
	}
	prompt.Model = m.config.Model
	if prompt.MaxTokens == 0 {
		prompt.MaxTokens = m.config.MaxTokens
	}
	if prompt.Temperature == nil {
		prompt.Temperature = m.config.Temperature
	}
	order, refusal := m.endpoint.Order(prompt, o.deadline(ctx, op.Left), m.patience)
	if refusal != nil {
		return refusedAnswer(refusal)
	}
	if refusal := o.acquire(); refusal != nil {
		return refusedAnswer(refusal)
	}
	defer o.release()
	if !m.stats.acquire(m.config.Concurrency) {
		return refusedAnswer(busyRefusal("model", m.name, m.config.Concurrency))
	}
	defer m.stats.release()
	var carrier http.RoundTripper = o.transport
	if m.name == upstream.ScriptName {
		carrier = scriptTransport{prompt, o.config.Pace}
	}
	return o.runExchange(ctx, order, carrier, m.backoff, &m.stats, pass)
}

// Invoke has an external agent deal with a call.
func (o *Outbound) Invoke(ctx context.Context, op runtime.Invoke, pass func(actor.Piece)) actor.Answer {
	target, err := upstream.DecodeTarget(op.Target)
	if err != nil {
		return refusedAnswer(actor.Refuse(actor.Invalid, "agent %s: %v", op.Name, err))
	}
	auth, err := o.config.secret(target.AuthEnv)
	if err != nil {
		return refusedAnswer(actor.Refuse(actor.Unavailable, "agent %s: %v", op.Name, err))
	}
	var token upstream.Secret
	if o.config.Token != nil {
		token = upstream.Secret(o.config.Token(op.Call.ID, op.Call.To))
	}
	order, refusal := upstream.Agent{URL: target.URL, Auth: auth}.Order(upstream.InvocationOf(op.Name, &op.Call, token), op.Idempotent,
		o.deadline(ctx, op.Left), o.config.Patience)
	if refusal != nil {
		return refusedAnswer(refusal)
	}
	if refusal := o.acquire(); refusal != nil {
		return refusedAnswer(refusal)
	}
	defer o.release()
	a, refusal := o.agents.acquire(op.Name, target, o.now())
	if refusal != nil {
		return refusedAnswer(refusal)
	}
	defer o.agents.release(a)
	return o.runExchange(ctx, order, o.transport, a.backoff, a.stats, pass)
}

// deadline is when the answer has to be there.
func (o *Outbound) deadline(ctx context.Context, left actor.Duration) actor.Time {
	if at, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(at))
	}
	return o.now().Add(left)
}

// acquire counts one more exchange, or says why it may not be.
func (o *Outbound) acquire() *actor.Refusal {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return actor.Refuse(actor.Unavailable, "this node is closing")
	case o.inProgress >= o.config.ExchangesMax:
		return actor.RefuseBusy(actor.ScopeNode, time.Second, "this node asks %d models and agents already", o.inProgress)
	}
	o.inProgress++
	o.work.Add(1)
	return nil
}

func (o *Outbound) release() {
	o.mu.Lock()
	o.inProgress--
	o.mu.Unlock()
	o.work.Done()
}

// busyRefusal is a model or an agent that takes no more at once.
func busyRefusal(kind, name string, limit int) *actor.Refusal {
	return actor.RefuseBusy(actor.ScopeCallee, time.Second, "%s %s takes %d at once, and has as many", kind, name, limit)
}

func refusedAnswer(refusal *actor.Refusal) actor.Answer { return actor.Answer{Refusal: refusal} }

// joinNames is a few names in a sentence.
func joinNames(names []string) string {
	const most = 20
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// sharedBackoff is the back-off that all exchanges with one upstream share.
type sharedBackoff struct {
	mu      sync.Mutex
	backoff *upstream.Backoff
	refs    int // of an agent's: guarded by agents
}

func newSharedBackoff(config upstream.BackoffConfig) *sharedBackoff {
	return &sharedBackoff{backoff: upstream.NewBackoff(config)}
}

// Admit implements upstream.Pacer.
func (p *sharedBackoff) Admit(now actor.Time, draw uint64) upstream.Pass {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backoff.Admit(now, draw)
}

// Report implements upstream.Pacer.
func (p *sharedBackoff) Report(now actor.Time, r upstream.Report, draw uint64) upstream.Advice {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backoff.Report(now, r, draw)
}

// random is a number from the process' own source, which the system seeded.
func random() uint64 { return rand.Uint64() }
