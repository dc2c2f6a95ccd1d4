// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// newTestKey returns a key and its text.
func newTestKey(t *testing.T, seed byte, expires actor.Time, scopes ...ingress.Scope) (ingress.Key, string) {
	t.Helper()
	random := [ingress.KeyRandomBytes]byte(bytes.Repeat([]byte{seed}, ingress.KeyRandomBytes))
	key, text, r := ingress.NewKey(random, "", "", scopes, 0, expires)
	if r != nil {
		t.Fatal(r)
	}
	return key, text
}

func newTestKeys(t *testing.T) *Keys {
	key, _ := newTestKey(t, 1, 0, ingress.ScopeRead)
	k := new(Keys)
	k.Set([]ingress.Key{key})
	return k
}

// requireKeys makes a running gateway treat loopback requests as remote ones.
func requireKeys(d *testGateway) {
	d.Helper()
	if status, _, body := d.do("GET", "/healthz", ""); status != 200 { // Serve has set onLoopback by now
		d.Fatalf("%d %s", status, body)
	}
	d.server.onLoopback.Store(false)
}

// A key is verified on loopback as well: an invalid one is refused.
func TestKeysOnLoopback(t *testing.T) {
	keys := new(Keys)
	d := startGatewayWith(t, Config{Keys: keys})
	key, text := newTestKey(t, 1, 0, ingress.ScopeRead)
	keys.Set([]ingress.Key{key})
	for _, c := range []struct {
		headers []string
		want    int
	}{{nil, 200}, {[]string{"Authorization", "Bearer " + text}, 200}, {[]string{"Authorization", "bearer " + text}, 200}, {[]string{"Authorization", "Bearer " + text + "0"}, 401}, {[]string{"Authorization", "Basic eDp5"}, 401}} {
		if status, headers, body := d.do("GET", "/v1/agents", "", c.headers...); status != c.want || (status == 401) != (headers.Get("Www-Authenticate") == "Bearer") {
			t.Errorf("%v: %d %v %s", c.headers, status, headers, body)
		}
	}
	if status, _, body := d.do("POST", "/v1/agents/helper/messages", `{"content":"x"}`, "Authorization", "Bearer "+text); status != 403 {
		t.Errorf("request outside the scopes of the key: %d %s", status, body)
	}
}

// Off loopback a gateway does not serve without a key, and allocates no memory
// for the body of an unauthenticated request.
func TestOffLoopbackRequiresKey(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := New(nil, slog.New(slog.DiscardHandler), Config{}).Serve(offLoopbackListener{l}); err == nil || !strings.Contains(err.Error(), "troupe keys create") {
		t.Errorf("Serve without a key: %v", err)
	}
	l.(*net.TCPListener).SetDeadline(time.Now()) //nolint:errcheck // fails on a closed listener, as expected
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error("the listener is still open")
	}
	b := startBareGateway(t, Config{Keys: newTestKeys(t), Secret: bytes.Repeat([]byte("s"), ingress.SecretBytes)}, func(l net.Listener) net.Listener { return offLoopbackListener{l} })
	_, text := newTestKey(t, 1, 0, ingress.ScopeRead)
	large := "Content-Length: 1000000\r\n\r\n"
	for name, c := range map[string]struct {
		head string
		want int
	}{
		"no key":        {post, 401},
		"bad key":       {post + "Authorization: Bearer " + text + "0\r\n", 401},
		"bad token":     {post + "X-Run-Token: troupe-run.a.b\r\n", 401},
		"unknown path":  {strings.Replace(post, "/messages", "/frob", 1), 401},
		"not JSON":      {"POST /v1/agents HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n", 415},
		"Expect header": {post + "Expect: 100-continue\r\n", 401},
		"both lengths":  {post + "Transfer-Encoding: chunked\r\n", 400},
	} {
		t.Run(name, func(t *testing.T) {
			conn := b.dial(t)
			if _, err := io.WriteString(conn, c.head+large); err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != c.want || !response.Close {
				t.Errorf("%d, closes: %v", response.StatusCode, response.Close)
			}
		})
	}
	// With a valid key whose scope suffices the body is read.
	status, _, closes, _ := b.sendRaw(t, strings.Replace(post, "/messages", "/frob", 1)+"Authorization: Bearer "+text+"\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat(" ", 100000))
	if status != 404 || closes {
		t.Errorf("with a valid key: %d, closes: %v", status, closes)
	}
}

// A key is revoked while it is in use on a kept-alive connection and on a stream.
func TestKeyRevocation(t *testing.T) {
	d := startGatewayWith(t, Config{Keys: new(Keys)})
	var admin, user struct {
		ID     string   `json:"key_id"`
		Text   string   `json:"key"`
		Scopes []string `json:"scopes"`
	}
	if status := d.owner().doJSON(&admin, "POST", "/v1/keys", `{"name":"operator","scopes":["admin"]}`); status != 201 || !strings.HasPrefix(admin.Text, "troupe_"+admin.ID+"_") {
		t.Fatalf("%d %+v", status, admin)
	}
	requireKeys(d)
	as := func(text string) []string { return []string{"Authorization", "Bearer " + text} }
	if status := d.doJSON(&user, "POST", "/v1/keys", `{"scopes":["read","call"]}`, as(admin.Text)...); status != 201 || !slices.Equal(user.Scopes, []string{"call", "read"}) {
		t.Fatalf("%d %+v", status, user)
	}
	if status, _, body := d.do("POST", "/v1/keys", `{"scopes":["read"]}`, as(user.Text)...); status != 403 {
		t.Errorf("a key without the scope admin creates a key: %d %s", status, body)
	}
	for _, expires := range []string{"1970-01-01T00:00:00Z", "1500-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "2300-01-01T00:00:00Z", "soon"} {
		if status, _, body := d.do("POST", "/v1/keys", `{"scopes":["read"],"expires_at":"`+expires+`"}`, as(admin.Text)...); status != 400 || !strings.Contains(body, `"field":"expires_at"`) {
			t.Errorf("expiry %s: %d %s", expires, status, body)
		}
	}
	if _, _, body := d.do("GET", "/v1/keys", "", as(admin.Text)...); !strings.Contains(body, user.ID) || strings.Contains(body, user.Text[30:]) || strings.Contains(body, "digest") {
		t.Errorf("list of keys: %s", body)
	}
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/coordinator/messages", `{"content":"xyzzy"}`, as(user.Text)...); status != 202 {
		t.Fatalf("%d %+v", status, m)
	}
	r, err := http.NewRequest("GET", "http://"+d.address+"/v1/runs/"+m.Run+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+user.Text)
	r.Header.Set("Accept", "text/event-stream")
	stream, err := d.client.Do(r)
	if err != nil || stream.StatusCode != 200 {
		t.Fatal(stream, err)
	}
	defer stream.Body.Close()
	events := bufio.NewReader(stream.Body)
	if _, err := events.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	keptAlive := d.dial()
	statusOnKeptAlive := func() int {
		if _, err := io.WriteString(keptAlive, "GET /v1/agents HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+user.Text+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(keptAlive), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(response.Body)
		return response.StatusCode
	}
	if status := statusOnKeptAlive(); status != 200 {
		t.Errorf("before the revocation: %d", status)
	}
	if status, _, body := d.do("DELETE", "/v1/keys/"+user.ID, "", as(admin.Text)...); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if status := statusOnKeptAlive(); status != 401 {
		t.Errorf("after the revocation: %d", status)
	}
	if rest, err := io.ReadAll(events); err != nil {
		t.Errorf("the stream did not end cleanly: %v\n%s", err, rest)
	}
	if status, _, body := d.do("DELETE", "/v1/keys/"+user.ID, "", as(admin.Text)...); status != 404 {
		t.Errorf("second revocation: %d %s", status, body)
	}
}

// followReportingNode reports each Follow on a channel.
type followReportingNode struct {
	command.Node
	following chan struct{}
}

func (n followReportingNode) Follow(ctx context.Context, c command.Follow) (<-chan struct{}, func(), error) {
	defer func() { n.following <- struct{}{} }()
	return n.Node.Follow(ctx, c)
}

// If the key is revoked during a long poll, the answer is a 401 without events.
func TestKeyRevokedDuringLongPoll(t *testing.T) {
	keys := new(Keys)
	d := startGatewayWith(t, Config{Keys: keys})
	key, text := newTestKey(t, 1, 0, ingress.ScopeRead)
	keys.Set([]ingress.Key{key})
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/coordinator/messages", `{"content":"xyzzy"}`); status != 202 {
		t.Fatalf("%d %+v", status, m)
	}
	waits := make(chan struct{}, 1)
	d.server.node = followReportingNode{d.server.node, waits}
	answer := make(chan string, 1)
	go func() {
		status, _, body := d.do("GET", "/v1/runs/"+m.Run+"/events?after=5&wait_ms=30000", "", "Authorization", "Bearer "+text)
		answer <- fmt.Sprint(status, body)
	}()
	<-waits
	keys.Set(nil)
	if status, _, body := d.do("POST", m.Signal.Path, m.Signal.Body); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if got := <-answer; !strings.HasPrefix(got, "401") || strings.Contains(got, "signal_received") {
		t.Errorf("the poll returned %s", got)
	}
}

func (d *testGateway) dial() net.Conn {
	d.Helper()
	c, err := net.Dial("tcp", d.address)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		d.Fatal(err)
	}
	return overTLS(c)
}

// An idempotency key belongs to its principal: the same key of another principal
// starts another run.
func TestIdempotencyKeysArePerPrincipal(t *testing.T) {
	keys := new(Keys)
	d := startGatewayWith(t, Config{Keys: keys})
	one, first := newTestKey(t, 1, 0, ingress.ScopeCall)
	two, second := newTestKey(t, 2, 0, ingress.ScopeCall)
	keys.Set([]ingress.Key{one, two})
	requireKeys(d)
	runs := map[string]string{}
	for i, text := range []string{first, second, first, second} {
		var m messageResponse
		if status := d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"x"}`, "Idempotency-Key", "k", "Authorization", "Bearer "+text); status != 200 || m.Run == "" {
			t.Fatalf("%d %+v", status, m)
		}
		if before := runs[text]; before != "" && before != m.Run {
			t.Errorf("request %d started another run", i)
		}
		runs[text] = m.Run
	}
	if runs[first] == runs[second] {
		t.Error("two keys share a run")
	}
}

// Keys of one user share their idempotency keys: a request repeated with a new key
// does not run again. A user is not a key's ID, nor the node's operator.
func TestIdempotencyKeysOutliveRotation(t *testing.T) {
	d := startGatewayWith(t, Config{Keys: new(Keys), KeysRequired: true})
	create := func(body string) string {
		t.Helper()
		var made struct {
			Text string `json:"key"`
			User string `json:"user"`
		}
		if status := d.owner().doJSON(&made, "POST", "/v1/keys", body); status != 201 || made.User == "" {
			t.Fatalf("%s: %d %+v", body, status, made)
		}
		return made.Text
	}
	run := func(text string) string {
		t.Helper()
		var m messageResponse
		if status := d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"x"}`, "Idempotency-Key", "k", "Authorization", "Bearer "+text); status != 200 || m.Run == "" {
			t.Fatalf("%d %+v", status, m)
		}
		return m.Run
	}
	first := run(create(`{"user":"alice"}`))
	if again := run(create(`{"user":"alice","scopes":["call"]}`)); again != first {
		t.Error("another key of the same user ran the message again")
	}
	for _, body := range []string{`{"user":"bob","scopes":["call"]}`, `{"scopes":["call"]}`} {
		if other := run(create(body)); other == first {
			t.Errorf("%s shares a run with another user", body)
		}
	}
	for user, want := range map[string]string{agents.Operator: "is reserved", "key:0123456789abcdef": "is reserved", "local": "is reserved", "Default": "is reserved", "troupe": "is reserved", "TROUPE.alice": "is reserved",
		"u-0123456789abcdef": "is reserved", `a\nb`: "cannot be printed", `a\u202eb`: "cannot be printed", " alice": "begins or ends with a space", strings.Repeat("u", 257): "257 bytes, want 1 to 256", strings.Repeat("u", 10<<10): "10240 bytes, want 1 to 256"} {
		if status, _, body := d.owner().do("POST", "/v1/keys", `{"user":"`+user+`"}`); status != 400 || !strings.Contains(body, `"field":"user"`) || !strings.Contains(body, want) || len(body) > 1<<10 {
			t.Errorf("user %.80q: %d %.2000s, want %q", user, status, body, want)
		}
	}
	for _, user := range []string{"alice@example.com", "Zo\u00eb / \"z\"", strings.Repeat("u", 256)} {
		body, _ := json.Marshal(map[string]any{"user": user, "scopes": []string{"call", "agents"}})
		text := create(string(body))
		if again := run(create(string(body))); again != run(text) {
			t.Errorf("user %.80q: another key ran the message again", user)
		}
		var a struct {
			Changed bool `json:"changed"`
		}
		for range 2 { // the owner is the same
			if status := d.doJSON(&a, "POST", "/v1/agents", `{"name":"own","prompt":"`+strconv.Itoa(len(user))+`"}`, "Authorization", "Bearer "+text); status >= 300 {
				t.Errorf("user %.80q: %d", user, status)
			}
		}
		if status, _, body := d.do("DELETE", "/v1/agents/own", "", "Authorization", "Bearer "+text); status != 200 {
			t.Errorf("user %.80q: %d %s", user, status, body)
		}
	}
}

// A verified key is cached on its connection only. The cache is not used after
// the key has expired or the key table has changed.
func TestKeyCachePerConnection(t *testing.T) {
	var random [ingress.KeyRandomBytes]byte
	key, text, _ := ingress.NewKey(random, "", "", []ingress.Scope{ingress.ScopeCall}, 0, 0)
	header := func(s string) []byte { return []byte("Bearer " + s) }
	var keys Keys
	c := &connection{}
	if _, ok := keys.authenticate(c, nil); ok {
		t.Error("no header is accepted without keys")
	}
	keys.Set([]ingress.Key{key})
	if _, ok := keys.authenticate(c, nil); ok {
		t.Error("no header is accepted")
	}
	for range 3 {
		if held, ok := keys.authenticate(c, header(text)); !ok || held.ID != key.ID || string(c.cachedKey.header) != "Bearer "+text {
			t.Fatal("the key is refused")
		}
	}
	c.cachedKey.entry = &unknownKey
	if held, _ := keys.authenticate(c, header(text)); held != &unknownKey {
		t.Error("the cache was not used")
	}
	for _, other := range []string{text[:len(text)-1] + "x", text[:len(text)-1], text + "0", ""} {
		if _, ok := keys.authenticate(c, header(other)); ok {
			t.Errorf("%q is accepted", other)
		}
	}
	keys.Set([]ingress.Key{key})
	if held, ok := keys.authenticate(c, header(text)); !ok || held.ID != key.ID {
		t.Error("the key is refused after a table change")
	}
	keys.Set(nil)
	if _, ok := keys.authenticate(c, header(text)); ok {
		t.Error("a revoked key is accepted from the cache")
	}
	key.Expires = wallTime() + actor.Time(time.Hour)
	keys.Set([]ingress.Key{key})
	if _, ok := keys.authenticate(c, header(text)); !ok {
		t.Error("a key that has not expired is refused")
	}
	c.cachedKey.entry.Expires = 1
	if _, ok := keys.authenticate(c, header(text)); ok {
		t.Error("an expired key is accepted from the cache")
	}
}

// An expired key is refused on a new connection too.
func TestExpiredKeyIsRefused(t *testing.T) {
	keys := new(Keys)
	d := startGatewayWith(t, Config{Keys: keys})
	expired, text := newTestKey(t, 1, 1, ingress.ScopeRead)
	keys.Set([]ingress.Key{expired})
	for _, request := range [][2]string{{"GET", "/v1/agents"}, {"POST", "/v1/agents/helper/messages"}} {
		if status := d.rawStatus(request[0], request[1], "Host: "+d.address, "Authorization: Bearer "+text, "Content-Length: 0"); status != 401 {
			t.Errorf("%s: %d, want 401", request, status)
		}
	}
	// Clients with expired keys may share an address with others.
	clock := &testClock{time.Unix(1000, 0)}
	d.server.wrongKeys.now = clock.now
	for range 3 * wrongKeysPerSecond {
		if status, _, body := d.do("GET", "/v1/agents", "", "Authorization", "Bearer "+text); status != 401 || !strings.Contains(body, "the API key "+expired.ID+" has expired") {
			t.Fatalf("%d %s", status, body)
		}
	}
	if status, _, body := d.do("GET", "/v1/agents", "", "Authorization", "Bearer "+text[:len(text)-1]+"x"); status != 401 { // takes the allowance, of which nothing is used
		t.Errorf("the first wrong key: %d %s", status, body)
	}
}
