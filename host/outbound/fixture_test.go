// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/upstream"
)

var _ engine.Outbound = (*Outbound)(nil)

// Secrets that MUST NOT appear in any error, log or piece. The prompt MUST NOT
// appear in a log.
const (
	canary       = "sk-canary-5f2c1e"
	authCanary   = "auth-canary-9a77"
	tokenCanary  = "token-canary-01bd"
	promptCanary = "prompt-canary-77aa"
)

// pipeNetwork is an in-memory network on which every address reaches the same
// server. It works in a synctest bubble.
type pipeNetwork struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	dials  []string
	mu     sync.Mutex
}

func newPipeNetwork() *pipeNetwork {
	return &pipeNetwork{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (s *pipeNetwork) connect(ctx context.Context, _ string, to netip.AddrPort) (net.Conn, error) {
	s.mu.Lock()
	s.dials = append(s.dials, to.String())
	s.mu.Unlock()
	ours, theirs := net.Pipe()
	select {
	case s.conns <- theirs:
		return ours, nil
	case <-s.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *pipeNetwork) dialCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dials)
}

func (s *pipeNetwork) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}
func (s *pipeNetwork) Close() error   { s.once.Do(func() { close(s.closed) }); return nil }
func (s *pipeNetwork) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// logBuffer collects log output.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (p *logBuffer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

func (p *logBuffer) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

// fixture is an Outbound with its network, server and log.
type fixture struct {
	*Outbound
	network *pipeNetwork
	log     *logBuffer
	server  *http.Server
}

// newFixture returns a fixture whose server answers for all hosts and ports.
func newFixture(t *testing.T, config Config, handler http.HandlerFunc) *fixture {
	t.Helper()
	w := &fixture{network: newPipeNetwork(), log: &logBuffer{}}
	w.server = &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	go func() { _ = w.server.Serve(w.network) }()
	w.Outbound = newOutbound(t, config, w.log)
	w.dialer.connect = w.network.connect
	t.Cleanup(w.close)
	return w
}

func (w *fixture) close() {
	w.Outbound.Close()
	_ = w.server.Close()
}

func newOutbound(t *testing.T, config Config, log *logBuffer) *Outbound {
	t.Helper()
	config.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if config.Env == nil {
		config.Env = func(name string) (string, bool) {
			value, ok := map[string]string{"KEY": canary + "\n", "TROUPE_AUTH_A": authCanary}[name]
			return value, ok
		}
	}
	if config.Auth == nil {
		config.Auth = upstream.Bindings{"TROUPE_AUTH_A": "agents.example:9000, elsewhere.example, 127.0.0.1", "TROUPE_AUTH_B": "agents.example"}
	}
	if config.Resolve == nil {
		config.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("1.2.3.4")}, nil
		}
	}
	o, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func oneModel(url string) map[string]Model {
	return map[string]Model{"m": {URL: url, KeyEnv: "KEY", Model: "gpt-x"}}
}

// result is the outcome of a Model or Invoke call, with the pieces received.
type result struct {
	actor.Answer
	text    string
	states  []string
	retries []*actor.Refusal
	pieces  int
	took    time.Duration
}

func (h *result) addPiece(p actor.Piece) {
	h.pieces++
	h.text += p.Text
	if p.State != "" {
		h.states = append(h.states, p.State+p.Detail)
	}
	if p.Retry != nil {
		h.text = "" // the pieces of that attempt are void
		h.retries = append(h.retries, p.Retry)
	}
}

// allText returns all text in the result.
func (h *result) allText() string {
	words := []string{h.text, fmt.Sprint(h.states)}
	for _, r := range append(h.retries, h.Refusal) {
		if r != nil {
			words = append(words, r.Error(), fmt.Sprintf("%+v", *r))
		}
	}
	for _, p := range h.Parts {
		words = append(words, string(p.Bytes))
	}
	return strings.Join(words, "\n")
}

func (h *result) completion(t testing.TB) upstream.Completion {
	t.Helper()
	if h.Refusal != nil || len(h.Parts) != 1 || h.Parts[0].Media != actor.MediaJSON {
		t.Fatalf("no answer: %v %v", h.Refusal, h.Parts)
	}
	c, err := upstream.DecodeCompletion(h.Parts[0].Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func promptOf(text string, tools ...string) []byte {
	p := upstream.Prompt{Model: "any", Messages: []upstream.Message{{Role: upstream.User, Text: text}}}
	for _, name := range tools {
		p.Tools = append(p.Tools, upstream.ToolSpec{Name: name, Schema: `{"type":"object"}`})
	}
	return p.Encode()
}

const testTimeout = 10 * time.Minute

func askModel(ctx context.Context, o *Outbound, name, text string, left time.Duration) *result {
	h, began := &result{}, time.Now()
	h.Answer = o.Model(ctx, runtime.Model{Name: name, Body: promptOf(text, "call_agent"), Left: left}, h.addPiece)
	h.took = time.Since(began)
	return h
}

var (
	rootID = actor.NewCallID(actor.Time(time.Second), 1, 2)
	callID = actor.NewCallID(actor.Time(time.Second), 3, 4)
)

func invoke(ctx context.Context, o *Outbound, target upstream.Target, safe bool, left time.Duration) *result {
	h, began := &result{}, time.Now()
	h.Answer = o.Invoke(ctx, invocationOf(target, safe, left), nil, h.addPiece)
	h.took = time.Since(began)
	return h
}

func invocationOf(target upstream.Target, safe bool, left time.Duration) runtime.Invoke {
	target.Safe = safe
	call := actor.Call{ID: callID, Root: rootID, To: actor.NewID("py", "s-42"), Principal: "u-1", Project: "p-1", Parts: actor.Text("hi " + promptCanary)}
	return runtime.Invoke{Name: "py", Target: target.Encode(), Idempotent: safe, Call: call, Left: left}
}

// checkNoSecrets checks the result and the log for secrets, and the log for the
// prompt.
func checkNoSecrets(t *testing.T, h *result, log *logBuffer) {
	t.Helper()
	for _, secret := range []string{canary, authCanary, tokenCanary} {
		if strings.Contains(h.allText(), secret) {
			t.Errorf("%s leaked: %s", secret, h.allText())
		}
		if strings.Contains(log.String(), secret) {
			t.Errorf("%s was logged: %s", secret, log)
		}
	}
	if strings.Contains(log.String(), promptCanary) {
		t.Errorf("the prompt was logged: %s", log)
	}
}
