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
	began     time.Time
	dialer    *dialer
	transport *http.Transport
	models    map[string]*model
	agents    *agents

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup // exchanges, their attempts, and who watches agents
	mu     sync.Mutex
	under  int // exchanges under way
	closed bool
}

// model is one of the models that this node may ask.
type model struct {
	name     string
	config   Model
	endpoint upstream.Model
	patience upstream.Patience
	pace     *pacer
	tally    tally
}

// New checks the configuration, finds the models' keys, and begins to watch the
// agents that it will be told of.
func New(config Config) (*Outbound, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("outbound: %w", err)
	}
	o := &Outbound{config: config.orDefaults(), began: time.Now()}
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
	o.work.Go(o.watch)
	return o, nil
}

func newModels(config *Config) (map[string]*model, error) {
	models := map[string]*model{upstream.ScriptName: {name: upstream.ScriptName, config: Model{Model: upstream.ScriptName},
		endpoint: upstream.Model{URL: "http://" + upstream.ScriptName}, patience: config.Patience, pace: newPacer(config.Backoff)}}
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
		models[name] = &model{name: name, config: c, patience: patience, pace: newPacer(config.Backoff),
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
	return actor.Time(o.began.UnixNano()).Add(time.Since(o.began))
}

// Models lists the models there are.
func (o *Outbound) Models() []string { return slices.Sorted(maps.Keys(o.models)) }

// Model asks a model.
func (o *Outbound) Model(ctx context.Context, op runtime.Model, pass func(actor.Piece)) actor.Answer {
	m, ok := o.models[op.Name]
	if !ok {
		return refuse(actor.Refuse(actor.NotFound, "model %.80q: this node knows %s", op.Name, listed(o.Models())))
	}
	prompt, err := upstream.DecodePrompt(op.Body)
	if err != nil {
		return refuse(actor.Refuse(actor.Invalid, "model %s: %v", m.name, err))
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
		return refuse(refusal)
	}
	if refusal := o.begin(); refusal != nil {
		return refuse(refusal)
	}
	defer o.end()
	if !m.tally.begin(m.config.Concurrency) {
		return refuse(full("model", m.name, m.config.Concurrency))
	}
	defer m.tally.end()
	var carrier http.RoundTripper = o.transport
	if m.name == upstream.ScriptName {
		carrier = script{prompt, o.config.Pace}
	}
	return o.exchange(ctx, order, carrier, m.pace, &m.tally, pass)
}

// Invoke has an external agent deal with a call.
func (o *Outbound) Invoke(ctx context.Context, op runtime.Invoke, pass func(actor.Piece)) actor.Answer {
	target, err := upstream.DecodeTarget(op.Target)
	if err != nil {
		return refuse(actor.Refuse(actor.Invalid, "agent %s: %v", op.Name, err))
	}
	auth, err := o.config.secret(target.AuthEnv)
	if err != nil {
		return refuse(actor.Refuse(actor.Unavailable, "agent %s: %v", op.Name, err))
	}
	var token upstream.Secret
	if o.config.Token != nil {
		token = upstream.Secret(o.config.Token(op.Call.ID, op.Call.To))
	}
	order, refusal := upstream.Agent{URL: target.URL, Auth: auth}.Order(upstream.InvocationOf(op.Name, &op.Call, token), op.Idempotent,
		o.deadline(ctx, op.Left), o.config.Patience)
	if refusal != nil {
		return refuse(refusal)
	}
	if refusal := o.begin(); refusal != nil {
		return refuse(refusal)
	}
	defer o.end()
	a, refusal := o.agents.begin(op.Name, target, o.now())
	if refusal != nil {
		return refuse(refusal)
	}
	defer o.agents.end(a)
	return o.exchange(ctx, order, o.transport, a.pace, a.tally, pass)
}

// deadline is when the answer has to be there.
func (o *Outbound) deadline(ctx context.Context, left actor.Duration) actor.Time {
	if at, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(at))
	}
	return o.now().Add(left)
}

// begin counts one more exchange, or says why it may not be.
func (o *Outbound) begin() *actor.Refusal {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return actor.Refuse(actor.Unavailable, "this node is closing")
	case o.under >= o.config.ExchangesMax:
		return actor.RefuseBusy(actor.ScopeNode, time.Second, "this node asks %d models and agents already", o.under)
	}
	o.under++
	o.work.Add(1)
	return nil
}

func (o *Outbound) end() {
	o.mu.Lock()
	o.under--
	o.mu.Unlock()
	o.work.Done()
}

// full is a model or an agent that takes no more at once.
func full(kind, name string, limit int) *actor.Refusal {
	return actor.RefuseBusy(actor.ScopeCallee, time.Second, "%s %s takes %d at once, and has as many", kind, name, limit)
}

func refuse(refusal *actor.Refusal) actor.Answer { return actor.Answer{Refusal: refusal} }

// listed is a few names in a sentence.
func listed(names []string) string {
	const most = 20
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// pacer is the back-off that all exchanges with one upstream share.
type pacer struct {
	mu      sync.Mutex
	backoff *upstream.Backoff
	users   int // of an agent's: guarded by agents
}

func newPacer(config upstream.BackoffConfig) *pacer {
	return &pacer{backoff: upstream.NewBackoff(config)}
}

// Admit implements upstream.Pacer.
func (p *pacer) Admit(now actor.Time, draw uint64) upstream.Pass {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backoff.Admit(now, draw)
}

// Report implements upstream.Pacer.
func (p *pacer) Report(now actor.Time, r upstream.Report, draw uint64) upstream.Advice {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backoff.Report(now, r, draw)
}

// draw is a number from the process' own source, which the system seeded.
func draw() uint64 { return rand.Uint64() }
