// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// serveEmbedded serves the routes with another HTTP server until the test ends.
func (d *testGateway) serveEmbedded() *testGateway {
	d.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.Fatal(err)
	}
	other := &fasthttp.Server{Handler: Handler(d.server), CloseOnShutdown: true, Logger: httpLog{d.server.log}}
	ended := make(chan error, 1)
	go func() { ended <- other.Serve(l) }()
	d.Cleanup(func() {
		d.client.CloseIdleConnections()
		if err := other.Shutdown(); err != nil {
			d.Error(err)
		}
		if err := <-ended; err != nil {
			d.Error(err)
		}
	})
	return &testGateway{d.T, d.server, l.Addr().String(), d.client, d.dir}
}

// Another server knows less about its clients than the own listeners do, so no client gets
// in without a key, whatever its request claims.
func TestEmbeddedHandlerRequiresKey(t *testing.T) {
	d := startGateway(t)
	e := d.serveEmbedded()
	key := "Authorization: Bearer " + d.createKey("read")
	for name, c := range map[string]struct {
		lines  []string
		status int
	}{
		"no key":                    {[]string{"Host: " + e.address}, 401},
		"host of the own listener":  {[]string{"Host: " + d.address}, 401},
		"bearer of another service": {[]string{"Host: " + e.address, "Authorization: Bearer sk-1"}, 401},
		"key":                       {[]string{"Host: example.com", key}, 200},
		"key twice":                 {[]string{"Host: " + e.address, key, key}, 400},
		"space before the colon":    {[]string{"Host: " + e.address, key, "X-A : 1"}, 400},
		"page of another origin":    {[]string{"Host: " + e.address, key, "Origin: https://example.com"}, 403},
	} {
		if status := e.rawStatus("GET", "/v1/agents", c.lines...); status != c.status {
			t.Errorf("%s: status %d, want %d", name, status, c.status)
		}
	}
	if status := e.rawStatus("GET", "/healthz", "Host: "+e.address); status != 200 {
		t.Errorf("health: status %d", status)
	}
	if status := d.rawStatus("GET", "/v1/agents", "Host: "+d.address); status != 200 {
		t.Errorf("the own listener: status %d", status)
	}
}

func TestEmbeddedHandlerServesMessages(t *testing.T) {
	d := startGateway(t)
	e := d.serveEmbedded()
	key := []string{"Authorization", "Bearer " + d.createKey("call")}
	var m messageResponse
	if status := e.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"x"}`, key...); status != 200 || m.Content != "response from helper: x" {
		t.Errorf("status %d, %+v", status, m)
	}
	s := e.openStream("POST", "/v1/agents/helper/messages", `{"content":"y"}`, key...)
	s.readUntil("run_done")
	_ = s.response.Body.Close()
	for body, want := range map[string]int{
		`{"content":"` + strings.Repeat("x", BodyBytesMax) + `"}`: 413,
		`{"content":"x","unknown":1}`:                             400,
	} {
		if status, _, answer := e.do("POST", "/v1/agents/helper/messages", body, key...); status != want {
			t.Errorf("%.40s: status %d, want %d: %s", body, status, want, answer)
		}
	}
	if status, _, answer := e.do("POST", "/v1/agents/helper/messages", `{"content":"x"}`, append(key, "Content-Type", "text/plain")...); status != 415 {
		t.Errorf("text: status %d %s", status, answer)
	}
	if status, _, _ := e.do("GET", "/v1/agents/%2e", "", key...); status != 400 {
		t.Errorf("escaped path: status %d", status)
	}
}
