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

// What must be found in no error, log or piece, and what in no log.
const (
	canary       = "sk-canary-5f2c1e"
	authCanary   = "auth-canary-9a77"
	tokenCanary  = "token-canary-01bd"
	promptCanary = "prompt-canary-77aa"
)

// street is a network of pipes: whoever is dialled finds one server there. Time
// in it can be that of a synctest bubble.
type street struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	dials  []string
	mu     sync.Mutex
}

func newStreet() *street { return &street{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (s *street) connect(ctx context.Context, _ string, to netip.AddrPort) (net.Conn, error) {
	s.mu.Lock()
	s.dials = append(s.dials, to.String())
	s.mu.Unlock()
	ours, theirs := net.Pipe()
	select {
	case s.conns <- theirs:
		return ours, nil
	case <-s.closed:
		return nil, errors.New("nobody listens there")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *street) dialled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dials)
}

func (s *street) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}
func (s *street) Close() error   { s.once.Do(func() { close(s.closed) }); return nil }
func (s *street) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// pen keeps what is logged.
type pen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (p *pen) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

func (p *pen) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

// world is an Outbound, the street it stands in, and its log.
type world struct {
	*Outbound
	street *street
	log    *pen
	server *http.Server
}

// inStreet is a world with one server in it, for all hosts and ports.
func inStreet(t *testing.T, config Config, handler http.HandlerFunc) *world {
	t.Helper()
	w := &world{street: newStreet(), log: &pen{}}
	w.server = &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	go func() { _ = w.server.Serve(w.street) }()
	w.Outbound = outboundOf(t, config, w.log)
	w.dialer.connect = w.street.connect
	t.Cleanup(w.close)
	return w
}

func (w *world) close() {
	w.Outbound.Close()
	_ = w.server.Close()
}

func outboundOf(t *testing.T, config Config, log *pen) *Outbound {
	t.Helper()
	config.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if config.Env == nil {
		config.Env = func(name string) (string, bool) {
			value, ok := map[string]string{"KEY": canary + "\n", "TROUPE_AUTH_A": authCanary}[name]
			return value, ok
		}
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

// heard is what came of an ask.
type heard struct {
	actor.Answer
	text   string
	states []string
	again  []*actor.Refusal
	pieces int
	took   time.Duration
}

func (h *heard) pass(p actor.Piece) {
	h.pieces++
	h.text += p.Text
	if p.State != "" {
		h.states = append(h.states, p.State+p.Detail)
	}
	if p.Retry != nil {
		h.again = append(h.again, p.Retry)
	}
}

// all is every word of it.
func (h *heard) all() string {
	words := []string{h.text, fmt.Sprint(h.states)}
	for _, r := range append(h.again, h.Refusal) {
		if r != nil {
			words = append(words, r.Error(), fmt.Sprintf("%+v", *r))
		}
	}
	for _, p := range h.Parts {
		words = append(words, string(p.Bytes))
	}
	return strings.Join(words, "\n")
}

func (h *heard) completion(t testing.TB) upstream.Completion {
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

const within = 10 * time.Minute

func ask(ctx context.Context, o *Outbound, name, text string, left time.Duration) *heard {
	h, began := &heard{}, time.Now()
	h.Answer = o.Model(ctx, runtime.Model{Name: name, Body: promptOf(text, "call_agent"), Left: left}, h.pass)
	h.took = time.Since(began)
	return h
}

var (
	rootID = actor.NewCallID(actor.Time(time.Second), 1, 2)
	callID = actor.NewCallID(actor.Time(time.Second), 3, 4)
)

func invoke(ctx context.Context, o *Outbound, target upstream.Target, safe bool, left time.Duration) *heard {
	h, began := &heard{}, time.Now()
	h.Answer = o.Invoke(ctx, invocationOf(target, safe, left), h.pass)
	h.took = time.Since(began)
	return h
}

func invocationOf(target upstream.Target, safe bool, left time.Duration) runtime.Invoke {
	call := actor.Call{ID: callID, Root: rootID, To: actor.NewID("py", "s-42"), Principal: "u-1", Parts: actor.Text("hi " + promptCanary)}
	return runtime.Invoke{Name: "py", Target: target.Encode(), Idempotent: safe, Call: call, Left: left}
}

// noSecrets looks for what should be nowhere, and for the prompt in the log.
func noSecrets(t *testing.T, h *heard, log *pen) {
	t.Helper()
	for _, secret := range []string{canary, authCanary, tokenCanary} {
		if strings.Contains(h.all(), secret) {
			t.Errorf("%s was told: %s", secret, h.all())
		}
		if strings.Contains(log.String(), secret) {
			t.Errorf("%s was logged: %s", secret, log)
		}
	}
	if strings.Contains(log.String(), promptCanary) {
		t.Errorf("the prompt was logged: %s", log)
	}
}
