// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// modelStream returns a complete answer of a model, in pieces of 6 bytes.
func modelStream(text string) []byte {
	return upstream.AppendStream(nil, upstream.Completion{Text: text, Finish: upstream.FinishStop, Model: "gpt-x-1",
		Usage: upstream.Usage{Known: true, Input: 7, Output: 3, Total: 10}}, 6)
}

func writeStream(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	_, _ = w.Write(body)
	w.(http.Flusher).Flush()
}

func abortConnection() { panic(http.ErrAbortHandler) }

// TestModelFailures reproduces all known faults of models over real HTTP, with
// exact times.
func TestModelFailures(t *testing.T) {
	whole := string(modelStream("hello world"))
	half := strings.Join(strings.SplitAfter(whole, "\n\n")[:2], "") // the role, and "hello "
	cases := []struct {
		name    string
		model   func(w http.ResponseWriter, r *http.Request, n int) // n is the number of the request
		text    string                                              // text received
		reason  actor.Reason                                        // 0: success
		detail  string
		asked   int           // number of requests
		atLeast time.Duration // in bubble time
		atMost  time.Duration
	}{
		{"success", func(w http.ResponseWriter, _ *http.Request, _ int) { writeStream(w, modelStream("hello world")) }, "hello world", 0, "", 1, 0, 0},
		{"not streamed", func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"model":"gpt-x-1","choices":[{"index":0,"message":{"role":"assistant","content":"hello world"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}`)
		}, "hello world", 0, "", 1, 0, 0},
		{"429 with Retry-After", func(w http.ResponseWriter, r *http.Request, n int) {
			if n < 3 {
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(429)
				_, _ = io.WriteString(w, `{"error":{"message":"slow down, `+r.Header.Get("Authorization")+`","code":"rate_limit_exceeded"}}`)
				return
			}
			writeStream(w, modelStream("hello world"))
		}, "hello world", 0, "", 3, 14 * time.Second, 20 * time.Second},
		{"429 beyond the time left", func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(429)
		}, "", actor.Busy, "answers 429", 1, 0, time.Second},
		{"429 every time", func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(429) }, "", actor.Busy, "answers 429", 5, 0, 30 * time.Second},
		{"500, then success", func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 1 {
				w.WriteHeader(500)
				_, _ = io.WriteString(w, "boom "+r.Header.Get("Authorization"))
				return
			}
			writeStream(w, modelStream("hello world"))
		}, "hello world", 0, "", 2, 0, 2 * time.Second},
		{"500 every time", func(w http.ResponseWriter, r *http.Request, _ int) {
			w.WriteHeader(500)
			_, _ = fmt.Fprintf(w, `{"error":{"message":"you sent %s"}}`, r.Header.Get("Authorization"))
		}, "", actor.Unavailable, "model gpt-x answers 500: you sent ***", 5, 0, 30 * time.Second},
		{"401 that quotes the key", func(w http.ResponseWriter, r *http.Request, _ int) {
			w.WriteHeader(401)
			_, _ = fmt.Fprintf(w, `{"error":{"message":"Incorrect API key provided: %s","code":"invalid_api_key"}}`, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		}, "", actor.ModelAuth, "invalid_api_key: Incorrect API key provided: ***", 1, 0, 0},
		{"400 that quotes the prompt", func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"error":{"message":"what is `+promptCanary+`?"}}`)
		}, "", actor.ModelRejected, "what is " + promptCanary, 1, 0, 0},
		{"no answer", func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }, "", actor.Unavailable, "no response within 2m0s", 2, 4 * time.Minute, 4*time.Minute + 2*time.Second},
		{"an error whose body never ends", func(w http.ResponseWriter, r *http.Request, _ int) {
			w.WriteHeader(400)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, "", actor.ModelRejected, "answers 400", 1, 2 * time.Second, 2 * time.Second},
		{"silence after the head", func(w http.ResponseWriter, r *http.Request, _ int) {
			writeStream(w, nil)
			<-r.Context().Done()
		}, "", actor.Unavailable, "no data for 1m0s", 2, 2 * time.Minute, 2*time.Minute + 2*time.Second},
		{"silence in the middle", func(w http.ResponseWriter, r *http.Request, _ int) {
			writeStream(w, []byte(half))
			<-r.Context().Done()
		}, "hello ", actor.Unavailable, "no data for 1m0s during", 2, 2 * time.Minute, 2*time.Minute + 2*time.Second},
		{"slower than the idle time-out", func(w http.ResponseWriter, r *http.Request, _ int) {
			for _, line := range strings.SplitAfter(whole, "\n\n") {
				writeStream(w, []byte(line))
				waitOrDisconnect(r, 61*time.Second)
			}
		}, "", actor.Unavailable, "no data for 1m0s", 2, 2 * time.Minute, 2*time.Minute + 2*time.Second},
		{"slow, but alive", func(w http.ResponseWriter, r *http.Request, _ int) {
			for _, line := range strings.SplitAfter(whole, "\n\n") {
				writeStream(w, []byte(line))
				waitOrDisconnect(r, 59*time.Second)
			}
		}, "hello world", 0, "", 1, 5 * 59 * time.Second, 8 * 59 * time.Second},
		{"endless comments", func(w http.ResponseWriter, r *http.Request, _ int) {
			for r.Context().Err() == nil {
				writeStream(w, []byte(": ping\n\n"))
				waitOrDisconnect(r, 30*time.Second)
			}
		}, "", actor.Deadline, "timeout", 1, testTimeout, testTimeout},
		{"half a stream, and the connection breaks", func(w http.ResponseWriter, _ *http.Request, _ int) { writeStream(w, []byte(half)); abortConnection() },
			"hello ", actor.Unavailable, "connection lost", 5, 0, 30 * time.Second},
		{"half a stream, and a clean end", func(w http.ResponseWriter, _ *http.Request, _ int) { writeStream(w, []byte(half)) },
			"hello ", actor.Unavailable, "without a finish reason", 5, 0, 30 * time.Second},
		{"an empty stream, then success", func(w http.ResponseWriter, _ *http.Request, n int) {
			if n == 1 {
				writeStream(w, nil)
				return
			}
			writeStream(w, modelStream("hello world"))
		}, "hello world", 0, "", 2, 0, 2 * time.Second},
		{"disconnects before the first byte, then success", func(w http.ResponseWriter, _ *http.Request, n int) {
			if n == 1 {
				abortConnection()
			}
			writeStream(w, modelStream("hello world"))
		}, "hello world", 0, "", 2, 0, 2 * time.Second},
		{"garbage", func(w http.ResponseWriter, _ *http.Request, _ int) {
			writeStream(w, []byte("data: {\"choices\":[{\n\n"))
		},
			"", actor.Unavailable, "event 1: not JSON", 5, 0, 30 * time.Second},
		{"garbage after some text", func(w http.ResponseWriter, _ *http.Request, _ int) { writeStream(w, []byte(half+"data: oops\n\n")) },
			"hello ", actor.Unavailable, "byte 0", 5, 0, 30 * time.Second},
		{"an HTML page", func(w http.ResponseWriter, _ *http.Request, _ int) { _, _ = io.WriteString(w, "<html>") }, "", actor.Unavailable, `answers with "text/html"`, 5, 0, 30 * time.Second},
		{"a malformed tool call", func(w http.ResponseWriter, _ *http.Request, _ int) {
			writeStream(w, []byte(`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":-3,"function":{"name":"f"}}]}}]}`+"\n\n"))
		}, "", actor.Unavailable, "tool call -3: negative index", 5, 0, 30 * time.Second},
		{"an error in the middle", func(w http.ResponseWriter, r *http.Request, _ int) {
			writeStream(w, []byte(half+`data: {"error":{"message":"overloaded with `+r.Header.Get("Authorization")+`","type":"server_error"}}`+"\n\n"))
		}, "hello ", actor.Unavailable, "sent an error server_error: overloaded with ***", 5, 0, 30 * time.Second},
		{"a compressed answer", func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Content-Encoding", "gzip")
			writeStream(w, modelStream("hello world"))
		}, "", actor.Unavailable, "unexpected content coding", 5, 0, 30 * time.Second},
		{"a huge chunk", func(w http.ResponseWriter, _ *http.Request, _ int) {
			writeStream(w, []byte("data: "+strings.Repeat("x", 2<<20)))
		}, "", actor.ModelRejected, "a line is longer than 1048576 bytes", 1, 0, 0},
		{"an endless answer", func(w http.ResponseWriter, r *http.Request, _ int) {
			long := upstream.AppendStream(nil, upstream.Completion{Text: strings.Repeat("x", 64<<10)}, 64<<10)
			for r.Context().Err() == nil {
				writeStream(w, long)
			}
		}, strings.Repeat("x", 512<<10), actor.ModelRejected, "output exceeds 524288 bytes", 1, 0, 0},
		{"an endless JSON body", func(w http.ResponseWriter, r *http.Request, _ int) {
			w.Header().Set("Content-Type", "application/json")
			for r.Context().Err() == nil {
				_, _ = w.Write(make([]byte, 64<<10))
			}
		}, "", actor.ModelRejected, "a line is longer than 1048576 bytes", 1, 0, 0},
		{"an endless head", func(w http.ResponseWriter, _ *http.Request, _ int) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX: ")
			n, err := 0, error(nil)
			for ; err == nil; n += 4096 {
				_, err = conn.Write([]byte(strings.Repeat("x", 4096)))
			}
			if n > 128<<10 {
				t.Errorf("%d bytes of a head were read", n)
			}
		}, "", actor.Unavailable, "connection lost", 5, 0, 30 * time.Second},
		{"not HTTP", func(w http.ResponseWriter, _ *http.Request, _ int) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			defer conn.Close()
			_, _ = io.WriteString(conn, "220 mail.example ESMTP\r\n")
		}, "", actor.Unavailable, "connection lost", 5, 0, 30 * time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				w := newFixture(t, Config{Models: oneModel("http://models.example/v1/")}, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/v1/chat/completions" || r.Method != "POST" || r.Header.Get("Authorization") != "Bearer "+canary {
						t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
					}
					_, _ = io.ReadAll(r.Body)
					c.model(w, r, int(asked.Add(1)))
				})
				h := askModel(t.Context(), w.Outbound, "m", "say "+promptCanary, testTimeout)
				if h.text != c.text {
					t.Errorf("got text %.80q, want %.80q", h.text, c.text)
				}
				if c.reason == 0 {
					if got := h.completion(t); got.Text != c.text || got.Finish != upstream.FinishStop || got.Model != "gpt-x-1" || got.Usage.Total != 10 {
						t.Errorf("%+v", got)
					}
				} else if h.Refusal == nil || h.Refusal.Reason != c.reason || !strings.Contains(h.Refusal.Detail, c.detail) {
					t.Errorf("%v, want %v: %s", h.Refusal, c.reason, c.detail)
				}
				if n := int(asked.Load()); n != c.asked || len(h.retries) != n-1 {
					t.Errorf("%d requests, %d retries reported; want %d requests", n, len(h.retries), c.asked)
				}
				if h.took < c.atLeast || h.took > c.atMost+100*time.Millisecond {
					t.Errorf("took %v, want %v to %v", h.took, c.atLeast, c.atMost)
				}
				if lines := strings.Count(w.log.String(), `"msg":"upstream attempt"`); lines != c.asked {
					t.Errorf("%d attempts logged, want %d: %s", lines, c.asked, w.log)
				}
				if c.name == "400 that quotes the prompt" { // the words of the upstream are logged
					if !strings.Contains(w.log.String(), c.detail) {
						t.Errorf("the answer was not logged: %s", w.log)
					}
					w.log.b.Reset()
				}
				checkNoSecrets(t, h, w.log)
				if s := w.Stats()[0]; s.Name != "m" || s.InProgress != 0 || s.Attempts != uint64(c.asked) {
					t.Errorf("%+v", s)
				}
				w.close()
			})
		})
	}
}

// A model that answers 429 without Retry-After delays no attempt for longer than retry_delay_max,
// neither that of a request that failed before nor that of a later one. A requested delay counts.
func TestThrottlingModelDelaysAtMostTheMaximum(t *testing.T) {
	const delayMax, requested = time.Second, 7 * time.Second
	for _, c := range []struct {
		header      string
		least, most time.Duration // of one attempt to the next; each answer to another caller requests a delay again
	}{{"", 0, delayMax}, {"7", requested, time.Hour}} {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t, Config{Models: map[string]Model{"m": {URL: "http://models.example/v1", RetryAttempts: 4, RetryDelay: 100 * time.Millisecond,
				RetryDelayMax: delayMax, RetryTime: time.Hour}}}, func(w http.ResponseWriter, _ *http.Request) {
				if c.header != "" {
					w.Header().Set("Retry-After", c.header)
				}
				w.WriteHeader(429)
			})
			var group sync.WaitGroup
			for range 8 {
				group.Go(func() {
					for range 4 {
						if h := askModel(t.Context(), w.Outbound, "m", "hi", 24*time.Hour); len(h.retries) != 3 || h.took < 3*c.least || h.took > 4*c.most {
							t.Errorf("Retry-After %q: %d retries, took %v, want 3 retries in %v to %v", c.header, len(h.retries), h.took, 3*c.least, 4*c.most)
						}
					}
				})
			}
			group.Wait()
			w.close()
		})
	}
}

// waitOrDisconnect waits for d, or until the client disconnects.
func waitOrDisconnect(r *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}

func TestAnswerDoesNotDependOnChunking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := strings.ReplaceAll("\uFEFF"+string(upstream.AppendStream(nil, upstream.Completion{Text: "grüße 世界", Finish: upstream.FinishCalls,
			Calls: []upstream.ToolCall{{ID: "a", Name: "call_agent", Arguments: `{"x":1}`}}}, 4)), "\n", "\r\n")
		var at atomic.Int64
		w := newFixture(t, Config{Models: oneModel("http://models.example/v1")}, func(w http.ResponseWriter, r *http.Request) {
			n := int(at.Load())
			writeStream(w, []byte(body[:n]))
			waitOrDisconnect(r, time.Millisecond) // of bubble time, to separate the two halves
			writeStream(w, []byte(body[n:]))
		})
		for n := range len(body) {
			at.Store(int64(n))
			h := askModel(t.Context(), w.Outbound, "m", "hi", testTimeout)
			c := h.completion(t)
			if h.text != "grüße 世界" || c.Text != h.text || len(c.Calls) != 1 || c.Calls[0].Arguments != `{"x":1}` {
				t.Fatalf("cut at %d: %q %+v", n, h.text, c)
			}
		}
		// A second connection is opened if the end of an answer arrives before
		// the end of its body. Two connections are therefore allowed.
		if n := w.network.dialCount(); n > 2 {
			t.Errorf("%d connections for %d sequential answers", n, len(body))
		}
		w.close()
	})
}

func TestCallerCancellation(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    func(cancel context.CancelFunc, o *Outbound)
		left   time.Duration
		reason actor.Reason
	}{
		{"cancelled", func(cancel context.CancelFunc, _ *Outbound) { cancel() }, testTimeout, actor.Stopped},
		{"the node stops", func(_ context.CancelFunc, o *Outbound) { go o.Close() }, testTimeout, actor.Stopped},
		{"no time left", func(context.CancelFunc, *Outbound) {}, 5 * time.Second, actor.Deadline},
		{"context deadline exceeded", func(context.CancelFunc, *Outbound) {}, testTimeout, actor.Deadline},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gone := make(chan time.Time, 1)
				w := newFixture(t, Config{Models: oneModel("http://models.example/v1")}, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					writeStream(w, modelStream("hello world")[:200])
					<-r.Context().Done()
					gone <- time.Now()
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.name == "context deadline exceeded" {
					ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
					defer cancel()
				}
				var ended time.Time
				time.AfterFunc(3*time.Second, func() { c.end(cancel, w.Outbound) })
				h := askModel(ctx, w.Outbound, "m", "hi", c.left)
				ended = time.Now()
				if h.Refusal == nil || h.Refusal.Reason != c.reason || h.took > 5*time.Second {
					t.Errorf("%v after %v, want %v", h.Refusal, h.took, c.reason)
				}
				if late := (<-gone).Sub(ended); late > 0 {
					t.Errorf("the connection was closed %v later", late)
				}
				w.close()
			})
		})
	}
}

func TestCallerTimeoutDoesNotOpenCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{Models: oneModel("http://models.example/v1")}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			<-r.Context().Done()
		})
		for range 20 { // five failures of the model would open the circuit
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if h := askModel(ctx, w.Outbound, "m", "hi", testTimeout); h.Refusal.Reason != actor.Deadline {
				t.Errorf("%v", h.Refusal)
			}
			cancel()
		}
		w.close()
	})
}

func TestModelRequestsShareBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		models := oneModel("http://models.example/v1")
		models["other"] = models["m"]
		w := newFixture(t, Config{Models: models}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			asked.Add(1)
			w.WriteHeader(500)
		})
		for range 3 {
			askModel(t.Context(), w.Outbound, "m", "hi", testTimeout)
		}
		before := asked.Load()
		h := askModel(t.Context(), w.Outbound, "m", "hi", testTimeout)
		if h.Refusal == nil || h.Refusal.Reason != actor.Unavailable || h.Refusal.RetryAfter <= 0 || asked.Load() != before || !strings.Contains(h.Refusal.Detail, "circuit open") {
			t.Errorf("%v, asked %d times after %d", h.Refusal, asked.Load(), before)
		}
		if askModel(t.Context(), w.Outbound, "other", "hi", testTimeout); asked.Load() != before+5 {
			t.Error("the circuit of another model was open")
		}
		w.close()
	})
}

func TestModelConfigIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var body string
		warm := 0.5
		models := map[string]Model{
			"m":     {URL: "http://models.example/v1", Model: "gpt-x", MaxTokensName: "max_completion_tokens", MaxTokens: 99, Temperature: &warm, Concurrency: 1},
			"local": {URL: "http://models.example/v1"},
		}
		w := newFixture(t, Config{Models: models, ExchangesMax: 2, PrincipalExchangesMax: 2}, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			body = string(b)
			if len(r.Header) != 5 || r.Header.Get("X-Troupe-Egress") != "1" || r.Header.Get("User-Agent") != "troupe" || r.Header.Get("Accept") == "" || r.Header.Get("Accept-Encoding") != "" || r.Header.Get("Cookie") != "" {
				t.Errorf("%v", r.Header)
			}
			if strings.Contains(body, "hold") {
				waitOrDisconnect(r, time.Minute)
			}
			w.Header().Set("Set-Cookie", "a=b")
			writeStream(w, modelStream("hello world"))
		})
		askModel(t.Context(), w.Outbound, "m", "hi", testTimeout).completion(t)
		if want := `{"model":"gpt-x","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"call_agent","parameters":{"type":"object","properties":{}}}}],"max_completion_tokens":99,"temperature":0.5,"stream":true,"stream_options":{"include_usage":true}}`; body != want {
			t.Errorf("%s\nwant\n%s", body, want)
		}
		askModel(t.Context(), w.Outbound, "local", "hi", testTimeout).completion(t)
		if !strings.HasPrefix(body, `{"model":"local",`) {
			t.Errorf("%s", body)
		}

		for _, name := range []string{"m", "local"} {
			go askModel(t.Context(), w.Outbound, name, "hold", testTimeout)
			synctest.Wait()
			h := askModel(t.Context(), w.Outbound, "m", "hi", 30*time.Second) // waits for the held prompt
			want, scope := "model m is at its limit of concurrent requests (1): no place became free in time", actor.ScopeCallee
			if name == "local" {
				want, scope = "2 requests to models", actor.ScopeNode
			}
			if h.Refusal == nil || h.Refusal.Reason != actor.Busy || h.Refusal.Scope != scope || h.Refusal.RetryAfter <= 0 || !strings.Contains(h.Refusal.Detail, want) {
				t.Errorf("%+v, want %s", h.Refusal, want)
			}
		}
		<-time.After(2 * time.Minute) // of bubble time
		askModel(t.Context(), w.Outbound, "m", "hi", testTimeout).completion(t)

		h := askModel(t.Context(), w.Outbound, "gpt", "hi", testTimeout)
		if h.Refusal == nil || h.Refusal.Reason != actor.ModelNotFound || !strings.Contains(h.Refusal.Detail, `unknown model "gpt": want one of local, m, scripted`) {
			t.Errorf("%v", h.Refusal)
		}
		w.close()
	})
}

// A member that a model refuses is left out of the next attempt and of all later requests, whatever
// their kind. One that the configuration omits is never sent.
func TestRefusedMemberIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bodies []string
		models := oneModel("http://models.example/v1")
		models["omitting"] = Model{URL: "http://models.example/v1", Omit: []string{"stream_options"}}
		models["stubborn"] = Model{URL: "http://models.example/v1"}
		w := newFixture(t, Config{Models: models}, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			bodies = append(bodies, string(b))
			if strings.Contains(string(b), "stream_options") || strings.Contains(string(b), "stubborn") {
				w.WriteHeader(422)
				_, _ = io.WriteString(w, `{"detail":[{"loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}`)
				return
			}
			writeStream(w, modelStream("hello"))
		})
		asked := func(want int) {
			t.Helper()
			if len(bodies) != want || strings.Contains(bodies[want-1], "stream_options") {
				t.Errorf("asked %d times, want %d, the last without stream_options: %s", len(bodies), want, bodies)
			}
			bodies = nil
		}
		h := askModel(t.Context(), w.Outbound, "m", "hi", testTimeout)
		if h.completion(t).Text != "hello" || len(h.retries) != 1 || h.took > 0 {
			t.Errorf("got %+v", h)
		}
		asked(2)
		if !strings.Contains(w.log.String(), `"model":"m","members":"stream_options"`) {
			t.Errorf("not logged: %s", w.log)
		}
		askModel(t.Context(), w.Outbound, "m", "hi", testTimeout).completion(t)
		asked(1)
		if _, out := chat(t.Context(), t, w.Outbound, streamed); out.Refusal != nil {
			t.Error(out.Refusal)
		}
		asked(1)
		askModel(t.Context(), w.Outbound, "omitting", "hi", testTimeout).completion(t)
		asked(1)
		for range 2 { // what did not help is not remembered
			if h := askModel(t.Context(), w.Outbound, "stubborn", "hi", testTimeout); h.Refusal == nil || h.Refusal.Reason != actor.ModelRejected {
				t.Errorf("got %v", h.Refusal)
			}
			asked(2)
		}
		w.close()
	})
}

// An answer has the cost at the price of its model, also after an attempt that failed in the middle, which is not added to it.
func TestAnswerIsPriced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		models := oneModel("http://models.example/v1")
		priced, input, output := models["m"], 2.50, 10.00
		priced.PriceInput, priced.PriceOutput = &input, &output
		models["m"] = priced
		var asked atomic.Int32
		w := newFixture(t, Config{Models: models}, func(w http.ResponseWriter, r *http.Request) {
			whole := modelStream("hello world")
			if asked.Add(1) == 1 {
				writeStream(w, whole[:len(whole)/2])
				abortConnection()
			}
			writeStream(w, whole)
		})
		u := askModel(t.Context(), w.Outbound, "m", "hi", testTimeout).completion(t).Usage
		if want := (upstream.Usage{Known: true, Input: 7, Output: 3, Total: 10, Priced: true, Cost: 48}); u != want || asked.Load() != 2 { // 17.5 + 30
			t.Errorf("got %+v after %d attempts, want %+v", u, asked.Load(), want)
		}
		u = askModel(t.Context(), w.Outbound, "scripted", "say hi", testTimeout).completion(t).Usage
		if u.Priced || u.Cost != 0 || !u.Known {
			t.Errorf("a model without a price: got %+v", u)
		}
	})
}
