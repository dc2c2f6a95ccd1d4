// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

func TestDialRejectsOtherSpellings(t *testing.T) {
	resolved := 0
	o := newOutbound(t, Config{Resolve: func(context.Context, string) ([]netip.Addr, error) {
		resolved++
		return []netip.Addr{netip.MustParseAddr("1.2.3.4")}, nil
	}}, &logBuffer{})
	defer o.Close()
	connects := countConnects(o)
	for _, address := range []string{"127.1:80", "2130706433:80", "0x7f.1:80", "public.example.:80", "bücher.example:80", "user@public.example:80",
		"public.example:0", "public.example:65536", "public.example:http", "public.example:", "public.example", "1.2.3.4", "1.2.3.4:-1", ":80"} {
		conn, err := o.dialer.dial(t.Context(), "tcp", address)
		if err == nil {
			conn.Close()
		}
		if _, final := lossDetail(err); !final {
			t.Errorf("%s: %v", address, err)
		}
	}
	if resolved > 0 || connects.Load() > 0 {
		t.Errorf("%d names resolved, %d addresses dialled; want none", resolved, connects.Load())
	}
}

func TestDialTriesFewAddresses(t *testing.T) {
	var many []netip.Addr
	for n := range byte(20) {
		many = append(many, netip.AddrFrom4([4]byte{1, 2, 3, n}))
	}
	o := newOutbound(t, Config{Resolve: func(context.Context, string) ([]netip.Addr, error) { return many, nil }}, &logBuffer{})
	defer o.Close()
	var dialled []string
	good := "1.2.3.2:80"
	o.dialer.connect = func(_ context.Context, _ string, to netip.AddrPort) (net.Conn, error) {
		if dialled = append(dialled, to.String()); to.String() == good {
			conn, _ := net.Pipe()
			return conn, nil
		}
		return nil, syscall.ECONNREFUSED
	}
	conn, err := o.dialer.dial(t.Context(), "tcp", "h:80")
	if err != nil || len(dialled) != 3 {
		t.Fatalf("got %v after dialling %v, want a connection to the third address", err, dialled)
	}
	conn.Close()
	dialled, good = nil, ""
	if _, err := o.dialer.dial(t.Context(), "tcp", "h:80"); !errors.Is(err, syscall.ECONNREFUSED) || len(dialled) != addressesMax {
		t.Errorf("got %v after dialling %v, want ECONNREFUSED after %d addresses", err, dialled, addressesMax)
	}
}

func TestResolveErrors(t *testing.T) {
	for _, c := range []struct {
		resolve func(context.Context) error
		want    string
		elapsed time.Duration
	}{
		{func(context.Context) error {
			return &net.DNSError{Err: "no such host", Name: "h", Server: "10.0.0.53:53", IsNotFound: true}
		}, "no such host", 0},
		{func(context.Context) error {
			return &net.DNSError{Err: "server misbehaving", Name: "h", Server: "10.0.0.53:53"}
		}, "its name cannot be resolved", 0},
		{func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, "its name cannot be resolved", 2 * dialTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newOutbound(t, Config{Patience: shortRetries, Resolve: func(ctx context.Context, _ string) ([]netip.Addr, error) { return nil, c.resolve(ctx) }}, &logBuffer{})
			defer o.Close()
			h := invoke(t.Context(), o, upstream.Target{URL: "http://h"}, false, testTimeout)
			if h.Refusal == nil || h.Refusal.Detail != "agent py cannot be reached: "+c.want || len(h.retries) == 0 || h.took < c.elapsed || h.took > c.elapsed+time.Second {
				t.Errorf("%v after %v, want %s", h.Refusal, h.took, c.want)
			}
		})
	}
}

func TestLossDetailOmitsAddresses(t *testing.T) {
	op := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2)}, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 99}, Err: err}
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{op(syscall.ECONNREFUSED), "connection refused"},
		{op(syscall.ECONNRESET), "connection reset"},
		{op(syscall.EPIPE), "connection reset"},
		{op(syscall.ENETUNREACH), "no route to the host"},
		{op(syscall.EHOSTUNREACH), "no route to the host"},
		{op(context.DeadlineExceeded), "connection timed out"},
		{op(errors.New("out of luck")), "out of luck"},
		{fmt.Errorf("x: %w", &net.DNSError{Server: "10.0.0.1:53"}), "its name cannot be resolved"},
		{io.ErrUnexpectedEOF, "unexpected EOF"},
	} {
		if got, final := lossDetail(c.err); got != c.want || final {
			t.Errorf("%v: %q %v, want %q", c.err, got, final, c.want)
		}
	}
}

// roundTripFunc is a function that implements http.RoundTripper.
type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// invokeOver invokes an agent over the given RoundTripper.
func invokeOver(t *testing.T, o *Outbound, roundTripper roundTripFunc, onPiece func(actor.Piece)) *result {
	t.Helper()
	order, refusal := upstream.Agent{URL: agentURL}.Exchange(upstream.Invocation{Agent: "py", Session: "s", Run: "r"}, false, o.now().Add(testTimeout), upstream.AttemptLimits{})
	h := &result{}
	if refusal != nil {
		t.Error(refusal)
		return h
	}
	if onPiece == nil {
		onPiece = h.addPiece
	}
	h.Answer = o.runExchange(t.Context(), order, roundTripper, newSharedBackoff(upstream.BackoffConfig{}), &statCounter{}, nil, onPiece).Answer()
	return h
}

// TestSentRequestHasUnknownOutcome replays the connection events of a request. A
// failed request that may have been sent has an unknown outcome.
func TestSentRequestHasUnknownOutcome(t *testing.T) {
	for _, c := range []struct {
		name   string
		says   func(*httptrace.ClientTrace)
		reason actor.Reason
	}{
		{"no connection", func(trace *httptrace.ClientTrace) { trace.GetConn("h:80") }, actor.Unavailable},
		{"a connection", func(trace *httptrace.ClientTrace) { trace.GetConn("h:80"); trace.GotConn(httptrace.GotConnInfo{}) }, actor.Unknown},
		// The transport retries only if the stale connection took no byte.
		{"a stale connection, then none", func(trace *httptrace.ClientTrace) {
			trace.GetConn("h:80")
			trace.GotConn(httptrace.GotConnInfo{})
			trace.GetConn("h:80")
		}, actor.Unavailable},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newOutbound(t, Config{}, &logBuffer{})
			defer o.Close()
			h := invokeOver(t, o, func(r *http.Request) (*http.Response, error) {
				c.says(httptrace.ContextClientTrace(r.Context()))
				return nil, syscall.ECONNRESET
			}, nil)
			if h.Refusal == nil || h.Refusal.Reason != c.reason {
				t.Errorf("%s: %v, want %v", c.name, h.Refusal, c.reason)
			}
		})
	}
}

func TestPanicReleasesConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			writeStream(w, agentEvents(`delta {"text":"hi"}`))
			waitOrDisconnect(r, time.Hour)
		})
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			w.Invoke(t.Context(), invocationOf(upstream.Target{URL: agentURL}, false, testTimeout), nil, func(actor.Piece) { panic("oops") })
		}()
		if w.open.count != 0 || len(w.agents.queues) != 0 {
			t.Error("the invocation is still counted")
		}
		w.close()
	})
}

func TestCompleteAnswerReleasesConnection(t *testing.T) {
	for _, c := range []struct {
		name   string
		after  func(w http.ResponseWriter, r *http.Request)
		within time.Duration
		kept   bool
	}{
		{"its body ends", func(http.ResponseWriter, *http.Request) {}, 0, true},
		{"its body ends soon", func(_ http.ResponseWriter, r *http.Request) { waitOrDisconnect(r, drainTimeout/2) }, drainTimeout, true},
		{"it stays silent", func(_ http.ResponseWriter, r *http.Request) { waitOrDisconnect(r, time.Hour) }, drainTimeout, false},
		{"it continues", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				writeStream(w, make([]byte, 1000))
				waitOrDisconnect(r, time.Millisecond)
			}
		}, 10 * time.Millisecond, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gone := make(chan time.Time, 1)
				w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					writeStream(w, agentEvents(`done {}`))
					c.after(w, r)
					gone <- time.Now()
				})
				h := invoke(t.Context(), w.Outbound, upstream.Target{URL: agentURL}, false, testTimeout)
				if h.Refusal != nil || h.took > 0 {
					t.Errorf("got refusal %v after %v, want an answer at once", h.Refusal, h.took)
				}
				ended := time.Now()
				if late := (<-gone).Sub(ended); late > c.within {
					t.Errorf("connection held for %v", late)
				}
				synctest.Wait()
				invoke(t.Context(), w.Outbound, upstream.Target{URL: agentURL}, false, testTimeout)
				if n := w.network.dialCount(); (n == 1) != c.kept {
					t.Errorf("%d connections", n)
				}
				w.close()
			})
		})
	}
}

func TestCloseEndsAttemptsAndConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int64
		w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			writeStream(w, agentEvents(`done {}`))
		})
		w.server.ConnState = func(_ net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed:
				open.Add(-1)
			}
		}
		invoke(t.Context(), w.Outbound, upstream.Target{URL: agentURL}, false, testTimeout)
		synctest.Wait()
		if open.Load() != 1 {
			t.Errorf("%d connections are open, want 1", open.Load())
		}
		left := make(chan struct{})
		go invokeOver(t, w.Outbound, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			<-time.After(time.Second) // a RoundTripper that reacts slowly
			close(left)
			return nil, r.Context().Err()
		}, nil)
		synctest.Wait()
		w.Outbound.Close()
		select {
		case <-left:
		default:
			t.Error("an attempt is still running after Close")
		}
		synctest.Wait()
		if open.Load() != 0 {
			t.Errorf("%d connections are open after Close", open.Load())
		}
		w.close()
	})
}

// noDeadlineContext is a context that hides its deadline.
type noDeadlineContext struct{ context.Context }

func (noDeadlineContext) Deadline() (time.Time, bool) { return time.Time{}, false }

func TestContextTimeoutIsDeadlineRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{Models: oneModel("http://models.example/v1")}, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			waitOrDisconnect(r, time.Hour)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		h := askModel(noDeadlineContext{ctx}, w.Outbound, "m", "hi", testTimeout)
		if h.Refusal == nil || h.Refusal.Reason != actor.Deadline || !strings.Contains(h.Refusal.Detail, "no time is left") || h.Refusal.Operation == "" || h.took != time.Second {
			t.Errorf("%+v after %v", h.Refusal, h.took)
		}
		w.close()
	})
}

func TestModelTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := oneModel("http://models.example/v1")["m"]
		m.HeadTimeout, m.IdleTimeout = 3*time.Second, 5*time.Second
		w := newFixture(t, Config{Models: map[string]Model{"m": m}, Patience: upstream.AttemptLimits{Retry: upstream.RetryPolicy{Tries: 1}}}, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if strings.Contains(string(body), "late") {
				waitOrDisconnect(r, time.Hour)
			}
			writeStream(w, nil)
			waitOrDisconnect(r, time.Hour)
		})
		if h := askModel(t.Context(), w.Outbound, "m", "late", testTimeout); h.took != m.HeadTimeout {
			t.Errorf("got %v after %v, want a refusal after %v", h.Refusal, h.took, m.HeadTimeout)
		}
		if h := askModel(t.Context(), w.Outbound, "m", "idle", testTimeout); h.took != m.IdleTimeout {
			t.Errorf("got %v after %v, want a refusal after %v", h.Refusal, h.took, m.IdleTimeout)
		}
		w.close()
	})
}
