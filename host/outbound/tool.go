// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/shares"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// toolSet holds the tools that were performed, by name. It keeps at most tools.ToolsMax of
// them, and those with open calls.
type toolSet struct {
	mu    sync.Mutex
	known map[string]*tool
	uses  uint64 // number of calls so far
}

// tool is a declared tool with its back-off and statistics.
type tool struct {
	url     string // the back-off belongs to it
	backoff *sharedBackoff
	stats   statCounter
	queue   shares.Queue
	calls   int    // open and waiting
	used    uint64 // value of toolSet.uses at the last call
}

// retain returns the tool of that name and counts a call of it, which MUST be released.
func (s *toolSet) retain(name, url string, config upstream.BackoffConfig) (*tool, *sharedBackoff) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.known[name]
	if t == nil {
		s.evict()
		t = &tool{}
		s.known[name] = t
	}
	if t.url != url || t.backoff == nil { // failures at another address do not count for this one
		t.url, t.backoff = url, newSharedBackoff(config)
	}
	s.uses++
	t.calls, t.used = t.calls+1, s.uses
	return t, t.backoff
}

// evict makes room for a tool: it removes the least recently used one without open calls.
func (s *toolSet) evict() {
	if len(s.known) < tools.ToolsMax {
		return
	}
	oldest := ""
	for name, t := range s.known {
		if t.calls == 0 && (oldest == "" || t.used < s.known[oldest].used) {
			oldest = name
		}
	}
	delete(s.known, oldest)
}

func (s *toolSet) release(t *tool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.calls--
}

// Tool performs a declared tool and returns its result, or one that was kept for it.
func (o *Outbound) Tool(ctx context.Context, id actor.EffectID, op runtime.Tool) actor.Answer {
	d := op.Declared
	switch {
	case d.Kind == tools.KindClient:
		return refusedAnswer(actor.Refuse(actor.NoDevice, "tool %s: no active client", d.Name))
	case d.Via == tools.ViaPipeline:
		return d.Plan()
	case d.Via == tools.ViaWasm:
		return o.module(ctx, id, &op)
	case d.Via != tools.ViaHTTP:
		return refusedAnswer(actor.Refuse(actor.Unavailable, "tool %s: this node performs no tools via %.40q", d.Name, d.Via))
	}
	if d.Batch {
		return o.batched(ctx, id, &op)
	}
	return o.request(ctx, id, &op, keyOfEffect(id))
}

// request performs a declared tool by a request with the given idempotency key.
func (o *Outbound) request(ctx context.Context, id actor.EffectID, op *runtime.Tool, key string) actor.Answer {
	d := op.Declared
	request := httpTool(d)
	var refusal *actor.Refusal
	if request.Headers, refusal = o.toolHeaders(d); refusal != nil {
		return refusedAnswer(refusal)
	}
	call := &op.Context.Call
	input := upstream.ToolInput{Arguments: op.Input, Trace: o.config.traceIn(call, runs.SpanOfAsk(id.Run, id.Step, id.Index))}
	if d.Identity != "" {
		who := upstream.IdentityOf(call)
		input.Identity = &who
	}
	input.Key = key
	if d.Identity == tools.IdentityJWT {
		if o.config.Sign == nil {
			return refusedAnswer(actor.Refuse(actor.Unavailable, "tool %s: this server signs no identities", d.Name))
		}
		input.Signed = o.config.Sign(input.Identity, upstream.SignedCall{Tool: d.Name, URL: d.URL, ID: input.Key, Arguments: op.Input, Left: op.Left})
	}
	order, refusal := request.Exchange(input, o.deadline(ctx, op.Left), upstream.AttemptLimits{Retry: o.config.Patience.Retry})
	if refusal != nil {
		return refusedAnswer(refusal)
	}
	harmless := true // nothing was performed
	answer := o.admitTool(ctx, op, func(ctx context.Context, t *tool, backoff *sharedBackoff) actor.Answer {
		outcome := o.runExchange(ctx, order, o.transport, backoff, &t.stats, nil, func(actor.Piece) {})
		harmless = outcome.Untouched || d.Method == http.MethodGet
		return outcome.Answer()
	})
	if harmless {
		answer.Refusal = d.FallBack(answer.Refusal)
	}
	return answer
}

// module performs a tool that is a module of WebAssembly.
func (o *Outbound) module(ctx context.Context, id actor.EffectID, op *runtime.Tool) actor.Answer {
	if o.config.Sandbox == nil {
		return refusedAnswer(actor.Refuse(actor.Unavailable, "tool %s: %v", op.Declared.Name, errNoSandbox))
	}
	ctx, cancel := context.WithTimeout(ctx, op.Left)
	defer cancel()
	answer := o.admitTool(ctx, op, func(ctx context.Context, _ *tool, _ *sharedBackoff) actor.Answer {
		return o.config.Sandbox.Perform(ctx, op.Declared, op.Context.Call.Principal, keyOfEffect(id), op.Input)
	})
	answer.Refusal = op.Declared.FallBack(answer.Refusal) // a module has no effect outside
	return answer
}

// errNoSandbox is the error of a module on a server that performs none.
var errNoSandbox = errors.New("this program performs no modules of WebAssembly; troupe serve does")

// keyOfEffect returns the identity of a call, which its repetition has as well; "" for a call of no run. Unlike
// the String of an effect, it holds the whole run ID.
func keyOfEffect(id actor.EffectID) string {
	if id == (actor.EffectID{}) {
		return ""
	}
	return fmt.Sprintf("%s.%d.%d", id.Run, id.Step, id.Index)
}

// admitTool returns a kept result of a tool, or performs it once it is the turn of the call.
func (o *Outbound) admitTool(ctx context.Context, op *runtime.Tool, perform func(context.Context, *tool, *sharedBackoff) actor.Answer) (answer actor.Answer) {
	d, call := op.Declared, &op.Context.Call
	if d.CacheMS > 0 {
		key := keyOfCall(op)
		if kept, ok := o.results.get(key, o.now()); ok {
			return kept
		}
		defer func() { o.results.put(key, &answer, o.now(), time.Duration(d.CacheMS)*time.Millisecond) }()
	}
	if refusal := o.acquire(call.Principal); refusal != nil {
		return refusedAnswer(refusal)
	}
	defer o.release(call.Principal)
	t, backoff := o.tools.retain(d.Name, d.URL, o.config.Backoff)
	defer o.tools.release(t)
	limit := cmp.Or(d.Concurrency, tools.ConcurrencyDefault)
	waiting, cancel := context.WithTimeout(ctx, op.Left)
	err := t.queue.Acquire(waiting, call.Principal, queueBounds(limit))
	if cancel(); err != nil {
		return refusedAnswer(queueRefusal("tool", d.Name, limit, err, t.stats.refuse(o.now())))
	}
	defer t.queue.Release(call.Principal)
	t.stats.acquire(0, o.now())
	defer t.stats.release()
	return perform(ctx, t, backoff)
}

// httpTool returns a tool without its headers.
func httpTool(d *tools.Declared) upstream.HTTPTool {
	return upstream.HTTPTool{Name: d.Name, URL: d.URL, Method: d.Method, Body: d.Body, Batch: d.Batch, Idempotent: d.Idempotent}
}

// PermitTool returns an error unless requests can be made of the definition of a tool, and
// the server may send the secrets in its headers to its URL.
func (o *Outbound) PermitTool(d *tools.Declared) error { return o.config.PermitTool(d) }

// PermitTool returns an error unless the server has the module of a tool, or requests can be made of the
// definition and its secrets may be sent to its URL.
func (c *Config) PermitTool(d *tools.Declared) error {
	if d.Via == tools.ViaPipeline {
		return nil
	}
	if d.Via == tools.ViaWasm {
		if c.Sandbox == nil {
			return errNoSandbox
		}
		return c.Sandbox.Permit(d)
	}
	if err := httpTool(d).Check(); err != nil {
		return err
	}
	return c.permitHeaders(d)
}

// PermitDefinition is PermitTool for a definition as JSON. It returns nil for an invalid
// one, whose mistakes the registry names.
func (o *Outbound) PermitDefinition(definition []byte) error {
	d, err := tools.ReadDeclared(definition)
	if err != nil || d.Kind == tools.KindClient {
		return nil
	}
	return o.PermitTool(&d)
}

// Install keeps a module of WebAssembly, whose SHA-256 MUST be sum, for the tools that name it.
func (o *Outbound) Install(sum string, module []byte) error {
	if o.config.Sandbox == nil {
		return errNoSandbox
	}
	return o.config.Sandbox.Install(sum, module)
}

func (c *Config) permitHeaders(d *tools.Declared) error {
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		env := d.Headers[name].Env
		if env == "" {
			continue
		}
		if !strings.HasPrefix(env, upstream.AuthEnvPrefix) { // no other variable can be bound to an address
			return fmt.Errorf("headers.%s: env: want the name of a variable like %sHELPER, got %.80q", name, upstream.AuthEnvPrefix, env)
		}
		url, err := upstream.HTTPTool{URL: d.URL}.FixedURL()
		if err != nil {
			return fmt.Errorf("url: %w", err)
		}
		if err := c.Permit(url, env); err != nil {
			return fmt.Errorf("headers.%s: %w", name, err)
		}
	}
	return nil
}

// toolHeaders returns the headers that a tool declares. Values from the environment are
// secrets, which are read for each call.
func (o *Outbound) toolHeaders(d *tools.Declared) (all []upstream.Header, refusal *actor.Refusal) {
	if err := o.config.permitHeaders(d); err != nil {
		return nil, actor.Refuse(actor.Rejected, "tool %s: %v", d.Name, err)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		h := d.Headers[name]
		header := upstream.Header{Name: strings.ToLower(name), Value: h.Value, Secret: h.Env != ""}
		if header.Secret {
			secret, err := o.config.secret(h.Env)
			if err != nil {
				return nil, actor.Refuse(actor.Unavailable, "tool %s: header %s: %v", d.Name, name, err)
			}
			header.Value = secret.Reveal()
		}
		all = append(all, header)
	}
	return all, nil
}
