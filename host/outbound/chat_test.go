// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// chat passes a request on and returns the streamed text.
func chat(ctx context.Context, t *testing.T, o *Outbound, body string) (passed string, out ChatOutcome) {
	t.Helper()
	c, r := upstream.ReadChat([]byte(body))
	if r != nil {
		t.Fatal(r)
	}
	out = o.Chat(ctx, ChatRequest{Chat: c, Principal: "anna", Left: testTimeout}, func(text string) { passed += text })
	return passed, out
}

const (
	whole    = `{"model":"m","messages":[{"role":"user","content":"hi"}],"seed":7}`
	streamed = `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}`
)

func TestChatIsPassedToModel(t *testing.T) {
	answer := `{"id":"c","model":"gpt-x-1","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10},"x":1}`
	cases := []struct {
		name, body string
		model      func(w http.ResponseWriter, r *http.Request, n int)
		passed     string // a part of it
		tail       string // likewise
		reason     actor.Reason
		status     int
		code       string
		asked      int
	}{
		{"an answer", whole, func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer)
		}, "", answer, 0, 200, "", 1},
		{"a streamed answer", streamed, func(w http.ResponseWriter, _ *http.Request, _ int) { writeStream(w, modelStream("hello")) }, `"hello"`, "data: [DONE]\n\n", 0, 200, "", 1},
		{"an error of the request", whole, func(w http.ResponseWriter, r *http.Request, _ int) {
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"error":{"message":"too long, `+r.Header.Get("Authorization")+`","type":"invalid_request_error","code":"context_length_exceeded"}}`)
		}, "", "", actor.ModelRejected, 400, "context_length_exceeded", 1},
		{"a busy model, then an answer", whole, func(w http.ResponseWriter, _ *http.Request, n int) {
			if n == 1 {
				w.WriteHeader(429)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer)
		}, "", answer, 0, 200, "", 2},
		{"a stream that breaks is not repeated", streamed, func(w http.ResponseWriter, _ *http.Request, _ int) {
			writeStream(w, []byte(strings.SplitAfter(string(modelStream("hello")), "\n\n")[0]))
			abortConnection()
		}, "assistant", "", actor.Unavailable, 200, "", 1},
		{"a break before the first event, then an answer", streamed, func(w http.ResponseWriter, _ *http.Request, n int) {
			if n == 1 {
				writeStream(w, nil)
				abortConnection()
			}
			writeStream(w, modelStream("hello"))
		}, `"hello"`, "[DONE]", 0, 200, "", 2},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				w := newFixture(t, Config{Models: oneModel("http://models.example/v1")}, func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer "+canary || !strings.Contains(string(body), `"model":"gpt-x"`) {
						t.Errorf("%s %v %s", r.URL, r.Header, body)
					}
					c.model(w, r, int(asked.Add(1)))
				})
				passed, out := chat(t.Context(), t, w.Outbound, c.body)
				if !strings.Contains(passed, c.passed) || (c.passed == "") != (passed == "") || !strings.Contains(string(out.Tail), c.tail) || (c.tail == "") != (len(out.Tail) == 0) {
					t.Errorf("passed on %s and %s", passed, out.Tail)
				}
				switch {
				case c.reason == 0 && (out.Refusal != nil || out.Completion.Usage.Total != 10 || out.Completion.Finish != upstream.FinishStop):
					t.Errorf("got %v, %+v", out.Refusal, out.Completion)
				case c.reason != 0 && (out.Refusal == nil || out.Refusal.Reason != c.reason || strings.Contains(out.Refusal.Detail, canary)):
					t.Errorf("got %v, want %v", out.Refusal, c.reason)
				}
				if out.Status != c.status || out.Code != c.code || out.Streams != (c.body == streamed) || int(asked.Load()) != c.asked {
					t.Errorf("got status %d, code %q, streams %v, asked %d times", out.Status, out.Code, out.Streams, asked.Load())
				}
				if s := w.Stats()[0]; s.InProgress != 0 || s.Attempts != uint64(c.asked) {
					t.Errorf("%+v", s)
				}
				w.close()
			})
		})
	}
}

// A request whose client has gone is cancelled at the model.
func TestCancelledChat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := make(chan struct{})
		w := newFixture(t, Config{Models: oneModel("http://models.example/v1")}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			writeStream(w, modelStream("hello")[:150])
			<-r.Context().Done()
			close(gone)
		})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, out := chat(ctx, t, w.Outbound, streamed)
		if out.Refusal == nil || out.Refusal.Reason != actor.Stopped {
			t.Errorf("got %v", out.Refusal)
		}
		<-gone
		w.close()
	})
}

// A client reads the name that it asked for, and no address. The refusal itself, which is recorded, has both.
func TestChatRefusalForClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const words = `{"error":{"message":"no gpt-x at http://models.example/v1 (models.example:80)"}}`
		w := newFixture(t, Config{Models: map[string]Model{
			"m":    {URL: "http://models.example/v1", Model: "gpt-x"},
			"near": {URL: "http://10.1.2.3:8000/v1", Model: "gpt-x"},
			"bare": {URL: "http://vllm:8000/v1", Model: "gpt-x"},
		}, Resolve: func(_ context.Context, name string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr(map[string]string{"models.example": "1.2.3.4", "vllm": "10.1.2.4"}[name])}, nil
		}}, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			_, _ = io.WriteString(w, words)
		})
		for _, c := range []struct{ model, recorded, shown string }{
			{"m", "model gpt-x answers 400: no gpt-x at http://models.example/v1 (models.example:80)", "model m answers 400: no gpt-x at http://its server/v1 (its server:80)"},
			{"near", "model gpt-x cannot be reached: 10.1.2.3: its address is private, which is not allowed; to allow it: troupe serve --allow 10.1.2.3",
				"model near cannot be reached: its server: its address is private, which is not allowed"},
			{"bare", "model gpt-x cannot be reached: vllm: its address is private, which is not allowed; to allow it: troupe serve --allow vllm",
				"model bare cannot be reached: its server: its address is private, which is not allowed"},
		} {
			_, out := chat(t.Context(), t, w.Outbound, strings.Replace(whole, `"m"`, `"`+c.model+`"`, 1))
			if out.Refusal == nil || out.Refusal.Detail != c.recorded || out.Detail != c.shown {
				t.Errorf("%s: got %v and %q, want %q and %q", c.model, out.Refusal, out.Detail, c.recorded, c.shown)
			}
		}
		m := w.models["m"]
		if got := m.detailForClient("model gpt-x cannot be reached: its certificate is invalid: x509: certificate is valid for internal.example, not models.example"); got != "model m cannot be reached: its certificate is invalid" {
			t.Error(got)
		}
		w.close()
	})
}

func TestScriptedChat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{Models: oneModel("http://models.example/v1")}, nil)
		for _, c := range []struct{ body, want string }{
			{strings.Replace(whole, `"m"`, `"scripted"`, 1), `"content":"You said: hi"`},
			{strings.Replace(streamed, `"m"`, `"scripted"`, 1), `"content":"You said: hi"`},
			{`{"model":"scripted","messages":[{"role":"tool","tool_call_id":"9"}]}`, "unknown call"},
			{`{"model":"other","messages":[1]}`, "want one of m, scripted"},
		} {
			passed, out := chat(t.Context(), t, w.Outbound, c.body)
			got := passed + string(out.Tail)
			if out.Refusal != nil {
				got = out.Refusal.Detail
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("%s: got %s, want %s", c.body, got, c.want)
			}
		}
		w.close()
	})
}
