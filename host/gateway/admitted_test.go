// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"hash/maphash"
	"net/http"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/ingress"
)

// A caller is that of one request: the next request that reuses the head gets none, whether it has a
// body or not.
func TestAdmittedCallerIsOfOneRequest(t *testing.T) {
	a := &admitted{seed: maphash.MakeSeed()}
	var h, other fasthttp.RequestHeader
	h.SetContentLength(5)
	other.SetContentLength(5)
	by := &caller{}
	a.put(&h, by, ingress.ScopeCall)
	if a.take(&other, ingress.ScopeCall) != nil {
		t.Error("the caller of another request is taken")
	}
	if a.take(&h, ingress.ScopeCall) != by || a.take(&h, ingress.ScopeCall) != nil {
		t.Error("the caller is not taken once")
	}
	a.put(&h, by, ingress.ScopeCall)
	if a.take(&h, ingress.ScopeAdmin) != nil {
		t.Error("the caller is taken for another scope")
	}
	a.put(&h, by, scopePublic)
	if a.take(&h, scopePublic) != nil {
		t.Error("a caller of any request is taken")
	}
	a.put(&h, by, "")
	if a.take(&h, ingress.ScopeCall) != nil {
		t.Error("the caller of the former request is taken")
	}
	a.put(&h, by, ingress.ScopeCall) // its body never arrives, and the next request has none
	h.SetContentLength(0)
	if a.take(&h, ingress.ScopeCall) != nil {
		t.Error("a request without a body takes the caller of the former one")
	}
}

// A path that the table of scopes does not know may have a route: there the request is authorized as
// without a body.
func TestRightsOfPathsWithColon(t *testing.T) {
	d := startGateway(t)
	agents, reader := d.newUser(`"scopes":["agents"]`), d.newUser(`"user":"bob","scopes":["read"]`)
	if status, body := agents.do("POST", "/v1/agents/register", `{"agent_id":"ext1","endpoint":"http://127.0.0.1:1","name":"w:x"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	for _, path := range []string{"/v1/agents/w:x/messages", "/v1/sessions/a:b/messages", "/v1/agents/ext1/messages"} {
		if status, body := reader.do("POST", path, `{"content":"hi","role":"user","agent_id":"ext1"}`, userHeader, "alice"); status != 403 {
			t.Errorf("%s: %d %s, want 403", path, status, body)
		}
	}
}

// A key that is revoked while the body of its request arrives has no effect.
func TestKeyRevokedWhileBodyArrives(t *testing.T) {
	keys, texts := testPrincipals(t, ingress.ScopeCall)
	b := startBareGateway(t, Config{Keys: keys}, nil)
	conn := b.dial(t)
	const body = `{"content":"hello"}`
	head := strings.TrimSuffix(headOf("POST", "/v1/agents/helper/messages", texts[0], len(body)), "\r\n") + "Expect: 100-continue\r\n\r\n"
	if _, err := conn.Write([]byte(head)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	keys.Set(nil)
	if _, err := conn.Write([]byte(body)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("got %d, want 401", resp.StatusCode)
	}
}
