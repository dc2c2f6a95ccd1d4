// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/ingress"
)

// crossOriginHeaders returns the headers of an answer that let a page read it.
func crossOriginHeaders(h http.Header) (names []string) {
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Pages of listed origins, and no others, may send each request of the table and read its
// answer. A preflight request needs no key and has no effect.
func TestPreflightOfEachRoute(t *testing.T) {
	d := startGatewayWith(t, Config{Origins: []string{"https://console.example"}, KeysRequired: true})
	for _, r := range routeRights {
		method, path, _ := strings.Cut(r.route, " ")
		path = strings.NewReplacer("{id}", "x", "{skill}", "x").Replace(path)
		for _, c := range []struct {
			origin string
			status int
		}{{"https://console.example", 204}, {"https://console.example.evil.example", 403}, {"http://console.example", 403}, {"null", 403}, {"", 405}} {
			headers := []string{"Access-Control-Request-Method", method, "Access-Control-Request-Headers", "authorization"}
			if c.origin != "" {
				headers = append(headers, "Origin", c.origin)
			}
			status, answer, body := d.do(http.MethodOptions, path, "", headers...)
			names := crossOriginHeaders(answer)
			if status != c.status {
				t.Errorf("%s from %q: %d %s", r.route, c.origin, status, body)
			}
			if c.status != 204 {
				if len(names) > 0 {
					t.Errorf("%s from %q: headers %q", r.route, c.origin, names)
				}
				continue
			}
			if got := answer.Get("Access-Control-Allow-Origin"); got != c.origin || answer.Get("Vary") != "Origin" || body != "" {
				t.Errorf("%s: origin %q, headers %v, body %q", r.route, got, answer, body)
			}
			if !slices.Contains(strings.Split(answer.Get("Access-Control-Allow-Methods"), ", "), method) || !strings.Contains(answer.Get("Access-Control-Allow-Headers"), "Authorization, Content-Type") || answer.Get("Access-Control-Max-Age") != "600" {
				t.Errorf("%s: headers %v", r.route, answer)
			}
			if answer.Get("Access-Control-Allow-Credentials") != "" {
				t.Errorf("%s: credentials are allowed", r.route)
			}
		}
	}
	// The package openai runs in a page too.
	if _, answer, _ := d.do(http.MethodOptions, agentChatRoute, "", "Origin", "https://console.example", "Access-Control-Request-Method", "POST",
		"Access-Control-Request-Headers", "authorization,x-other, x-stainless-os,x-stainless-é"); !strings.HasSuffix(answer.Get("Access-Control-Allow-Headers"), "X-User-Id, x-stainless-os") {
		t.Errorf("headers %v", answer)
	}
	if status, answer, _ := d.do(http.MethodOptions, "/v1/nothing", "", "Origin", "https://console.example", "Access-Control-Request-Method", "GET"); status != 404 || len(crossOriginHeaders(answer)) != 2 {
		t.Errorf("unknown path: %d %v", status, answer)
	}
}

// A page of a listed origin reads answers, problems and streams. Others get no header, and
// without --origin no page does.
func TestPageReadsAnswers(t *testing.T) {
	const console = "https://console.example"
	key, text := newTestKey(t, 1, 0, ingress.ScopeAdmin)
	keys := new(Keys)
	keys.Set([]ingress.Key{key})
	d := startGatewayWith(t, Config{Origins: []string{"https://other.example", console}, Keys: keys, KeysRequired: true})
	bearer := []string{"Authorization", "Bearer " + text}
	var reply struct {
		Run     string `json:"run_id"`
		Session string `json:"session_id"`
	}
	if status := d.doJSON(&reply, "POST", "/v1/agents/helper/messages", `{"content":"x"}`, append(bearer, "Origin", console)...); status != 200 {
		t.Fatal(status)
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		headers            []string
	}{
		{"GET", "/v1/agents", "", 200, bearer},
		{"POST", "/v1/agents/helper/messages", `{"content":"x"}`, 200, bearer},
		{"POST", "/v1/agents/helper/messages", `{"content":"x"}`, 200, append([]string{"Accept", "text/event-stream"}, bearer...)},
		{"GET", "/v1/runs/" + reply.Run + "/events", "", 200, append([]string{"Accept", "text/event-stream"}, bearer...)},
		{"GET", "/v1/agents/nobody", "", 404, bearer},
		{"GET", "/v1/agents", "", 401, nil},
		{"POST", "/v1/agents/helper/messages", `{"content":"x"}`, 401, nil}, // refused before the body
		{"POST", "/v1/agents/helper/messages", `x`, 415, append([]string{"Content-Type", "text/plain"}, bearer...)},
	} {
		status, answer, body := d.do(c.method, c.path, c.body, append(c.headers, "Origin", console)...)
		if status != c.status || answer.Get("Access-Control-Allow-Origin") != console || answer.Get("Vary") != "Origin" || !strings.Contains(answer.Get("Access-Control-Expose-Headers"), "X-Run-Id") || len(crossOriginHeaders(answer)) != 2 {
			t.Errorf("%s %s: %d %v %s, want %d", c.method, c.path, status, answer, body, c.status)
		}
		status, answer, body = d.do(c.method, c.path, c.body, c.headers...)
		if status != c.status || len(crossOriginHeaders(answer)) > 0 {
			t.Errorf("%s %s without Origin: %d %v %s", c.method, c.path, status, answer, body)
		}
		if status, answer, body = d.do(c.method, c.path, c.body, append(c.headers, "Origin", "https://evil.example")...); status != 403 || len(crossOriginHeaders(answer)) > 0 {
			t.Errorf("%s %s of another origin: %d %v %s", c.method, c.path, status, answer, body)
		}
	}
	stream := d.openStream("GET", "/v1/sessions/"+reply.Session+"/events", "", append(bearer, "Accept", "text/event-stream", "Origin", console)...)
	if h := stream.response.Header; h.Get("Access-Control-Allow-Origin") != console || h.Get("Vary") != "Origin" {
		t.Errorf("events of a session: %v", h)
	}
	_ = stream.response.Body.Close()
	none := startGateway(t)
	if status, answer, body := none.do("GET", "/v1/agents", "", "Origin", "http://"+none.address); status != 200 || len(crossOriginHeaders(answer)) > 0 || answer.Get("Vary") != "" {
		t.Errorf("without --origin: %d %v %s", status, answer, body)
	}
}
