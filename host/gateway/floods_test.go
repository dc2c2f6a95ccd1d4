// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/node"
)

// flood are the requests of one principal that want all of a resource.
type flood struct {
	*testGateway
	authorization string // of the principal
	answers       []string
}

// hold sends n requests, each on a connection that stays open, and records the beginnings of
// their answers. Those without an answer so far are recorded as "".
func (f *flood) hold(n int, request func(i int) string) {
	f.Helper()
	var sending sync.WaitGroup
	var mu sync.Mutex
	for i := range n {
		sending.Go(func() {
			c, err := net.Dial("tcp", f.address)
			if err != nil {
				f.Error(err)
				return
			}
			f.Cleanup(func() { _ = c.Close() })
			head, body, _ := strings.Cut(request(i), "\n")
			text := head + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: " + f.authorization + "\r\n" + strings.ReplaceAll(body, "\n", "\r\n")
			if _, err := io.WriteString(c, text); err != nil {
				f.Error(err)
				return
			}
			_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
			status, _ := bufio.NewReader(c).ReadString('\n')
			mu.Lock()
			defer mu.Unlock()
			f.answers = append(f.answers, strings.TrimSpace(status))
		})
	}
	sending.Wait()
}

// repeat sends requests over n connections until the test ends.
func (f *flood) repeat(n int, method, path string, body func(i int) string) {
	ctx, stop := context.WithCancel(context.Background())
	var sending sync.WaitGroup
	f.Cleanup(func() { stop(); sending.Wait() })
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	for i := range n {
		sending.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				r, _ := http.NewRequestWithContext(ctx, method, "http://"+f.address+path, strings.NewReader(body(i*1000+k%1000)))
				r.Header.Set("Authorization", f.authorization)
				r.Header.Set("Content-Type", "application/json")
				if answer, err := client.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
				}
			}
		})
	}
}

// count returns the number of answers that begin with a status.
func (f *flood) count(status string) (n int) {
	for _, a := range f.answers {
		if strings.HasPrefix(a, "HTTP/1.1 "+status) {
			n++
		}
	}
	return n
}

// A principal that floods the server with requests of one kind is refused, and each route answers
// another user within a second.
func TestFloodsSpareOtherUsers(t *testing.T) {
	const streams = StreamsMax / 4
	sleeper := agents.Define("sleeper", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) { return "", t.Sleep(time.Hour) })))
	for name, start := range map[string]func(f *flood, mallory actor.Principal, run string){
		"streams": func(f *flood, _ actor.Principal, run string) {
			f.hold(streams+100, func(int) string { return "GET /v1/runs/" + run + "/events\nAccept: text/event-stream\n\n" })
			if open, refused := f.count("200"), f.count("429"); open != streams || refused != 100 {
				f.Errorf("%d streams are open, %d refused", open, refused)
			}
		},
		"streams of a session": func(f *flood, _ actor.Principal, _ string) {
			f.hold(streams+100, func(int) string { return "GET /v1/sessions/flooded/events\nAccept: text/event-stream\n\n" })
			if open, refused := f.count("200"), f.count("429"); open != streams || refused != 100 {
				f.Errorf("%d streams are open, %d refused", open, refused)
			}
		},
		"long polls": func(f *flood, _ actor.Principal, run string) {
			_, _, all := f.do("GET", "/v1/runs/"+run+"/events", "", "Authorization", f.authorization)
			after := strings.Count(all, `"seq":`)
			f.hold(streams+100, func(int) string { return fmt.Sprintf("GET /v1/runs/%s/events?after=%d&wait_ms=60000\n\n", run, after) })
			if refused := f.count("429"); refused != 100 {
				f.Errorf("%d long polls are refused: %q", refused, f.answers[:5])
			}
		},
		"sockets": func(f *flood, _ actor.Principal, _ string) {
			f.hold(streams+100, func(int) string {
				return "GET /v1/ws\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\n"
			})
			if open, refused := f.count("101"), f.count("429"); open != streams || refused != 100 {
				f.Errorf("%d sockets are open, %d refused", open, refused)
			}
		},
		"lists": func(f *flood, _ actor.Principal, _ string) {
			f.repeat(32, "GET", "/v1/runs?limit=200", func(int) string { return "" })
		},
		"messages": func(f *flood, _ actor.Principal, _ string) {
			f.hold(400, func(int) string {
				return "POST /v1/agents/sleeper/messages\nPrefer: respond-async\nContent-Type: application/json\nContent-Length: 15\n\n{\"content\":\"x\"}"
			})
			if admitted, refused := f.count("202"), f.count("429"); admitted > 256 || admitted+refused != 400 {
				f.Errorf("%d messages are admitted, %d refused", admitted, refused)
			}
		},
		"subscriptions": func(f *flood, mallory actor.Principal, run string) {
			id, err := actor.ParseCallID(run)
			if err != nil {
				f.Fatal(err)
			}
			for range node.SubscriptionShares.Each {
				_, stop, err := f.server.node.Follow(context.Background(), command.Follow{By: mallory, Run: id})
				if err != nil {
					f.Fatal(err)
				}
				f.Cleanup(stop)
			}
			for path, want := range map[string]string{"events?wait_ms=1": "429", "events": "200"} {
				if status, _, body := f.do("GET", "/v1/runs/"+run+"/"+path, "", "Authorization", f.authorization); fmt.Sprint(status) != want {
					f.Errorf("%s: %d %s, want %s", path, status, body, want)
				}
			}
			if status, _, body := f.do("GET", "/v1/runs/"+run+"/events", "", "Authorization", f.authorization, "Accept", ingress.EventStream); status != 429 || !strings.Contains(body, "subscriptions to runs and sessions of yours") {
				f.Errorf("stream: %d %s", status, body)
			}
			if status, _, body := f.do("POST", "/v1/runs/"+run+":cancel", "", "Authorization", f.authorization); status != 200 || !strings.Contains(body, "CANCELLED") {
				f.Errorf("cancellation: %d %s", status, body)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newAuthorization(t, sleeper)
			add := func(seed byte, user string) (credential, actor.Principal) {
				random := [ingress.KeyRandomBytes]byte(bytes.Repeat([]byte{seed}, ingress.KeyRandomBytes))
				scopes := []string{"call", "read", "agents", "operator"}
				key, text, r := ingress.NewKey(random, "", user, []ingress.Scope{"call", "read", "agents", "operator"}, 0, 0)
				if r != nil {
					t.Fatal(r)
				}
				m.keys = append(m.keys, key)
				return credential{name: user, headers: []string{"Authorization", "Bearer " + text}, scopes: scopes}, key.Principal()
			}
			mallory, principal := add(201, "mallory")
			bob, _ := add(202, "bob")
			m.server.config.Keys.Set(m.keys)
			var begun messageResponse
			m.decode(m.prepareAs("mallory", "POST", "/v1/agents/coordinator/messages", `{"content":"x","session_id":"flooded"}`), &begun)
			start(&flood{testGateway: m.testGateway, authorization: mallory.headers[1]}, principal, begun.Run)
			asleep := append([]string{"Prefer", "respond-async"}, bob.headers...)
			if status, _, answer := m.do("POST", "/v1/agents/sleeper/messages", `{"content":"x"}`, asleep...); status != http.StatusAccepted {
				t.Errorf("a message to a busy agent: %d %s", status, answer)
			}
			slowest := time.Duration(0)
			for _, r := range routeRights {
				if bob.mayUse(r.right) != 0 {
					continue
				}
				took := time.Hour
				for range 3 { // another program may have taken the processor
					method, path, body := m.request(m.testGateway, r, bob, "bob")
					m.server.config.Keys.Set(m.keys)
					began := time.Now()
					status, _, answer := m.do(method, path, body, bob.headers...)
					took = min(took, time.Since(began))
					m.server.config.Keys.Set(m.keys)
					if status != r.status && !(r.status == 201 && status == 200) {
						t.Errorf("%s: %d %s, want %d", r.route, status, answer, r.status)
					}
					if took < time.Second {
						break
					}
				}
				if slowest = max(slowest, took); took >= time.Second {
					t.Errorf("%s takes %v", r.route, took)
				}
			}
			t.Logf("the slowest route takes %v", slowest)
		})
	}
}
