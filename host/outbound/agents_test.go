// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

const agentURL = "http://agents.example:9000/py"

// agentEvents returns a stream of agent events, each given as "name data".
func agentEvents(events ...string) (b []byte) {
	for _, e := range events {
		name, data, _ := strings.Cut(e, " ")
		b = runs.Frame{Name: name, Data: data}.Append(b)
	}
	return b
}

func testToken(run actor.CallID, invocation uint32, id actor.ID) string {
	return fmt.Sprint(tokenCanary, "-", invocation, "-") + run.Short() + "-" + id.Key
}

func TestExternalAgentInvocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var headers http.Header
		var body string
		w := newFixture(t, Config{Token: testToken}, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			headers, body = r.Header, r.Method+" "+r.URL.Path+" "+string(b)
			writeStream(w, agentEvents(`state {"state":"thinking","detail":{"step":1}}`, `delta {"text":"hel"}`, `delta {"text":"lo","run_id":"`+callID.String()+`"}`, `unknown {}`,
				`done {"usage":{"input_tokens":2,"output_tokens":1}}`))
		})
		h := invoke(t.Context(), w.Outbound, upstream.Target{URL: agentURL, AuthEnv: "TROUPE_AUTH_A"}, false, testTimeout)
		c := h.completion(t)
		if c.Text != "hello" || h.text != "hello" || fmt.Sprint(h.states) != `[thinking{"step":1}]` || c.Usage.Total != 3 || c.Finish != upstream.FinishStop {
			t.Errorf("%+v %+v", c, h)
		}
		want := `POST /py/invoke {"agent_id":"py","session_id":"s-42","run_id":"` + callID.String() + `","input_message":{"role":"user","content":"hi ` + promptCanary + `"},"messages":[],"context":{"user_id":"u-1","project_id":"p-1"}}`
		if body != want {
			t.Errorf("%s\nwant\n%s", body, want)
		}
		for name, want := range map[string]string{
			"X-Session-Id": "s-42", "X-Run-Id": callID.String(), "X-Run-Token": testToken(callID, 0, actor.NewID("py", "s-42")), "Authorization": "Bearer " + authCanary,
			"Traceparent": "00-" + strings.ReplaceAll(rootID.String(), "-", "") + "-8000000000000004-00", "Accept": "text/event-stream",
			"Content-Type": "application/json", "User-Agent": "troupe", "X-Troupe-Egress": "1", "Content-Length": fmt.Sprint(len(body) - len("POST /py/invoke ")),
		} {
			if got := headers.Values(name); len(got) != 1 || got[0] != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if len(headers) != 10 {
			t.Errorf("%v", headers)
		}
		checkNoSecrets(t, h, w.log)
		w.close()
	})
}

func TestAgentFailures(t *testing.T) {
	for _, c := range []struct {
		name   string
		agent  func(w http.ResponseWriter, r *http.Request, n int)
		safe   bool
		text   string
		reason actor.Reason
		detail string
		asked  int64
	}{
		{"reports an error", func(w http.ResponseWriter, r *http.Request, _ int) {
			writeStream(w, agentEvents(`error {"code":"agent_busy","message":"try later, `+r.Header.Get("X-Run-Token")+`"}`))
		}, false, "", actor.Busy, "try later, ***", 1},
		{"disconnects, not idempotent", func(http.ResponseWriter, *http.Request, int) { abortConnection() }, false, "", actor.Unknown, "may have been processed", 1},
		{"disconnects, idempotent", func(w http.ResponseWriter, _ *http.Request, n int) {
			if n == 1 {
				abortConnection()
			}
			writeStream(w, agentEvents(`delta {"text":"hi"}`, `done {}`))
		}, true, "hi", 0, "", 2},
		{"is silent, not idempotent", func(_ http.ResponseWriter, r *http.Request, _ int) { waitOrDisconnect(r, testTimeout) }, false, "", actor.Deadline, "no time is left", 1},
		{"stops in the middle", func(w http.ResponseWriter, _ *http.Request, _ int) {
			writeStream(w, agentEvents(`delta {"text":"hi"}`))
		}, true, "hi", actor.Unavailable, "response ended after 1 events without done", 5},
		{"names another run", func(w http.ResponseWriter, _ *http.Request, _ int) {
			writeStream(w, agentEvents(`delta {"text":"hi","run_id":"x"}`))
		}, true, "", actor.Unavailable, `run_id "x" is that of another run`, 5},
		{"answers with JSON", func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"text":"hi"}`)
		}, false, "", actor.Unknown, "want an event stream; the request", 1},
		{"is overloaded, then answers", func(w http.ResponseWriter, _ *http.Request, n int) {
			if n == 1 {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(503)
				return
			}
			writeStream(w, agentEvents(`done {}`))
		}, false, "", 0, "", 2},
		{"has no such path", func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(404) }, false, "", actor.Unavailable, "answers 404", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				w := newFixture(t, Config{Token: testToken}, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					c.agent(w, r, int(asked.Add(1)))
				})
				h := invoke(t.Context(), w.Outbound, upstream.Target{URL: agentURL, AuthEnv: "TROUPE_AUTH_A"}, c.safe, testTimeout)
				if c.reason == 0 {
					h.completion(t)
				} else if h.Refusal == nil || h.Refusal.Reason != c.reason || !strings.Contains(h.Refusal.Detail, c.detail) {
					t.Errorf("%v, want %v: %s", h.Refusal, c.reason, c.detail)
				}
				if h.text != c.text || asked.Load() != c.asked {
					t.Errorf("text %q, %d requests; want %q and %d", h.text, asked.Load(), c.text, c.asked)
				}
				checkNoSecrets(t, h, w.log)
				w.close()
			})
		})
	}
}

func TestInvalidInvocationsAreNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) { waitOrDisconnect(r, time.Minute) })
		for _, c := range []struct {
			target upstream.Target
			reason actor.Reason
			detail string
		}{
			{upstream.Target{URL: "gopher://h"}, actor.Invalid, "agent py: target: url: want http or https"},
			{upstream.Target{URL: agentURL, AuthEnv: "KEY"}, actor.Invalid, "TROUPE_AUTH_"},
			{upstream.Target{URL: agentURL, AuthEnv: "TROUPE_AUTH_B"}, actor.Unavailable, "the environment variable TROUPE_AUTH_B is not set"},
			{upstream.Target{URL: "http://thief.example", AuthEnv: "TROUPE_AUTH_A"}, actor.Rejected, "may not send the secret TROUPE_AUTH_A to thief.example: serve with --auth TROUPE_AUTH_A=thief.example"},
			{upstream.Target{URL: "http://agents.example:9001/py", AuthEnv: "TROUPE_AUTH_A"}, actor.Rejected, "agents.example:9001"},
			{upstream.Target{URL: agentURL, AuthEnv: "TROUPE_AUTH_C"}, actor.Rejected, "TROUPE_AUTH_C"},
		} {
			if n := w.poll(Agent{"py", c.target}); n != 0 {
				t.Errorf("health poll of %+v: %d", c.target, n)
			}
			h := invoke(t.Context(), w.Outbound, c.target, false, testTimeout)
			if h.Refusal == nil || h.Refusal.Reason != c.reason || !strings.Contains(h.Refusal.Detail, c.detail) {
				t.Errorf("%v, want %s", h.Refusal, c.detail)
			}
		}
		if n := w.network.dialCount(); n > 0 {
			t.Errorf("%d connections, want 0", n)
		}
		w.Outbound.Close()
		h := invoke(t.Context(), w.Outbound, upstream.Target{URL: agentURL}, false, testTimeout)
		if h.Refusal == nil || h.Refusal.Reason != actor.Unavailable || !strings.Contains(h.Refusal.Detail, "stopping") || h.Refusal.RetryAfter <= 0 {
			t.Errorf("%v", h.Refusal)
		}
		w.close()
	})
}

func TestAgentConcurrencyLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "GET" {
				return // healthy
			}
			_, _ = io.ReadAll(r.Body)
			waitOrDisconnect(r, time.Minute)
			writeStream(w, agentEvents(`done {}`))
		})
		w.SetAgents([]Agent{{"py", upstream.Target{URL: agentURL}}})
		for _, limit := range []int{0, 2} {
			target, most := upstream.Target{URL: agentURL, Concurrency: limit}, limit
			if limit == 0 {
				most = upstream.ConcurrencyDefault
			}
			var done atomic.Int64
			for n := range (1 + queueFactor) * most { // most at once, the others in turns of two users
				go func() {
					op := invocationOf(target, false, testTimeout)
					op.Call.Principal = fmt.Sprint("user ", n%2)
					if a := w.Invoke(context.Background(), op, nil, func(actor.Piece) {}); a.Refusal == nil {
						done.Add(1)
					}
				}()
			}
			synctest.Wait()
			h := invoke(t.Context(), w.Outbound, target, false, testTimeout)
			if r := h.Refusal; r == nil || r.Reason != actor.Busy || r.Scope != actor.ScopeCallee || r.RetryAfter <= 0 || h.took > 0 ||
				r.Detail != fmt.Sprintf("agent py is at its limit of concurrent requests (%d), and %d wait", most, queueFactor*most) {
				t.Errorf("%+v", r)
			}
			for batch := 1; batch <= 1+queueFactor; batch++ { // of bubble time
				<-time.After(time.Minute + time.Second)
				if n := int(done.Load()); n != batch*most {
					t.Errorf("%d requests were answered after %d minutes, want %d", n, batch, batch*most)
				}
			}
		}
		if s := w.Stats()[1]; s.Kind != "agent" || s.Name != "py" || s.Refused != 2 || s.Attempts != 330 || s.InProgress != 0 || s.Took != 330*time.Minute {
			t.Errorf("%+v", s)
		}
		if n := len(w.agents.queues); n > 0 {
			t.Errorf("%d agents still have open invocations", n)
		}
		w.close()
	})
}

// TestAgentHealth takes an agent through all states: healthy, silent, sending
// heartbeats, unhealthy, moved and removed.
func TestAgentHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var polls, invoked atomic.Int64
		var health atomic.Int64 // status of /health; 0: no response
		health.Store(200)
		w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/invoke") {
				invoked.Add(1)
				writeStream(w, agentEvents(`done {}`))
				return
			}
			polls.Add(1)
			if r.Method != "GET" || r.URL.Path != "/py/health" || r.Header.Get("Authorization") != "Bearer "+authCanary || r.Header.Get("X-Run-Token") != "" {
				t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
			}
			if status := int(health.Load()); status > 0 {
				w.WriteHeader(status)
				return
			}
			waitOrDisconnect(r, time.Minute)
		})
		target := upstream.Target{URL: agentURL, AuthEnv: "TROUPE_AUTH_A", Retry: upstream.RetryPolicy{Tries: 1}} // no wait for health
		check := func(what string, healthy bool) {
			t.Helper()
			synctest.Wait()
			before := invoked.Load()
			h := invoke(t.Context(), w.Outbound, target, false, testTimeout)
			if w.Healthy("py") != healthy || (h.Refusal == nil) != healthy || (invoked.Load() > before) != healthy {
				t.Errorf("%s: healthy %v, %v", what, w.Healthy("py"), h.Refusal)
			}
			if r := h.Refusal; r != nil && (r.Reason != actor.Unavailable || r.RetryAfter <= 0 || h.took > 0) {
				t.Errorf("%s: %+v after %v", what, r, h.took)
			}
		}
		advance := func(d time.Duration) { <-time.After(d) } // in bubble time

		if w.Healthy("py") || w.Heartbeat("py") {
			t.Error("an unknown agent is healthy")
		}
		w.SetAgents([]Agent{{"py", target}})
		check("just added", true)
		advance(46 * time.Second)
		check("polled three times", true)
		if n := polls.Load(); n != 3 {
			t.Errorf("polled %d times in 46 s, want 3", n)
		}
		health.Store(0)
		advance(44 * time.Second) // the last response came at 45 s
		check("silent for 45 s", true)
		advance(2 * time.Second)
		check("silent for 47 s", false)
		if !w.Heartbeat("py") {
			t.Error("the heartbeat was refused")
		}
		check("after a heartbeat", true)
		advance(10 * time.Second)
		w.SetAgents([]Agent{{"py", target}, {"other", target}})
		advance(36 * time.Second)
		check("silent again, set once more", false)
		health.Store(200)
		advance(20 * time.Second)
		check("answering again", true)
		health.Store(503)
		advance(16 * time.Second)
		check("reports itself unhealthy", false)

		// The health at the new endpoint is unknown.
		w.SetAgents([]Agent{{"py", upstream.Target{URL: "http://elsewhere.example/py", AuthEnv: target.AuthEnv}}})
		if !w.Healthy("py") {
			t.Error("a moved agent is unhealthy before its first poll")
		}
		advance(16 * time.Second)
		if w.Healthy("py") {
			t.Error("a moved agent is healthy after a failed poll")
		}
		before := invoked.Load()
		if h := invoke(t.Context(), w.Outbound, target, false, testTimeout); h.Refusal != nil || invoked.Load() == before {
			t.Errorf("invocation by an older definition: %v", h.Refusal)
		}

		w.SetAgents(nil)
		n := polls.Load()
		advance(time.Minute)
		if polls.Load() != n || w.Healthy("py") || w.Heartbeat("py") {
			t.Error("a removed agent is still polled or healthy")
		}
		if len(w.agents.backoffs) > 0 {
			t.Errorf("%d unused back-offs remain", len(w.agents.backoffs))
		}
		w.close()
	})
}

// A service that restarts within the time of the retries costs none of the calls that
// arrive while it is known to be unhealthy.
func TestCallWaitsForUnhealthyAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "GET" {
				waitOrDisconnect(r, time.Minute)
				return
			}
			writeStream(w, agentEvents(`done {}`))
		})
		target := upstream.Target{URL: agentURL}
		w.SetAgents([]Agent{{"py", target}})
		for _, c := range []struct {
			name           string
			until, beating time.Duration // silence before the call, time until a heartbeat; 0: none
			least, most    time.Duration // time until the answer
		}{
			{"heartbeat within the retry time", 46 * time.Second, 10 * time.Second, 10 * time.Second, 12 * time.Second},
			{"no heartbeat", 46 * time.Second, 0, 27 * time.Second, 29 * time.Second},
			{"silent for longer", 80 * time.Second, 0, 0, 0},
		} {
			w.Heartbeat("py")
			<-time.After(c.until) // of bubble time
			beat := make(chan struct{})
			go func() {
				defer close(beat)
				if c.beating > 0 {
					<-time.After(c.beating)
					w.Heartbeat("py")
				}
			}()
			h := invoke(t.Context(), w.Outbound, target, true, testTimeout)
			if (h.Refusal == nil) != (c.beating > 0) || h.took < c.least || h.took > c.most {
				t.Errorf("%s: %v after %v", c.name, h.Refusal, h.took)
			}
			<-beat
		}
		if n := len(w.agents.queues); n > 0 {
			t.Errorf("%d agents still have open invocations", n)
		}
		w.close()
	})
}

// An invocation of an older definition, at another endpoint, does not change the health of
// the agent.
func TestInvocationOfOldEndpointIsNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{}, func(http.ResponseWriter, *http.Request) {})
		w.dialer.connect = func(context.Context, string, netip.AddrPort) (net.Conn, error) {
			return nil, errors.New("connection refused")
		}
		w.SetAgents([]Agent{{"py", upstream.Target{URL: "http://elsewhere.example/py"}}})
		old := upstream.Target{URL: agentURL, Retry: upstream.RetryPolicy{Tries: 1}}
		if h := invoke(t.Context(), w.Outbound, old, false, testTimeout); h.Refusal == nil || !w.Healthy("py") {
			t.Errorf("after an invocation of the old endpoint: %v, healthy: %v", h.Refusal, w.Healthy("py"))
		}
		current := upstream.Target{URL: "http://elsewhere.example/py", Retry: old.Retry}
		if h := invoke(t.Context(), w.Outbound, current, false, testTimeout); h.Refusal == nil || w.Healthy("py") {
			t.Errorf("after an invocation of the current endpoint: %v, healthy: %v", h.Refusal, w.Healthy("py"))
		}
		w.close()
	})
}

func TestHealthReplyOfOldEndpointIsIgnored(t *testing.T) {
	for _, moves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
				waitOrDisconnect(r, 2*time.Second)
				w.WriteHeader(503)
			})
			w.SetAgents([]Agent{{"py", upstream.Target{URL: agentURL}}})
			<-time.After(16 * time.Second) // of bubble time: the poll began a second ago
			next := agentURL
			if moves {
				next = "http://elsewhere.example"
			}
			w.SetAgents([]Agent{{"py", upstream.Target{URL: next}}})
			<-time.After(2 * time.Second)
			if w.Healthy("py") != moves {
				t.Errorf("moves %v: healthy %v after a reply of the old endpoint", moves, w.Healthy("py"))
			}
			w.close()
		})
	}
}

func TestHealthPollReusesConnection(t *testing.T) {
	for _, c := range []struct {
		name  string
		after func(w http.ResponseWriter, r *http.Request)
		dials int
	}{
		{"a short answer", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("ok", 1000)) }, 1},
		{"an endless answer", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				writeStream(w, make([]byte, 1000))
			}
		}, 5},
		{"an unfinished answer", func(w http.ResponseWriter, r *http.Request) {
			writeStream(w, nil)
			waitOrDisconnect(r, time.Hour)
		}, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var under atomic.Int64
				w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
					under.Add(1)
					defer under.Add(-1)
					c.after(w, r)
				})
				w.SetAgents([]Agent{{"py", upstream.Target{URL: agentURL}}})
				<-time.After(82 * time.Second) // of bubble time
				if n := w.network.dialCount(); n != c.dials || under.Load() != 0 || !w.Healthy("py") {
					t.Errorf("%d connections, %d open, healthy %v", n, under.Load(), w.Healthy("py"))
				}
				w.close()
			})
		})
	}
}

func TestHealthPollConcurrencyLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var polls, now, most atomic.Int64
		w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			polls.Add(1)
			most.Store(max(most.Load(), now.Add(1)))
			waitOrDisconnect(r, 100*time.Millisecond)
			now.Add(-1)
		})
		var all []Agent
		for n := range 1000 {
			all = append(all, Agent{fmt.Sprint("a-", n), upstream.Target{URL: fmt.Sprintf("http://h-%d.example", n%7)}})
		}
		w.SetAgents(all)
		<-time.After(44 * time.Second) // of bubble time: two rounds of polls, which begin after 15 s and 30 s and take about 6 s each
		if n := polls.Load(); n != 2000 || most.Load() != pollsMax {
			t.Errorf("%d polls, at most %d at a time", n, most.Load())
		}
		w.close()
	})
}

// connections lets a test refuse the connections of a fixture, and counts them.
type connections struct {
	down    atomic.Bool
	refused atomic.Int64
}

func refusable(w *fixture) *connections {
	c, up := &connections{}, w.dialer.connect
	w.dialer.connect = func(ctx context.Context, network string, address netip.AddrPort) (net.Conn, error) {
		if c.down.Load() {
			c.refused.Add(1)
			return nil, errors.New("connection refused")
		}
		return up(ctx, network, address)
	}
	return c
}

// The first call of an agent that cannot be reached waits for its restart. Later ones do not, and from
// the third on its circuit is open: calls are refused at once, without a connection, but for a probe
// from time to time.
func TestUnreachableAgentIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			writeStream(w, agentEvents(`done {}`))
		})
		target, network := upstream.Target{URL: agentURL}, refusable(w)
		network.down.Store(true)
		w.SetAgents([]Agent{{"py", target}})
		call := func(circuit string, fast, connects bool) {
			t.Helper()
			began, before := time.Now(), network.refused.Load()
			h := invoke(t.Context(), w.Outbound, target, false, testTimeout)
			if took := time.Since(began); h.Refusal == nil || h.Refusal.Reason != actor.Unavailable || h.Refusal.RetryAfter <= 0 || (took == 0) != fast || (network.refused.Load() > before) != connects {
				t.Errorf("got %v after %v and %d connections, want it fast: %v, with connections: %v", h.Refusal, took, network.refused.Load()-before, fast, connects)
			}
			if got := w.Circuit("py"); got != circuit {
				t.Errorf("the circuit is %s, want %s", got, circuit)
			}
		}
		pause := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		call("closed", false, true)
		pause(time.Second) // in which invocations are held back, see upstream.Health
		call("closed", true, true)
		pause(time.Second)
		call("open", true, true)
		for range 5 {
			call("open", true, false)
		}
		if s := w.Circuits(); len(s) != 1 || s[0] != (CircuitStat{"py", true, 1}) || w.Healthy("py") {
			t.Errorf("got %+v, healthy: %v", s, w.Healthy("py"))
		}
		pause(5 * time.Second)
		if got := w.Circuit("py"); got != "half_open" {
			t.Errorf("after 5 s the circuit is %s", got)
		}
		call("open", true, true) // the probe
		call("open", true, false)
		network.down.Store(false)
		pause(10 * time.Second)
		if h := invoke(t.Context(), w.Outbound, target, false, testTimeout); h.Refusal != nil || w.Circuit("py") != "closed" || !w.Healthy("py") {
			t.Errorf("got %v, circuit %s, healthy: %v", h.Refusal, w.Circuit("py"), w.Healthy("py"))
		}
		w.close()
	})
}

// What an agent refuses, and callers that go away or allow it less than ten seconds, never open its
// circuit. Failures do, and a heartbeat does not close it then.
func TestCircuitCountsFailuresOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var status atomic.Int64
		w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			switch s := status.Load(); {
			case r.Method == "GET":
			case s == 0:
				waitOrDisconnect(r, time.Hour)
			default:
				w.WriteHeader(int(s))
			}
		})
		target := upstream.Target{URL: agentURL, Retry: upstream.RetryPolicy{Tries: 1}}
		w.SetAgents([]Agent{{"py", target}})
		for _, s := range []int64{400, 403, 422, 0} {
			status.Store(s)
			for range 12 {
				if h := invoke(t.Context(), w.Outbound, target, false, 9*time.Second); h.Refusal == nil || w.Circuit("py") != "closed" {
					t.Fatalf("status %d: got %v, circuit %s", s, h.Refusal, w.Circuit("py"))
				}
			}
		}
		<-time.After(time.Minute)
		status.Store(500)
		for range 10 {
			invoke(t.Context(), w.Outbound, target, false, testTimeout)
		}
		if w.Heartbeat("py"); w.Circuit("py") != "open" {
			t.Errorf("after ten failures and a heartbeat the circuit is %s", w.Circuit("py"))
		}
		h := invoke(t.Context(), w.Outbound, target, false, testTimeout)
		if h.Refusal == nil || h.Refusal.RetryAfter != 5*time.Second || !strings.Contains(h.Refusal.Detail, "10 of 10 calls") {
			t.Errorf("got %v", h.Refusal)
		}
		w.close()
	})
}

// A service that accepts no connection is unhealthy at once. After a restart it is
// healthy and invoked again with its first heartbeat or answered poll.
func TestUnreachableAgentIsUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "GET" {
				return
			}
			writeStream(w, agentEvents(`done {}`))
		})
		target, network := upstream.Target{URL: agentURL}, refusable(w)
		w.SetAgents([]Agent{{"py", target}})
		fail := func() {
			t.Helper()
			synctest.Wait() // until the last connection is idle
			w.transport.CloseIdleConnections()
			network.down.Store(true)
			if h := invoke(t.Context(), w.Outbound, target, false, testTimeout); h.Refusal == nil || w.Healthy("py") {
				t.Errorf("unreachable: %v, healthy: %v", h.Refusal, w.Healthy("py"))
			}
			h := invoke(t.Context(), w.Outbound, target, false, testTimeout)
			if h.Refusal == nil { // at once by its health, or later if its circuit is open
				t.Errorf("right after that: %+v in %v", h.Refusal, h.took)
			}
			network.down.Store(false)
		}
		fail()
		if !w.Heartbeat("py") || !w.Healthy("py") {
			t.Error("unhealthy after a heartbeat")
		}
		if h := invoke(t.Context(), w.Outbound, target, false, testTimeout); h.Refusal != nil {
			t.Errorf("after a heartbeat: %v", h.Refusal)
		}
		fail()
		<-time.After(upstream.HeartbeatEvery)
		synctest.Wait()
		if !w.Healthy("py") {
			t.Error("unhealthy after a poll that was answered")
		}
		if h := invoke(t.Context(), w.Outbound, target, false, testTimeout); h.Refusal != nil {
			t.Errorf("after a poll: %v", h.Refusal)
		}
		w.close()
	})
}
