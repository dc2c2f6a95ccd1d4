// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/troupe-run/troupe/agents"
)

// seenRequests is a tool server that keeps the requests.
type seenRequests struct {
	*httptest.Server
	mu  sync.Mutex
	all []seenRequest
}

type seenRequest struct {
	header http.Header
	uri    string
	body   string
}

func newSeenRequests(t *testing.T) *seenRequests {
	s := &seenRequests{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.all = append(s.all, seenRequest{r.Header.Clone(), r.RequestURI, string(body)})
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `"ok"`)
	}))
	t.Cleanup(s.Close)
	return s
}

// last returns the last request.
func (s *seenRequests) last(t *testing.T) seenRequest {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		t.Fatal("no request")
	}
	return s.all[len(s.all)-1]
}

// A tool that asks for it is told who asks: the user of the request that began the tree, through whatever
// agents, and never what the model says. Others are told nothing.
func TestToolsAreToldWhoAsks(t *testing.T) {
	d := startGateway(t, newBuyer(), agents.Define("front", "1", "test agent", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) { return turn.Call("buyer", turn.Message()) }))))
	s := newSeenRequests(t)
	declare := func(name, fields string) {
		t.Helper()
		if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"`+name+`","url":"`+s.URL+fields+`}`); status != 201 {
			t.Fatalf("%s: %d %s", name, status, body)
		}
	}
	declare("orders", `/users/{{user}}/orders?session={{session}}","identity":"headers","headers":{"X-For":{"value":"{{user}} of {{agent}}"}},"body":{"user":"{{user}}","n":"{n}"},"input_schema":{"type":"object","properties":{"n":{}}}`)
	declare("plain", `/plain"`)
	const user = "zoë@example.com"
	ask := func(agent, content string) messageResponse {
		t.Helper()
		var m messageResponse
		if status := d.doJSON(&m, "POST", "/v1/agents/"+agent+"/messages", `{"content":"`+strings.ReplaceAll(content, `"`, `\"`)+`","session_id":"s-`+agent+`","user_id":"`+user+`"}`,
			"X-Troupe-User", "mallory", "X-Troupe-Run", "mallory"); status != 200 {
			t.Fatalf("%s: %d %+v", content, status, m)
		}
		return m
	}
	const escaped = "zo%C3%AB@example.com"
	for _, agent := range []string{"buyer", "front"} {
		m := ask(agent, `orders {"n":"{{user}}","user":"mallory"}`)
		r := s.last(t)
		if agent == "buyer" && r.header.Get("X-Troupe-Run") != m.Run || r.header.Get("X-Troupe-User") != escaped || r.header.Get("X-Troupe-Agent") != "buyer" || r.header.Get("X-Troupe-Session") == "" || r.header.Get("X-For") != escaped+" of buyer" {
			t.Errorf("through %s: %v", agent, r.header)
		}
		if !strings.HasPrefix(r.uri, "/users/"+escaped+"/orders?session=") || r.body != `{"user":"`+user+`","n":"{{user}}"}` {
			t.Errorf("through %s: %s %s", agent, r.uri, r.body)
		}
	}
	ask("buyer", `plain {"user":"mallory"}`)
	for name := range s.last(t).header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-troupe-") && name != egressHeader {
			t.Errorf("a tool without identity gets %s", name)
		}
	}
	for definition, field := range map[string]string{
		`"url":"http://127.0.0.1/{{user}}"`:                                                          "url",
		`"url":"http://127.0.0.1/{{usr}}","identity":"headers"`:                                      "url",
		`"url":"http://{{user}}/x","identity":"headers"`:                                             "url",
		`"url":"http://127.0.0.1:{{user}}/x","identity":"headers"`:                                   "url",
		`"url":"{{user}}://127.0.0.1/x","identity":"headers"`:                                        "url",
		`"url":"http://127.0.0.1/?{{user}}=1","identity":"headers"`:                                  "url",
		`"url":"http://127.0.0.1/","headers":{"X-Troupe-User":{"value":"bob"}}`:                      "headers.X-Troupe-User",
		`"url":"http://127.0.0.1/","headers":{"x_troupe_user":{"value":"bob"}},"identity":"headers"`: "headers.x_troupe_user",
		`"url":"http://127.0.0.1/","headers":{"X-A":{"value":"a\r\nX-Troupe-User: bob"}}`:            "headers.X-A",
		`"url":"http://127.0.0.1/","headers":{"X-A":{"value":"{{user}}"}}`:                           "headers.X-A",
		`"url":"http://127.0.0.1/","body":{"a":"{{user}}"}`:                                          "body",
		`"url":"http://127.0.0.1/","identity":"yes"`:                                                 "identity",
		`"kind":"client_tool","identity":"headers"`:                                                  "identity",
	} {
		if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"bad",`+definition+`}`); status != 400 || !strings.Contains(body, `"field":"`+field+`"`) {
			t.Errorf("%s: %d %s, want field %s", definition, status, body, field)
		}
	}
}

// The call of an external agent has the same identity: that of the user of its run, whatever its request says.
func TestToolsOfExternalAgentsAreToldWhoAsks(t *testing.T) {
	m := newAuthorization(t)
	s := newSeenRequests(t)
	m.prepare("POST", "/v1/tools", `{"tool_name":"orders","url":"`+s.URL+`/{{user}}","identity":"headers"}`)
	status, _, answer := m.do("POST", "/v1/tools/orders:invoke", `{"args":{"user":"mallory"}}`, "x-run-token", m.token, "X-Troupe-User", "mallory", "X_Troupe_User", "mallory")
	if status != 200 && status != 202 {
		t.Fatal(status, answer)
	}
	var run struct {
		Principal string `json:"principal"`
		Session   string `json:"session_id"`
	}
	r := s.last(t)
	m.decode(m.prepare("GET", "/v1/runs/"+r.header.Get("X-Troupe-Run"), ""), &run)
	if len(r.header["X-Troupe-User"]) != 1 || r.header.Get("X-Troupe-User") != run.Principal || strings.HasPrefix(run.Principal, "run:") || r.header.Get("X-Troupe-Agent") != "outside" || r.header.Get("X-Troupe-Session") != run.Session || r.uri != "/"+run.Principal {
		t.Errorf("%v %s, run of %+v", r.header, r.uri, run)
	}
}

// A kept result of a tool that is told who asks is given to that user and session only, also if users share a
// namespace.
func TestKeptResultsAreThoseOfTheUser(t *testing.T) {
	d := startGateway(t, newBuyer())
	s := newSeenRequests(t)
	if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"orders","url":"`+s.URL+`/","identity":"headers","idempotent":true,"cache_ms":60000}`); status != 201 {
		t.Fatal(status, body)
	}
	a, b := d.createLimitedKey(`{}`), d.createLimitedKey(`{}`) // of one namespace
	for _, c := range []struct {
		key, session string
		requests     int
	}{{a, "s-1", 1}, {a, "s-1", 1}, {b, "s-1", 2}, {a, "s-2", 3}, {a, "s-1", 3}} {
		if status, answer := d.doAs(c.key, "POST", "/v1/agents/buyer/messages", `{"content":"orders {}","session_id":"`+c.session+`"}`); status != 200 {
			t.Fatal(status, answer)
		}
		s.mu.Lock()
		if n := len(s.all); n != c.requests {
			t.Errorf("%s: %d requests, want %d", c.session, n, c.requests)
		}
		s.mu.Unlock()
	}
}

// A signed identity is verified with nothing but the key set of the server, and is bound to the call.
func TestSignedIdentityIsVerifiable(t *testing.T) {
	d := startGateway(t, newBuyer())
	s := newSeenRequests(t)
	if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"orders","url":"`+s.URL+`/x/{{user}}","identity":"jwt"}`); status != 201 {
		t.Fatal(status, body)
	}
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/buyer/messages", `{"content":"orders {\"b\":2,\"a\":1}","user_id":"alice"}`); status != 200 {
		t.Fatal(status, m)
	}
	r := s.last(t)
	requireKeys(d)
	status, headers, set := d.do("GET", "/.well-known/jwks.json", "")
	if status != 200 || headers.Get("Content-Type") != "application/json" || strings.Contains(set, `"d":`) {
		t.Fatal(status, headers, set)
	}
	var keys struct{ Keys []struct{ Kid, X string } }
	if err := json.Unmarshal([]byte(set), &keys); err != nil || len(keys.Keys) != 3 {
		t.Fatal(err, set)
	}
	signed := r.header.Get("X-Troupe-Identity")
	head, signature, _ := cutLast(signed, ".")
	raw, _ := base64.RawURLEncoding.DecodeString(keys.Keys[0].X)
	mac, _ := base64.RawURLEncoding.DecodeString(signature)
	_, body, _ := strings.Cut(head, ".")
	text, _ := base64.RawURLEncoding.DecodeString(body)
	var claims map[string]any
	if err := json.Unmarshal(text, &claims); err != nil || !ed25519.Verify(raw, []byte(head), mac) {
		t.Fatalf("%v %s", err, signed)
	}
	sum := sha256.Sum256([]byte(r.body))
	if claims["sub"] != "alice" || claims["aud"] != s.URL || claims["tool"] != "orders" || claims["run"] != m.Run || claims["jti"] != r.header.Get("Idempotency-Key") || claims["args_sha256"] != hex.EncodeToString(sum[:]) {
		t.Errorf("%v of the request %s %v", claims, r.body, r.header)
	}
}

func cutLast(text, separator string) (before, after string, ok bool) {
	at := strings.LastIndex(text, separator)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+len(separator):], true
}
