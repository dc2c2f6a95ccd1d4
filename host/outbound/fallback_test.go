// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

func price(f float64) *float64 { return &f }

// threeModels are a model, whose requests go to b and then to c if it is not available.
func threeModels() map[string]Model {
	of := func(name string, input float64, next ...string) Model {
		return Model{URL: "http://" + name + ".example/v1", Model: "gpt-" + name, Fallback: next, PriceInput: price(input), PriceOutput: price(input)}
	}
	a, b, c := of("a", 1000, "b", "c"), of("b", 2000, "a"), of("c", 3000)
	a.MaxTokens, b.MaxTokens, b.KeyEnv = 100, 200, "KEY"
	return map[string]Model{"a": a, "b": b, "c": c}
}

// TestModelFallsBackBeforeTheFirstByte reproduces the faults after which other gateways go on with the next model too
// late, not at all, or with the settings of the wrong one.
func TestModelFallsBackBeforeTheFirstByte(t *testing.T) {
	type model func(w http.ResponseWriter, r *http.Request)
	status := func(n int, body string) model {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(n)
			_, _ = io.WriteString(w, body)
		}
	}
	says := func(text string) model {
		return func(w http.ResponseWriter, _ *http.Request) { writeStream(w, modelStream(text)) }
	}
	pieces := strings.SplitAfter(string(modelStream("hello world")), "\n\n")
	hangs := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for _, c := range []struct {
		name     string
		a, b, c  model
		left     time.Duration
		text     string
		fallback string
		cost     int64 // micros; 10 tokens
		reason   actor.Reason
		asked    string
		retries  int
		most     time.Duration
	}{
		{name: "available", a: says("from a"), text: "from a", cost: 10000, asked: "a"},
		{name: "unreachable", a: func(http.ResponseWriter, *http.Request) { abortConnection() }, b: says("from b"), text: "from b", fallback: "b", cost: 20000, asked: "a b", retries: 1},
		{name: "500", a: status(500, ""), b: says("from b"), text: "from b", fallback: "b", cost: 20000, asked: "a b", retries: 1},
		{name: "503 of two", a: status(503, ""), b: status(502, ""), c: says("from c"), text: "from c", fallback: "c", cost: 30000, asked: "a b c", retries: 2},
		{name: "429", a: status(429, `{"error":{"code":"rate_limit_exceeded"}}`), b: says("from b"), text: "from b", fallback: "b", cost: 20000, asked: "a b", retries: 1},
		{name: "429 without quota", a: status(429, `{"error":{"code":"insufficient_quota","message":"no quota"}}`), b: says("from b"), text: "from b", fallback: "b", cost: 20000, asked: "a b", retries: 1},
		{name: "overloaded within the stream", a: func(w http.ResponseWriter, _ *http.Request) {
			writeStream(w, []byte("data: {\"error\":{\"type\":\"overloaded_error\",\"message\":\"later\"}}\n\n"))
		}, b: says("from b"), text: "from b", fallback: "b", cost: 20000, asked: "a b", retries: 1},
		{name: "broken before any text", a: func(w http.ResponseWriter, _ *http.Request) { writeStream(w, []byte(pieces[0])); abortConnection() }, b: says("from b"), text: "from b", fallback: "b", cost: 20000, asked: "a b", retries: 1},
		{name: "broken after the first text", a: func(w http.ResponseWriter, _ *http.Request) {
			writeStream(w, []byte(pieces[0]+pieces[1]))
			abortConnection()
		}, b: says("from b"), text: "hello ", reason: actor.Unavailable, asked: "a"},
		{name: "hangs", a: hangs, b: says("from b"), left: 90 * time.Second, text: "from b", fallback: "b", cost: 20000, asked: "a b", retries: 1, most: 30 * time.Second},
		{name: "two hang", a: hangs, b: hangs, c: says("from c"), left: 90 * time.Second, text: "from c", fallback: "c", cost: 30000, asked: "a b c", retries: 2, most: 60 * time.Second},
		{name: "a wrong key", a: status(401, ""), b: says("from b"), reason: actor.ModelAuth, asked: "a"},
		{name: "a rejected prompt", a: status(400, ""), b: says("from b"), reason: actor.ModelRejected, asked: "a"},
		{name: "no model of the name", a: status(404, ""), b: says("from b"), reason: actor.ModelNotFound, asked: "a"},
		{name: "the next one has a wrong key", a: status(500, ""), b: status(403, ""), c: says("from c"), reason: actor.ModelAuth, asked: "a b", retries: 1},
		{name: "none is available", a: status(500, ""), b: status(500, ""), c: status(500, ""), reason: actor.Unavailable, asked: "a b c c c c c", retries: 6, most: 30 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var asked []string
				w := newFixture(t, Config{Models: threeModels()}, func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					name := strings.TrimSuffix(r.Host, ".example")
					mu.Lock()
					asked = append(asked, name)
					mu.Unlock()
					// Each model gets its own name, key and limit.
					limit := map[string]string{"a": `"max_tokens":100`, "b": `"max_tokens":200`, "c": ""}[name]
					if !strings.Contains(string(body), `"model":"gpt-`+name+`"`) || !strings.Contains(string(body), limit) || strings.Contains(string(body), "max_tokens") != (limit != "") || (r.Header.Get("Authorization") != "") != (name == "b") {
						t.Errorf("%s got %v %s", name, r.Header, body)
					}
					map[string]model{"a": c.a, "b": c.b, "c": c.c}[name](w, r)
				})
				left := c.left
				if left == 0 {
					left = testTimeout
				}
				h := askModel(t.Context(), w.Outbound, "a", "hi", left)
				if c.reason == 0 {
					if got := h.completion(t); got.Text != c.text || got.Fallback != c.fallback || got.Usage.Cost != c.cost {
						t.Errorf("%+v", got)
					}
				} else if h.Refusal == nil || h.Refusal.Reason != c.reason {
					t.Errorf("%v, want %v", h.Refusal, c.reason)
				}
				if got := strings.Join(asked, " "); got != c.asked || h.text != c.text || len(h.retries) != c.retries {
					t.Errorf("asked %s, text %q, %d retries", got, h.text, len(h.retries))
				}
				if c.retries == 1 && !strings.HasSuffix(h.retries[0].Detail, "; model b is asked") {
					t.Errorf("%v", h.retries[0])
				}
				if h.took > c.most+time.Second {
					t.Errorf("took %v", h.took)
				}
				checkNoSecrets(t, h, w.log)
				w.close()
			})
		})
	}
}

// TestOpenCircuitIsPassedOver checks that requests go to the next model at once while the circuit of the first one is
// open, and return to it after a probe has succeeded.
func TestOpenCircuitIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked, works := map[string]int{}, false
		w := newFixture(t, Config{Models: threeModels()}, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			asked[r.Host]++
			if r.Host == "a.example" && !works {
				w.WriteHeader(500)
				return
			}
			writeStream(w, modelStream(r.Host))
		})
		for range 100 {
			if h := askModel(t.Context(), w.Outbound, "a", "hi", testTimeout); h.Refusal != nil || h.text != "b.example" || h.took > 0 {
				t.Fatalf("%+v", h)
			}
		}
		if asked["a.example"] != 5 || asked["b.example"] != 100 {
			t.Errorf("%v", asked)
		}
		works = true
		<-time.After(time.Minute)
		if h := askModel(t.Context(), w.Outbound, "a", "hi", testTimeout); h.text != "a.example" || h.completion(t).Fallback != "" {
			t.Errorf("%+v", h)
		}
		w.close()
	})
}

func TestChatFallsBackBeforeTheFirstByte(t *testing.T) {
	pieces := strings.SplitAfter(string(modelStream("hello")), "\n\n")
	for _, c := range []struct {
		name, body, a  string
		passed, detail string
		fallback       string
	}{
		{"a whole answer", whole, "", "", "", "b"},
		{"a stream", streamed, "", `"hello"`, "", "b"},
		{"a stream that has begun", streamed, pieces[0], "assistant", "model a:", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, Config{Models: threeModels()}, func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					if r.Host == "a.example" {
						if c.a == "" {
							w.WriteHeader(503)
							return
						}
						writeStream(w, []byte(c.a))
						abortConnection()
					}
					if !strings.Contains(string(body), `"model":"gpt-b"`) {
						t.Errorf("%s", body)
					}
					if c.body == whole {
						w.Header().Set("Content-Type", "application/json")
						_, _ = io.WriteString(w, `{"model":"gpt-b","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}`)
						return
					}
					writeStream(w, modelStream("hello"))
				})
				passed, out := chat(t.Context(), t, w.Outbound, strings.Replace(c.body, `"m"`, `"a"`, 1))
				if !strings.Contains(passed, c.passed) || (out.Refusal != nil) != (c.detail != "") || !strings.HasPrefix(out.Detail, c.detail) || out.Completion.Fallback != c.fallback {
					t.Errorf("%q %+v", passed, out)
				}
				if c.body == whole && !strings.Contains(string(out.Tail), `"gpt-b"`) {
					t.Errorf("%s", out.Tail)
				}
				w.close()
			})
		})
	}
}

// TestCostOfModelCoversItsFallbacks checks that a budget reserves enough, whichever model answers.
func TestCostOfModelCoversItsFallbacks(t *testing.T) {
	models := threeModels()
	models["d"] = Model{URL: "http://d.example/v1", Fallback: []string{upstream.ScriptName}}
	w := newFixture(t, Config{Models: models}, nil)
	costs := w.Costs()
	if built := costs[upstream.ScriptName].Price; built != (upstream.Price{Known: true}) {
		t.Errorf("the built-in model costs %+v", built)
	}
	if a := costs["a"]; !a.Price.Known || a.Price.Worst(1, 0) != 3000 || a.Price.Worst(0, 1) != 3000 || a.AnswerTokens != 4096 {
		t.Errorf("%+v", a)
	}
	if b := costs["b"]; b.Price.Worst(1, 0) != 2000 || b.AnswerTokens != 200 {
		t.Errorf("%+v", b)
	}
	if d := costs["d"]; d.Price.Known {
		t.Errorf("%+v", d)
	}
}

func TestFallbacksAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(map[string]Model)
		want   string
	}{
		"a loop is none": {func(m map[string]Model) {}, ""},
		"itself":         {func(m map[string]Model) { setFallback(m, "a", "a") }, "models.a.fallback: a is the model itself; remove it"},
		"twice":          {func(m map[string]Model) { setFallback(m, "a", "b", "b") }, "models.a.fallback: b is there twice"},
		"unknown":        {func(m map[string]Model) { setFallback(m, "a", "scriptd") }, `models.a.fallback: "scriptd" is no model; did you mean scripted?`},
		"nothing near":   {func(m map[string]Model) { setFallback(m, "a", "zzzzzzzz") }, `models.a.fallback: "zzzzzzzz" is no model; want some of a, b, c, scripted`},
		"too many":       {func(m map[string]Model) { setFallback(m, "a", "b", "c", "d", "e", "f") }, "models.a.fallback: got 5 models, want at most 4"},
		"without price":  {func(m map[string]Model) { setFallback(m, "a", upstream.ScriptName) }, "models.a.fallback: scripted has no price, and a has one: choose another model"},
		"one price":      {func(m map[string]Model) { m["b"] = Model{URL: "http://b.example/v1"} }, "models.a.fallback: give both a and b prices, or none: an answer of either counts for the budget"},
	} {
		models := maps.Clone(threeModels())
		c.change(models)
		config := Config{Models: models}
		got := ""
		if all := config.Errors(); len(all) > 0 {
			got = fmt.Sprint(slices.Collect(slices.Values(all))[0])
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func setFallback(models map[string]Model, name string, next ...string) {
	m := models[name]
	m.Fallback = next
	models[name] = m
}
