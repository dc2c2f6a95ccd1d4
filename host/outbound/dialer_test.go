// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// addressSpellings returns hosts that some parser reads as a non-public address.
func addressSpellings() (all []string) {
	for _, text := range []string{"127.0.0.1", "127.255.255.254", "169.254.169.254", "169.254.170.2", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.100.100.200", "0.0.0.0"} {
		a := netip.MustParseAddr(text).As4()
		n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
		wide := strings.NewReplacer("0", "０", "1", "１", "2", "２", "4", "４", "5", "５", "6", "６", "7", "７", "8", "８", "9", "９")
		all = append(all, text, text+".", strings.ReplaceAll(text, ".", "。"), strings.ReplaceAll(text, ".", "．"), wide.Replace(text),
			strings.ReplaceAll(text, ".", "%2e"), strings.ReplaceAll(text, "1", "%31"),
			"user@"+text, "user:pass@"+text, "public.example@"+text, "public.example#@"+text, "public.example%00."+text, text+"%20", text+"\\@public.example",
			fmt.Sprint(n), fmt.Sprintf("0x%x", n), fmt.Sprintf("0X%08X", n), fmt.Sprintf("0%o", n), fmt.Sprintf("0x1%08x", n), fmt.Sprint(uint64(n)+1<<32),
			fmt.Sprintf("0x%x.0x%x.0x%x.0x%x", a[0], a[1], a[2], a[3]), fmt.Sprintf("0%o.0%o.0%o.0%o", a[0], a[1], a[2], a[3]),
			fmt.Sprintf("000%o.%d.%d.%d", a[0], a[1], a[2], a[3]), fmt.Sprintf("0x%x.%d.0%o.%d", a[0], a[1], a[2], a[3]),
			fmt.Sprintf("%d.%d", a[0], n&0xffffff), fmt.Sprintf("%d.%d.%d", a[0], a[1], n&0xffff), fmt.Sprintf("0x%x.%d", a[0], n&0xffffff),
			fmt.Sprintf("%d.%d.%d.%d", int(a[0])+256, a[1], a[2], a[3]),
			"[::ffff:"+text+"]", fmt.Sprintf("[::ffff:%x:%x]", n>>16, n&0xffff), "[0:0:0:0:0:ffff:"+text+"]", "[::"+text+"]", "[::ffff:0:"+text+"]",
			fmt.Sprintf("[64:ff9b::%x:%x]", n>>16, n&0xffff), "[64:ff9b::"+text+"]", fmt.Sprintf("[64:ff9b:1::%x:%x]", n>>16, n&0xffff),
			fmt.Sprintf("[2002:%x:%x::1]", n>>16, n&0xffff), fmt.Sprintf("[2001:0:%x:%x::1]", n>>16, n&0xffff), fmt.Sprintf("[2001::%x:%x]", ^n>>16, ^n&0xffff),
			"["+text+"]", text+".nip.example", strings.ReplaceAll(text, ".", "-")+".nip.example")
	}
	return append(all, "localhost", "LOCALHOST", "localhost.", "LocalHost.LocalDomain", "ip6-localhost", "a.localhost", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "loc\u00adalhost", "localhost%2e",
		"metadata.google.internal", "metadata", "169.254.169.254.xip.example", "metadata.nip.example", "kubernetes.default.svc",
		"[::1]", "[0:0:0:0:0:0:0:1]", "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::1%25lo]", "[::%25lo]", "[::]", "[fe80::1]", "[fe80::1%25eth0]", "[fd00:ec2::254]", "[fd20:ce::254]",
		"[fc00::1]", "[fec0::1]", "[ff02::1]", "[2001:db8::1]", "[3fff::1]", "[100::1]", "[5f00::1]", "0", "00", "0.0", "0x0", "0x", "127.1", "255.255.255.255", "224.0.0.1", "168.63.129.16", "192.0.0.192",
		"198.18.0.1", "203.0.113.1", "240.0.0.1", "", ".", "%6c%6f%63%61%6c%68%6f%73%74", "①②⑦.⓪.⓪.①", "127.0.0.1/public.example", "127.0.0.1?public.example", "127.0.0.1\tpublic.example")
}

// trapListener listens at loopback addresses that some of the spellings denote.
// It counts the connections that reach it.
type trapListener struct {
	port     string
	accepted atomic.Int64
}

func newTrapListener(t *testing.T) *trapListener {
	t.Helper()
	first, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(first.Addr().String())
	trap := &trapListener{port: port}
	listeners := []net.Listener{first}
	for _, address := range []string{"127.255.255.254:" + port, "[::1]:" + port} {
		if l, err := net.Listen("tcp", address); err == nil { // not every machine has all of these addresses
			listeners = append(listeners, l)
		}
	}
	for _, l := range listeners {
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				trap.accepted.Add(1)
				_ = conn.Close()
			}
		}()
	}
	return trap
}

// resolvePrivate resolves every name to a forbidden address.
func resolvePrivate(_ context.Context, name string) ([]netip.Addr, error) {
	switch {
	case strings.HasPrefix(name, "metadata"), strings.HasPrefix(name, "169"):
		return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
	case strings.HasPrefix(name, "kubernetes"), strings.HasPrefix(name, "10-"):
		return []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")}, nil
	case strings.HasPrefix(name, "ip6"):
		return []netip.Addr{netip.MustParseAddr("::1")}, nil
	}
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// countConnects counts the connections that the dialer opens.
func countConnects(o *Outbound) *atomic.Int64 {
	var n atomic.Int64
	connect := o.dialer.connect
	o.dialer.connect = func(ctx context.Context, host string, to netip.AddrPort) (net.Conn, error) {
		n.Add(1)
		return connect(ctx, host, to)
	}
	return &n
}

// TestAddressSpellingsAreRefused tries every spelling at every entry point.
func TestAddressSpellingsAreRefused(t *testing.T) {
	trap, all := newTrapListener(t), addressSpellings()
	if len(all) < 120 {
		t.Fatalf("got %d spellings, want at least 120", len(all))
	}
	o := newOutbound(t, Config{Resolve: resolvePrivate}, &logBuffer{})
	defer o.Close()
	connects := countConnects(o)
	entryPoints := []struct {
		name string
		open func(host string) error
	}{
		{"model", func(host string) error {
			m, err := New(Config{Resolve: resolvePrivate, Models: map[string]Model{"m": {URL: "http://" + host + ":" + trap.port + "/v1"}}})
			if err != nil {
				return err
			}
			defer m.Close()
			m.dialer.connect = o.dialer.connect
			return refusalError(askModel(t.Context(), m, "m", "hi", testTimeout))
		}},
		{"model, bypassing validation", func(host string) error {
			m := newOutbound(t, Config{Resolve: resolvePrivate, Models: map[string]Model{"m": {URL: "http://public.example"}}}, &logBuffer{})
			defer m.Close()
			m.dialer.connect = o.dialer.connect
			m.models["m"].endpoint.URL = "http://" + host + ":" + trap.port + "/v1"
			return refusalError(askModel(t.Context(), m, "m", "hi", testTimeout))
		}},
		{"agent", func(host string) error {
			return refusalError(invoke(t.Context(), o, upstream.Target{URL: "http://" + host + ":" + trap.port}, false, testTimeout))
		}},
		{"agent over TLS", func(host string) error {
			return refusalError(invoke(t.Context(), o, upstream.Target{URL: "https://" + host + ":" + trap.port}, true, testTimeout))
		}},
		{"health", func(host string) error {
			if status := o.poll(Agent{"py", upstream.Target{URL: "http://" + host + ":" + trap.port}}); status != 0 {
				return nil
			}
			return errors.New("no answer")
		}},
		{"round trip, bypassing URL checks", func(host string) error {
			request, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+host+":"+trap.port, nil)
			if err != nil {
				return err
			}
			response, err := o.transport.RoundTrip(request)
			if err == nil {
				response.Body.Close()
			}
			return err
		}},
		{"dialer", func(host string) error {
			conn, err := o.dialer.dial(t.Context(), "tcp", net.JoinHostPort(strings.Trim(host, "[]"), trap.port))
			if err == nil {
				conn.Close()
			}
			return err
		}},
	}
	for _, entry := range entryPoints {
		for _, host := range all {
			if err := entry.open(host); err == nil {
				t.Errorf("%s: %q was not refused", entry.name, host)
			}
		}
	}
	if n := trap.accepted.Load(); n > 0 {
		t.Errorf("%d connections were accepted", n)
	}
	if n := connects.Load(); n > 0 {
		t.Errorf("%d connections were opened", n)
	}
	t.Logf("%d spellings at %d entry points", len(all), len(entryPoints))

	// The listeners are reachable once loopback is allowed.
	o = newOutbound(t, Config{Resolve: resolvePrivate, Allow: upstream.AllowLoopback()}, &logBuffer{})
	defer o.Close()
	for _, host := range []string{"127.0.0.1", "localhost"} {
		before := trap.accepted.Load()
		h := invoke(t.Context(), o, upstream.Target{URL: "http://" + host + ":" + trap.port}, false, testTimeout)
		if h.Refusal == nil || h.Refusal.Reason != actor.Unknown || trap.accepted.Load() == before {
			t.Errorf("%s: %v", host, h.Refusal)
		}
	}
}

func refusalError(h *result) error {
	if h.Refusal == nil {
		return nil
	}
	return h.Refusal
}

func TestForbiddenAddressIsNotRetried(t *testing.T) {
	resolved := 0
	o := newOutbound(t, Config{Resolve: func(ctx context.Context, name string) ([]netip.Addr, error) {
		resolved++
		return resolvePrivate(ctx, name)
	}}, &logBuffer{})
	defer o.Close()
	h := invoke(t.Context(), o, upstream.Target{URL: "http://kubernetes"}, true, testTimeout)
	want := "agent py cannot be reached: kubernetes: its address is private, which is not allowed; to allow it: troupe serve --allow kubernetes"
	if h.Refusal == nil || h.Refusal.Reason != actor.Rejected || h.Refusal.Detail != want || resolved != 1 || strings.Contains(h.allText(), "10.0.0.1") {
		t.Errorf("%v after %d lookups, want %s", h.Refusal, resolved, want)
	}
}

// TestDNSRebinding resolves a name to a public and a private address, in turn
// and together. The dialer connects only if every address of the answer is
// public.
func TestDNSRebinding(t *testing.T) {
	public, private := netip.MustParseAddr("1.2.3.4"), netip.MustParseAddr("127.0.0.1")
	lookups := 0
	answers := [][]netip.Addr{{public}, {private}, {public, private}, {private, public}, {netip.MustParseAddr("::ffff:127.0.0.1")}, {}}
	o := newOutbound(t, Config{Resolve: func(context.Context, string) ([]netip.Addr, error) {
		lookups++
		return answers[(lookups-1)%len(answers)], nil
	}}, &logBuffer{})
	defer o.Close()
	var mu sync.Mutex
	var dialled []string
	o.dialer.connect = func(_ context.Context, _ string, to netip.AddrPort) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dialled = append(dialled, to.String())
		return nil, errors.New("connection refused")
	}
	const dials = 60
	for range dials {
		if _, err := o.dialer.dial(t.Context(), "tcp", "rebind.example:80"); err == nil {
			t.Fatal("connected")
		}
	}
	if lookups != dials {
		t.Errorf("%d lookups for %d connections", lookups, dials)
	}
	if len(dialled) != dials/len(answers) || slices.ContainsFunc(dialled, func(a string) bool { return a != "1.2.3.4:80" }) {
		t.Errorf("dialled %v", dialled)
	}
}

// TestSocketChecksAddressAgain bypasses the check that follows the resolution.
// The check at the socket refuses the address.
func TestSocketChecksAddressAgain(t *testing.T) {
	trap := newTrapListener(t)
	for _, allowed := range []bool{false, true} {
		var config Config
		if allowed {
			config.Allow = upstream.AllowLoopback()
		}
		o := newOutbound(t, config, &logBuffer{})
		conn, err := o.dialer.connectSocket(t.Context(), "h", netip.MustParseAddrPort("127.0.0.1:"+trap.port))
		if detail, final := "", false; err != nil {
			if detail, final = lossDetail(err); !final || detail != "h: its address is loopback, which is not allowed; to allow it: troupe serve --allow h" {
				t.Errorf("%v: %s", err, detail)
			}
		}
		if (err == nil) != allowed {
			t.Errorf("allowed %v: %v", allowed, err)
		}
		if conn != nil {
			conn.Close()
		}
		o.Close()
	}
}

// TestRedirectsAreNotFollowed redirects to a target that is allowed. The
// redirect is not followed.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var followed atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		followed.Add(1)
		writeStream(w, modelStream("inside"))
	}))
	defer target.Close()
	for _, status := range []int{300, 301, 302, 303, 304, 305, 307, 308} {
		redirector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", target.URL+r.URL.Path)
			w.WriteHeader(status)
		}))
		o := newOutbound(t, Config{Allow: upstream.AllowLoopback(), Models: oneModel(redirector.URL)}, &logBuffer{})
		for reason, h := range map[actor.Reason]*result{actor.ModelRejected: askModel(t.Context(), o, "m", "hi", testTimeout),
			actor.Rejected: invoke(t.Context(), o, upstream.Target{URL: redirector.URL, AuthEnv: "TROUPE_AUTH_A"}, true, testTimeout)} {
			if h.Refusal == nil || h.Refusal.Reason != reason || !strings.Contains(h.Refusal.Detail, fmt.Sprint("answers ", status)) {
				t.Errorf("%d: %v", status, h.Refusal)
			}
		}
		if got := o.poll(Agent{"py", upstream.Target{URL: redirector.URL}}); got != status {
			t.Errorf("health: %d, want %d", got, status)
		}
		o.Close()
		redirector.Close()
	}
	if n := followed.Load(); n > 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func TestEnvironmentProxyIsIgnored(t *testing.T) {
	trap := newTrapListener(t)
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:"+trap.port)
	t.Setenv("ALL_PROXY", "http://127.0.0.1:"+trap.port)
	o := newOutbound(t, Config{Patience: shortRetries, Allow: upstream.AllowLoopback()}, &logBuffer{})
	defer o.Close()
	if o.transport.Proxy != nil {
		t.Error("a proxy is configured")
	}
	o.dialer.connect = func(context.Context, string, netip.AddrPort) (net.Conn, error) {
		return nil, errors.New("connection refused")
	}
	invoke(t.Context(), o, upstream.Target{URL: "http://public.example"}, true, testTimeout)
	if trap.accepted.Load() > 0 {
		t.Error("the proxy was used")
	}
}

func TestUpstreamOverTLS(t *testing.T) {
	var proto atomic.Value
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proto.Store(r.Proto)
		_, _ = io.ReadAll(r.Body)
		writeStream(w, modelStream("hello world"))
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	log := &logBuffer{}
	o := newOutbound(t, Config{Allow: upstream.AllowLoopback(), Roots: roots, Models: oneModel(server.URL)}, log)
	h := askModel(t.Context(), o, "m", "hi", testTimeout)
	if h.completion(t).Text != "hello world" || proto.Load() != "HTTP/2.0" {
		t.Errorf("%v over %v, want HTTP/2.0", h, proto.Load())
	}
	o.Close()

	o = newOutbound(t, Config{Allow: upstream.AllowLoopback(), Models: oneModel(server.URL), Patience: shortRetries}, log)
	defer o.Close()
	h = askModel(t.Context(), o, "m", "hi", testTimeout)
	if h.Refusal == nil || !strings.Contains(h.Refusal.Detail, "its certificate is invalid") || len(h.retries) == 0 {
		t.Errorf("%v", h.Refusal)
	}
	checkNoSecrets(t, h, log)
}

// TestConnectionReset resets real connections at different moments.
func TestConnectionReset(t *testing.T) {
	for _, c := range []struct {
		name   string
		after  func(*bufio.Reader) // what the server reads before the reset
		answer string
		safe   actor.Reason // outcome for an idempotent agent
		unsafe actor.Reason // outcome otherwise
		detail string
		asked  int64 // number of requests, for an idempotent agent
	}{
		{"at its first byte", func(r *bufio.Reader) { _, _ = r.ReadByte() }, "", actor.Unavailable, actor.Unknown, "connection lost", 2},
		{"after the head", func(r *bufio.Reader) { _, _ = r.ReadString('{') }, "", actor.Unavailable, actor.Unknown, "connection lost", 2},
		{"in the answer's head", func(r *bufio.Reader) { _, _ = r.ReadString('{') }, "HTTP/1.1 200 OK\r\nConte", actor.Unavailable, actor.Unknown, "connection lost", 2},
		{"in the answer, before its text", func(r *bufio.Reader) { _, _ = r.ReadString('{') }, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata:", actor.Unavailable, actor.Unknown, "connection lost", 2},
		{"after some text", func(r *bufio.Reader) { _, _ = r.ReadString('{') },
			"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: delta\r\ndata: {\"text\":\"a\"}\r\n\r\n", actor.Unavailable, actor.Unknown, "connection lost", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var asked atomic.Int64
			passed := make(chan struct{}, 8)
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					asked.Add(1)
					c.after(bufio.NewReader(conn))
					_, _ = io.WriteString(conn, c.answer)
					if strings.Contains(c.answer, "delta") {
						<-passed // a reset discards unread bytes
					}
					_ = conn.(*net.TCPConn).SetLinger(0)
					_ = conn.Close()
				}
			}()
			o := newOutbound(t, Config{Allow: upstream.AllowLoopback(), Patience: shortRetries}, &logBuffer{})
			defer o.Close()
			for _, safe := range []bool{true, false} {
				asked.Store(0)
				h := &result{}
				h.Answer = o.Invoke(t.Context(), invocationOf(upstream.Target{URL: "http://" + l.Addr().String()}, safe, testTimeout), nil, func(p actor.Piece) {
					h.addPiece(p)
					if p.Text != "" {
						passed <- struct{}{}
					}
				})
				want, n := c.unsafe, int64(1)
				if safe {
					want, n = c.safe, c.asked
				}
				if h.Refusal == nil || h.Refusal.Reason != want || !strings.Contains(h.Refusal.Detail, c.detail) || asked.Load() != n {
					t.Errorf("idempotent %v: %v after %d requests, want %v and %d", safe, h.Refusal, asked.Load(), want, n)
				}
			}
		})
	}
}

// shortRetries keeps the retries of a test short.
var shortRetries = upstream.AttemptLimits{Retry: upstream.RetryPolicy{Tries: 2, Delay: time.Millisecond, DelayMax: time.Millisecond, Time: 50 * time.Millisecond}}

func TestConnectionRefused(t *testing.T) {
	o := newOutbound(t, Config{Allow: upstream.AllowLoopback(), Patience: shortRetries}, &logBuffer{})
	defer o.Close()
	h := invoke(t.Context(), o, upstream.Target{URL: "http://127.0.0.1:1"}, false, testTimeout) // a port that is never assigned
	if h.Refusal == nil || h.Refusal.Reason != actor.Unavailable || h.Refusal.Detail != "agent py cannot be reached: connection refused" || len(h.retries) == 0 {
		t.Errorf("%v", h.Refusal)
	}
}
