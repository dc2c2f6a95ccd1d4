// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/upstream"
)

// Requests of runs of which nothing is written down are not recorded.
func TestVolatileRunsAreNotRecorded(t *testing.T) {
	recorded := 0
	o := newOutbound(t, Config{Record: func(actor.ID, actor.CallID) func(*Recorded) { return func(*Recorded) { recorded++ } }}, &logBuffer{})
	defer o.Close()
	for volatile, want := range map[bool]int{true: 0, false: 1} {
		recorded = 0
		a := o.Model(t.Context(), runtime.Model{Name: upstream.ScriptName, Body: promptOf("say hi"), Volatile: volatile, Left: testTimeout}, func(actor.Piece) {})
		if a.Refusal != nil || recorded != want {
			t.Errorf("volatile %v: %d records, %v", volatile, recorded, a.Refusal)
		}
	}
}

func TestScriptedModelStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutbound(t, Config{}, &logBuffer{})
		defer o.Close()
		long := strings.Repeat("a long answer, grüße, ", 3000)
		for _, text := range []string{"hi", "a few words more", long} {
			h := askModel(t.Context(), o, upstream.ScriptName, "say "+text, testTimeout)
			c := h.completion(t)
			if want := strings.TrimSpace(text); c.Text != want || h.text != want || c.Model != upstream.ScriptName || !c.Usage.Known || h.took > 0 {
				t.Errorf("%.80q, %.80q after %v, want %.80q", c.Text, h.text, h.took, want)
			}
		}
		h := askModel(t.Context(), o, upstream.ScriptName, "ask the helper agent to count", testTimeout)
		if c := h.completion(t); len(c.Calls) != 1 || c.Calls[0].Name != "call_agent" || c.Finish != upstream.FinishCalls || h.text != "" {
			t.Errorf("%+v", c)
		}
		// The scripted model gets the unmodified name of a tool. Real models
		// may get a restricted name.
		h = &result{}
		h.Answer = o.Model(t.Context(), runtime.Model{Name: upstream.ScriptName, Body: promptOf("use a.b {}", "a.b"), Left: testTimeout}, h.addPiece)
		if c := h.completion(t); len(c.Calls) != 1 || c.Calls[0].Name != "a.b" {
			t.Errorf("%+v", c)
		}

		slow := newOutbound(t, Config{Pace: 100 * time.Millisecond}, &logBuffer{})
		defer slow.Close()
		h = askModel(t.Context(), slow, upstream.ScriptName, "say "+long, testTimeout)
		if h.pieces < 60 || h.took < 6*time.Second || h.took > 8*time.Second {
			t.Errorf("%d pieces in %v", h.pieces, h.took)
		}
		for text, pieces := range map[string]time.Duration{"say hi": 1, "say " + strings.Repeat("x", 40): 3, "ask the helper agent to count": 1} {
			if h = askModel(t.Context(), slow, upstream.ScriptName, text, testTimeout); h.took != pieces*100*time.Millisecond {
				t.Errorf("%s: answered after %v, want %d times 100ms", text, h.took, pieces)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		h = askModel(ctx, slow, upstream.ScriptName, "say "+long, testTimeout)
		if h.Refusal == nil || h.Refusal.Reason != actor.Deadline || h.took != time.Second || h.text == "" {
			t.Errorf("got %v after %v, want Deadline after 1s", h.Refusal, h.took)
		}
		slower := newOutbound(t, Config{Pace: time.Minute}, &logBuffer{})
		askModel(t.Context(), slower, upstream.ScriptName, "say "+long, time.Second)
		given := time.Now()
		if slower.Close(); time.Since(given) > 0 {
			t.Errorf("the answer continued for %v after Close", time.Since(given))
		}
	})
}

func TestConfigValidation(t *testing.T) {
	hot := 3.0
	model := func(m Model) Config { return Config{Models: map[string]Model{"m": m}} }
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Models: map[string]Model{"a b": {}}}, "only letters"},
		{Config{Models: map[string]Model{"scripted": {URL: "http://h"}}}, "scripted is built in"},
		{Config{Models: map[string]Model{"troupe": {URL: "http://h"}}}, `models: "troupe" is reserved`},
		{Config{Models: map[string]Model{"Troupe.big": {URL: "http://h"}}}, `such as "team.big"`},
		{model(Model{}), "models.m.url: want http or https"},
		{model(Model{URL: "http://127.1"}), "models.m.url: host \"127.1\": ends in a number"},
		{model(Model{URL: "http://h", KeyEnv: "sk-123 456"}), "models.m.key_env: want the name"},
		{model(Model{URL: "http://h", KeyEnv: "sk-123456"}), "models.m.key_env: want the name"},
		{model(Model{URL: "http://h/v1/chat/completions"}), "models.m.url: ends in /chat/completions, which the server adds; want http://h/v1"},
		{model(Model{URL: "http://h/x/chat/completions/?api-version=1"}), "models.m.url: ends in /chat/completions, which the server adds; want http://h/x, with the same query"},
		{model(Model{URL: "http://h", KeyEnv: "NONE"}), "models.m.key_env: the environment variable NONE is not set"},
		{model(Model{URL: "http://h", Model: strings.Repeat("m", 257)}), "models.m.model: got 257 bytes"},
		{model(Model{URL: "http://h", MaxTokensName: "tokens"}), "models.m.max_tokens_name"},
		{model(Model{URL: "http://h", Omit: []string{"messages"}}), "models.m.omit: messages is required"},
		{model(Model{URL: "http://h", Omit: []string{"steam_options"}}), "models.m.omit: \"steam_options\" is no optional member of a request; did you mean stream_options"},
		{model(Model{URL: "http://h", MaxTokens: -1}), "models.m.max_tokens"},
		{model(Model{URL: "http://h", Temperature: &hot}), "models.m.temperature"},
		{model(Model{URL: "http://h", Concurrency: -1}), "models.m.concurrency"},
		{model(Model{URL: "http://h", IdleTimeout: -1}), "models.m.head_timeout, idle_timeout"},
		{Config{ExchangesMax: -1}, "exchanges"},
		{Config{PrincipalExchangesMax: -1}, "exchanges of a principal"},
		{Config{Pace: -1}, "pace"},
		{Config{Allow: []string{"10.0.0.1/8"}}, "want 10.0.0.0/8"},
		{Config{Backoff: upstream.BackoffConfig{RetryPercent: 101}}, "back-off"},
	} {
		c.config.Env = func(string) (string, bool) { return "", false }
		o, err := New(c.config)
		if err == nil {
			o.Close()
		}
		if err == nil || !strings.HasPrefix(err.Error(), "outbound: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	many := map[string]Model{}
	for n := range ModelsMax + 1 {
		many[fmt.Sprint(n)] = Model{URL: "http://h"}
	}
	if _, err := New(Config{Models: many}); err == nil {
		t.Errorf("%d models are accepted", len(many))
	}
}

func TestPlainHTTPKeyWarning(t *testing.T) {
	for url, plain := range map[string]bool{
		"http://models.example/v1": true, "https://models.example/v1": false, "http://127.0.0.1:1": false, "http://localhost:1": false, "http://[::1]:1": false, "http://10.0.0.1": true,
	} {
		log := &logBuffer{}
		o := newOutbound(t, Config{Models: oneModel(url)}, log)
		if strings.Contains(log.String(), "plain http") != plain || strings.Contains(log.String(), canary) {
			t.Errorf("%s: %s", url, log)
		}
		o.Close()
	}
}

func TestModelListIsTruncated(t *testing.T) {
	models := map[string]Model{}
	for n := range 30 {
		models[fmt.Sprintf("m%02d", n)] = Model{URL: "http://h"}
	}
	o := newOutbound(t, Config{Models: maps.Clone(models)}, &logBuffer{})
	defer o.Close()
	if h := askModel(t.Context(), o, "x", "hi", testTimeout); !strings.Contains(h.Refusal.Detail, "m18, m19 and 11 more;") {
		t.Errorf("%s", h.Refusal.Detail)
	}
}
