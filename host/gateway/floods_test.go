// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
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
	from          net.Addr // local address of the connections; nil: that of other clients
}

// hold sends n requests, each on a connection that stays open, and records the beginnings of
// their answers.
func (f *flood) hold(n int, request func(i int) string) {
	f.holdUnanswered(n, 0, func() int64 { return 0 }, request)
}

// holdUnanswered is hold for requests of which some get no answer: the server counts those.
func (f *flood) holdUnanswered(n, unanswered int, counted func() int64, request func(i int) string) {
	f.Helper()
	answers := make(chan string, n)
	for i := range n {
		go func() {
			c, err := (&net.Dialer{LocalAddr: f.from}).Dial("tcp", f.address)
			if err != nil {
				answers <- err.Error()
				return
			}
			f.Cleanup(func() { _ = c.Close() })
			head, body, _ := strings.Cut(request(i), "\n")
			text := head + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: " + f.authorization + "\r\n" + strings.ReplaceAll(body, "\n", "\r\n")
			if _, err := io.WriteString(c, text); err != nil {
				answers <- err.Error()
				return
			}
			status, _ := bufio.NewReader(c).ReadString('\n')
			answers <- strings.TrimSpace(status)
		}()
	}
	timeout := time.After(time.Minute)
	for len(f.answers) < n-unanswered {
		select {
		case a := <-answers:
			f.answers = append(f.answers, a)
		case <-timeout:
			f.Fatalf("%d of %d requests are answered: %q", len(f.answers), n-unanswered, f.answers)
		}
	}
	for began := time.Now(); counted() != int64(unanswered); {
		if time.Since(began) > time.Minute {
			f.Fatalf("%d requests are held, want %d", counted(), unanswered)
		}
		_, _, _ = f.do("GET", "/healthz", "")
	}
	for len(answers) > 0 {
		f.answers = append(f.answers, <-answers)
	}
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

// refused sends requests over n connections until the test ends. Each is refused for the length of
// its body, and does not send it.
func (f *flood) refused(n int) {
	ctx, stop := context.WithCancel(context.Background())
	var sending sync.WaitGroup
	f.Cleanup(func() { stop(); sending.Wait() })
	for range n {
		sending.Go(func() {
			for ctx.Err() == nil {
				c, err := (&net.Dialer{LocalAddr: f.from}).Dial("tcp", f.address)
				if err != nil {
					continue // too many connections
				}
				ended := context.AfterFunc(ctx, func() { _ = c.Close() })
				_, _ = io.WriteString(c, headOf("POST", "/v1/agents/helper/messages", strings.TrimPrefix(f.authorization, "Bearer "), 99_999_999))
				_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
				_, _ = io.Copy(io.Discard, c)
				ended()
				_ = c.Close()
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

// floodAnswered is the time in which each route MUST answer another user during a flood. On an idle
// machine it is below 0.2 s; here another program may have taken the processors.
const floodAnswered = 10 * time.Second

// A principal that floods the server with requests of one kind is refused, and the routes answer
// another user during the flood, each in a third of the floods.
func TestFloodsSpareOtherUsers(t *testing.T) {
	const all, streams = 256, 64 // of the server and of a principal
	sleeper := agents.Define("sleeper", "1", "", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) { return "", t.Sleep(time.Hour) })))
	floods := map[string]func(f *flood, mallory actor.Principal, run string){
		"streams": func(f *flood, _ actor.Principal, run string) {
			f.hold(streams+50, func(int) string { return "GET /v1/runs/" + run + "/events\nAccept: text/event-stream\n\n" })
			if open, refused := f.count("200"), f.count("429"); open != streams || refused != 50 {
				f.Errorf("%d streams are open, %d refused", open, refused)
			}
		},
		"streams of a session": func(f *flood, _ actor.Principal, _ string) {
			f.hold(streams+50, func(int) string { return "GET /v1/sessions/flooded/events\nAccept: text/event-stream\n\n" })
			if open, refused := f.count("200"), f.count("429"); open != streams || refused != 50 {
				f.Errorf("%d streams are open, %d refused", open, refused)
			}
		},
		"long polls": func(f *flood, _ actor.Principal, run string) {
			_, _, all := f.do("GET", "/v1/runs/"+run+"/events", "", "Authorization", f.authorization)
			after := strings.Count(all, `"seq":`)
			f.holdUnanswered(streams+50, streams, f.server.streams.Taken, func(int) string { return fmt.Sprintf("GET /v1/runs/%s/events?after=%d&wait_ms=60000\n\n", run, after) })
			if refused := f.count("429"); refused != 50 {
				f.Errorf("%d long polls are refused: %q", refused, f.answers[:5])
			}
		},
		"sockets": func(f *flood, _ actor.Principal, _ string) {
			f.hold(streams+50, func(int) string {
				return "GET /v1/ws\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\n"
			})
			if open, refused := f.count("101"), f.count("429"); open != streams || refused != 50 {
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
		"changes of agents": func(f *flood, _ actor.Principal, _ string) {
			f.repeat(160, "POST", "/v1/agents/register", func(i int) string {
				return fmt.Sprintf(`{"agent_id":"m%d","endpoint":"http://127.0.0.1:1/%d"}`, i%8, i)
			})
		},
		"unfinished bodies": func(f *flood, _ actor.Principal, _ string) {
			const each, size = bodiesEach / 1_000_000, 1_000_000
			f.holdUnanswered(each+50, each, func() int64 { return f.server.bodies.Taken() / size }, func(int) string {
				return "POST /v1/agents/helper/messages\nContent-Type: application/json\nContent-Length: 1000000\n\n" + strings.Repeat(" ", 10_000)
			})
			if refused := f.count("429"); refused != 50 {
				f.Errorf("%d bodies are refused", refused)
			}
		},
		"refused bodies": func(f *flood, _ actor.Principal, _ string) {
			f.from = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
			f.refused(200)
		},
		"a busy external agent": func(f *flood, _ actor.Principal, _ string) {
			f.hold(400, func(int) string {
				return "POST /v1/agents/outside/messages\nPrefer: respond-async\nContent-Type: application/json\nContent-Length: 15\n\n{\"content\":\"x\"}"
			})
			if admitted, refused := f.count("202"), f.count("429"); admitted == 0 || admitted+refused != 400 {
				f.Errorf("%d messages are admitted, %d refused: %q", admitted, refused, f.answers[:5])
			}
		},
		"pages of events": func(f *flood, _ actor.Principal, run string) {
			f.repeat(32, "GET", "/v1/runs/"+run+"/events?limit=1000", func(int) string { return "" })
		},
		"pages of events of a session": func(f *flood, _ actor.Principal, _ string) {
			f.repeat(32, "GET", "/v1/sessions/flooded/events?limit=1000", func(int) string { return "" })
		},
		"trees": func(f *flood, _ actor.Principal, run string) {
			f.repeat(32, "GET", "/v1/runs/"+run+"?tree=1", func(int) string { return "" })
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
	}
	for v, name := range slices.Sorted(maps.Keys(floods)) {
		start := floods[name]
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
			config := m.server.config
			config.Streams = all
			config.Keys = new(Keys) // no change of the registry replaces them
			config.Keys.Set(m.keys)
			flooded := New(m.server.node, m.server.log, config)
			flooded.wrongKeys.now = patientClock()
			m.testGateway = m.serve(flooded, func(l net.Listener) net.Listener { return l })
			var begun messageResponse
			m.decode(m.prepareAs("mallory", "POST", "/v1/agents/coordinator/messages", `{"content":"x","session_id":"flooded"}`), &begun)
			start(&flood{testGateway: m.testGateway, authorization: mallory.headers[1]}, principal, begun.Run)
			asleep := append([]string{"Prefer", "respond-async"}, bob.headers...)
			if status, _, answer := m.do("POST", "/v1/agents/sleeper/messages", `{"content":"x"}`, asleep...); status != http.StatusAccepted {
				t.Errorf("a message to a busy agent: %d %s", status, answer)
			}
			others := []credential{bob, {name: "the token of a run", headers: []string{"x-run-token", m.token}, run: true},
				{name: "an administrator", headers: []string{"Authorization", "Bearer " + m.texts["admin"]}, scopes: []string{"admin"}}}
			slowest := time.Duration(0)
			answered := func(what string, began time.Time) {
				took := time.Since(began)
				if slowest = max(slowest, took); took >= floodAnswered {
					t.Errorf("%s takes %v", what, took)
				}
			}
			for i, r := range routeRights {
				if (i+v)%3 > 0 || r.right == "issue tokens" { // which needs a key of the registry; see TestTokens
					continue // its turn is in the floods before or after
				}
				at := slices.IndexFunc(others, func(c credential) bool { return c.mayUse(r.right) == 0 })
				if at < 0 {
					t.Fatalf("%s: nobody may use it", r.route)
				}
				user := map[int]string{0: "bob"}[at]
				method, path, body := m.request(m.testGateway, r, others[at], user)
				began := time.Now()
				status, _, answer := m.do(method, path, body, others[at].headers...)
				answered(r.route, began)
				if status != r.status && !(r.status == 201 && status == 200) {
					t.Errorf("%s: %d %s, want %d", r.route, status, answer, r.status)
				}
			}
			var own messageResponse
			m.decode(m.prepareAs("bob", "POST", "/v1/agents/coordinator/messages", `{"content":"x","session_id":"of-bob"}`), &own)
			for _, path := range []string{"/v1/runs/" + own.Run + "/events", "/v1/runs/" + own.Run + "/events?tree=1", "/v1/sessions/of-bob/events"} {
				began := time.Now()
				s := m.openStream("GET", path, "", bob.headers...)
				s.readUntil("wait_opened")
				answered("stream "+path, began)
				_ = s.response.Body.Close()
			}
			for _, path := range []string{"/v1/runs/" + own.Run + "/events?wait_ms=60000", "/v1/runs/" + own.Run + "?tree=1", "/v1/sessions/of-bob/events?wait_ms=60000"} {
				began := time.Now()
				if status, _, answer := m.do("GET", path, "", bob.headers...); status != http.StatusOK {
					t.Errorf("%s: %d %s", path, status, answer)
				}
				answered(path, began)
			}
			began := time.Now()
			m.channel(`{"type":"hello","resume":{"session_id":"of-bob"}}`, http.Header{"Authorization": {bob.headers[1]}}).until("state", "LIVE")
			answered("a socket", began)
			conn := m.dial()
			began = time.Now()
			_, err := io.WriteString(conn, headOf("POST", "/v1/agents/helper/messages", strings.TrimPrefix(bob.headers[1], "Bearer "), 8<<20)+strings.Repeat(" ", 8<<20))
			if err == nil {
				var answer *http.Response
				if answer, err = http.ReadResponse(bufio.NewReader(conn), nil); err == nil && answer.StatusCode != http.StatusRequestEntityTooLarge {
					t.Errorf("a body of 8 MiB: %s", answer.Status)
				}
			}
			if err != nil {
				t.Errorf("a body of 8 MiB: %v", err)
			}
			answered("a refused body", began)
			t.Logf("the slowest route takes %v", slowest)
		})
	}
}
