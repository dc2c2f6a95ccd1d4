// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/ingress"

	"github.com/valyala/fasthttp"
)

// rawStatus sends one request with the given header lines on a connection of its
// own and returns the status of the response.
func (d *testGateway) rawStatus(method, path string, lines ...string) int {
	d.Helper()
	conn := d.dial()
	defer conn.Close()
	if _, err := io.WriteString(conn, method+" "+path+" HTTP/1.1\r\n"+strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		d.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		d.Fatalf("%q: %v", lines, err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// A request with a header that proxies add needs a key, on any line and with any
// value.
func TestForwardingHeaderRequiresKey(t *testing.T) {
	d := startGateway(t)
	host := "Host: " + d.address
	if status := d.rawStatus("GET", "/v1/agents", host); status != 200 {
		t.Fatalf("without a forwarding header: %d", status)
	}
	for _, name := range []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Server", "X-Forwarded-Port",
		"X-Forwarded-Ssl", "X-Real-IP", "X-Client-IP", "X-Cluster-Client-IP", "CF-Connecting-IP", "True-Client-IP", "Fastly-Client-IP", "CDN-Loop",
		"X-Original-For", "X-Original-Forwarded-For", "X-Original-Host", "X-Envoy-External-Address", "X-Envoy-Expected-Rq-Timeout-Ms", "X-Remote-IP", "Client-IP",
		"Proxy-Client-IP", "WL-Proxy-Client-IP", "X-ProxyUser-Ip", "X-Varnish", "X-Azure-ClientIP", "X-Appengine-User-IP", "CF-Ray", "Fly-Client-IP", "CloudFront-Viewer-Address"} {
		for form, lines := range map[string][]string{
			"value":         {name + ": 203.0.113.7"},
			"empty":         {name + ":"},
			"blank":         {name + ": \t "},
			"loopback":      {name + ": 127.0.0.1"},
			"second line":   {name + ":", name + ": 203.0.113.7"},
			"third line":    {name + ":", "Accept: */*", name + ": 127.0.0.1", name + ": 203.0.113.7"},
			"upper case":    {strings.ToUpper(name) + ": 203.0.113.7"},
			"lower case":    {strings.ToLower(name) + ":"},
			"underscores":   {strings.ReplaceAll(name, "-", "_") + ": 203.0.113.7"},
			"hop by hop":    {"Connection: " + name, name + ": 203.0.113.7"},
			"foreign token": {"Authorization: Bearer sk-unknown", name + ":"},
			"after others":  {"Accept: */*", "User-Agent: x", "X-Other: y", name + ":"},
		} {
			if status := d.rawStatus("GET", "/v1/agents", append([]string{host}, lines...)...); status != 401 {
				t.Errorf("%s, %s: %d", name, form, status)
			}
			if status := d.rawStatus("GET", "/v1/agents", append(lines, host)...); status != 401 {
				t.Errorf("%s, %s, before Host: %d", name, form, status)
			}
		}
	}
	for _, name := range []string{"X-Other", "X-Forward", "Viaduct", "X-Request-Id", "Traceparent", "X-Original", "Proxy-Connection", "Client", "Warning"} {
		if status := d.rawStatus("GET", "/v1/agents", host, name+": 203.0.113.7"); status != 200 {
			t.Errorf("%s: %d", name, status)
		}
	}
}

// A proxy that is configured only to forward, as nginx is by default, adds no header
// and speaks HTTP/1.0 to the server. Its requests need a key.
func TestHTTP10RequiresKey(t *testing.T) {
	keys := new(Keys)
	d := startGatewayWith(t, Config{Keys: keys})
	key, text := newTestKey(t, 1, 0, ingress.ScopeRead)
	keys.Set([]ingress.Key{key})
	for _, c := range []struct {
		path, lines string
		want        int
	}{
		{"/v1/agents", "Connection: close\r\n", 401},
		{"/v1/agents", "Connection: keep-alive\r\n", 401},
		{"/v1/agents", "Authorization: Bearer sk-unknown\r\n", 401},
		{"/v1/agents", "Authorization: Bearer " + text + "\r\n", 200},
		{"/healthz", "", 200},
	} {
		conn := d.dial()
		if _, err := io.WriteString(conn, "GET "+c.path+" HTTP/1.0\r\nHost: "+d.address+"\r\n"+c.lines+"\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s %q: %v", c.path, c.lines, err)
		}
		if _ = response.Body.Close(); response.StatusCode != c.want {
			t.Errorf("%s %q: %d, want %d", c.path, c.lines, response.StatusCode, c.want)
		}
		_ = conn.Close()
	}
}

// Without a key a request must name this server by a loopback name and its port.
func TestKeylessRequestNamesServer(t *testing.T) {
	d := startGatewayWith(t, Config{Hosts: []string{"troupe.example"}})
	_, port, err := net.SplitHostPort(d.address)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{
		"127.0.0.1:" + port: 200, "localhost:" + port: 200, "LOCALHOST:" + port: 200, "[::1]:" + port: 200, "127.8.9.10:" + port: 200,
		"localhost": 401, "127.0.0.1": 401, "[::1]": 401, "localhost:80": 401, "localhost:1": 401, "troupe.example": 401, "troupe.example:" + port: 401,
		"localhost.example:" + port: 403, "10.0.0.1:" + port: 403, "127.0.0.1.example:" + port: 403, "": 400,
	} {
		for range 2 { // the second time with the host remembered
			if status := d.rawStatus("GET", "/v1/agents", "Host: "+host); status != want {
				t.Errorf("Host %q: %d, want %d", host, status, want)
			}
		}
	}
}

// A request over the owner's socket that comes before the listener's port is known leaves no
// answer about its host to later requests.
func TestHostSeenBeforePort(t *testing.T) {
	s := New(nil, slog.New(slog.DiscardHandler), Config{})
	s.onLoopback.Store(true)
	var h fasthttp.RequestHeader
	h.SetHost("127.0.0.1:4711")
	if p := s.checkHost(&h); p != nil || s.isLocalHost(h.Host()) {
		t.Fatal("a host has the port of a server without one", p)
	}
	s.port.Store(4711)
	if !s.isLocalHost(h.Host()) {
		t.Error("the host of the server needs a key")
	}
}

// A bearer of another service is ignored where no key is required. One in the form
// of a key is verified, and other credentials are refused.
func TestForeignBearerOnLoopback(t *testing.T) {
	keys := new(Keys)
	d := startGatewayWith(t, Config{Keys: keys})
	key, text := newTestKey(t, 1, 0, ingress.ScopeRead)
	keys.Set([]ingress.Key{key})
	host := "Host: " + d.address
	for credentials, want := range map[string]int{
		"Bearer sk-0123456789": 200, "bearer EMPTY": 200, "Bearer ": 200, "Bearer": 200, "": 200, "Bearer TROUPE_X": 200, "Bearer x troupe_": 200,
		"Bearer troupe_": 401, "Bearer troupe_wrong": 401, "Bearer  troupe_wrong": 401, "Basic dTpw": 401, "troupe_wrong": 401, "Bearer " + text: 200, "Bearer " + text + "0": 401,
	} {
		if status := d.rawStatus("GET", "/v1/agents", host, "Authorization: "+credentials); status != want {
			t.Errorf("Authorization %q: %d, want %d", credentials, status, want)
		}
	}
	requireKeys(d)
	if status := d.rawStatus("GET", "/v1/agents", host, "Authorization: Bearer sk-0123456789"); status != 401 {
		t.Errorf("a foreign bearer off loopback: %d", status)
	}
}

// With KeysRequired a client on loopback needs a key too.
func TestKeysRequiredOnLoopback(t *testing.T) {
	keys := new(Keys)
	d := startGatewayWith(t, Config{Keys: keys, KeysRequired: true})
	key, text := newTestKey(t, 1, 0, ingress.ScopeRead)
	keys.Set([]ingress.Key{key})
	host := "Host: " + d.address
	for credentials, want := range map[string]int{"": 401, "Bearer sk-0123456789": 401, "Bearer " + text: 200} {
		if status := d.rawStatus("GET", "/v1/agents", host, "Authorization: "+credentials); status != want {
			t.Errorf("Authorization %q: %d, want %d", credentials, status, want)
		}
	}
	if status := d.rawStatus("GET", "/healthz", host); status != 200 {
		t.Errorf("health check: %d", status)
	}
}
