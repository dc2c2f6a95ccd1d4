// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

func readChat(t *testing.T, body string) Chat {
	t.Helper()
	c, r := ReadChat([]byte(body))
	if r != nil {
		t.Fatal(r)
	}
	return c
}

func TestChatIsPassedOn(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{`{"model":"m","messages":[{"role":"user","content":"hi"}]}`, `{"model":"gpt-x","messages":[{"role":"user","content":"hi"}]}`},
		{` { "messages" : [ {} , {} ], "seed":7, "model" : "\u006d" ,"x":{"model":"m"}} `, ` { "messages" : [ {} , {} ], "seed":7, "model" : "gpt-x" ,"x":{"model":"m"}} `},
		{`{"stream":true,"model":"m","messages":[1]}`, `{"stream":true,"model":"gpt-x","messages":[1],"stream_options":{"include_usage":true}}`},
		{`{"stream":true,"stream_options":null,"model":"m","messages":[1]}`, `{"stream":true,"stream_options":{"include_usage":true},"model":"gpt-x","messages":[1]}`},
		{`{"model":"m","messages":[1],"stream":true,"stream_options":{ }}`, `{"model":"gpt-x","messages":[1],"stream":true,"stream_options":{"include_usage":true }}`},
		{`{"model":"m","messages":[1],"stream":true,"stream_options":{"include_obfuscation":false}}`, `{"model":"gpt-x","messages":[1],"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}}`},
		{`{"model":"m","messages":[1],"stream":true,"stream_options":{"a":1,"include_usage": false}}`, `{"model":"gpt-x","messages":[1],"stream":true,"stream_options":{"a":1,"include_usage": true}}`},
		{`{"model":"m","messages":[1],"stream":true,"stream_options":{"include_usage":true}}`, `{"model":"gpt-x","messages":[1],"stream":true,"stream_options":{"include_usage":true}}`},
		{`{"model":"m","messages":[1],"stream":false,"stream_options":{}}`, `{"model":"gpt-x","messages":[1],"stream":false,"stream_options":{}}`},
	} {
		chat := readChat(t, c.body)
		if got := string(chat.bodyFor("gpt-x", nil)); got != c.want || chat.Model != "m" {
			t.Errorf("%s:\ngot  %s\nwant %s", c.body, got, c.want)
		}
	}
}

func TestInvalidChatIsRefused(t *testing.T) {
	for _, c := range []struct{ body, field, want string }{
		{``, "", "want a JSON object"},
		{`[]`, "", "want a JSON object"},
		{`{"model":"m","model":"n","messages":[1]}`, "", "duplicate"},
		{`{"messages":[1]}`, "model", "GET /v1/models"},
		{`{"model":"","messages":[1]}`, "model", "want the name"},
		{`{"model":["m"],"messages":[1]}`, "model", "want the name"},
		{`{"model":"m"}`, "messages", "at least one"},
		{`{"Model":"x","model":"m","messages":[1]}`, "Model", "want model"},
		{`{"model":"m","messages":[1],"STREAM":true}`, "STREAM", "want stream"},
		{`{"model":"m","messages":[1],"stream":true,"stream_options":{"Include_usage":false}}`, "stream_options", "include_usage"},
		{`{"model":"m","messages":[]}`, "messages", "at least one"},
		{`{"model":"m","messages":{"a":1}}`, "messages", "a list"},
		{`{"model":"m","messages":[1],"stream":"yes"}`, "stream", "true or false"},
		{`{"model":"m","messages":[1],"stream":true,"stream_options":[1]}`, "stream_options", "want an object"},
		{`{"model":"m","messages":[1],"stream":true,"stream_options":{"include_usage":1}}`, "stream_options", "true or false"},
		{`{"model":"m","messages":` + strings.Repeat("[", 80) + strings.Repeat("]", 80) + `}`, "", "deeper"},
		{`{"model":"m","messages":["` + strings.Repeat("x", ChatBytesMax) + `"]}`, "", "8 MiB"},
	} {
		if _, r := ReadChat([]byte(c.body)); r == nil || r.Reason != actor.Invalid || r.Field != c.field || !strings.Contains(r.Detail, c.want) {
			t.Errorf("%.80s: got %+v, want %s: %s", c.body, r, c.field, c.want)
		}
	}
}

// stream is an answer of a model, with the usage as it is sent if the request asks for it.
const (
	streamPieces = "data: {\"id\":\"c\",\"model\":\"gpt-x-1\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"grü\"},\"finish_reason\":null}],\"usage\":null,\"extra\":[1]}\n\n" +
		"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ße\"}}], \"usage\" : null}\n\n"
	streamFinish = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n"
	streamUsage  = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"total_tokens\":10}}\n\n"
	streamDone   = "data: [DONE]\n\n"
)

// feed decodes a body in pieces of n bytes, and returns what was passed on.
func feed(r *ChatReader, body string, n int) (passed string, failure *Failure) {
	for len(body) > 0 && failure == nil && !r.Done() {
		n := min(n, len(body))
		var deltas []Delta
		deltas, failure = r.Decode([]byte(body[:n]))
		for _, d := range deltas {
			passed += d.Text
		}
		body = body[n:]
	}
	if failure == nil && !r.Done() {
		var deltas []Delta
		deltas, failure = r.End()
		for _, d := range deltas {
			passed += d.Text
		}
	}
	return passed, failure
}

func TestChatAnswerIsPassedOn(t *testing.T) {
	without := func(text string) string {
		return strings.NewReplacer(`,"usage":null`, "", `, "usage" : null`, "").Replace(text)
	}
	whole := `{"id":"c","model":"gpt-x-1","choices":[{"index":0,"message":{"content":"grüße"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`
	for _, c := range []struct {
		name, media, body string
		added             bool
		passed, tail      string
	}{
		{"usage asked for", "text/event-stream; charset=utf-8", ": hi\r\n\r\n" + streamPieces + streamFinish + streamUsage + streamDone + "data: late\n\n", false, streamPieces, streamFinish + streamUsage + streamDone},
		{"usage added", "text/event-stream", streamPieces + streamFinish + streamUsage + streamDone, true, without(streamPieces), without(streamFinish) + streamDone},
		{"names, ids and other spellings", "text/event-stream", "event: chunk\r\nid: 7\r\ndata:{\"a\":1}\r\n\r\n" + streamFinish + "data:[DONE]\n\n", false, "event: chunk\r\nid: 7\r\ndata:{\"a\":1}\r\n\r\n", streamFinish + streamDone},
		{"comments between and within events", "text/event-stream", ": ping\n\nevent: chunk\n: ping\ndata: {\"a\":1}\n\n: ping\n" + streamFinish + streamDone, false, "event: chunk\ndata: {\"a\":1}\n\n", streamFinish + streamDone},
		{"lines that end in CR", "text/event-stream", strings.ReplaceAll(streamPieces+streamFinish, "\n", "\r"), false, strings.ReplaceAll(streamPieces, "\n", "\r"), strings.ReplaceAll(streamFinish, "\n", "\r")},
		{"without the last event", "text/event-stream", streamPieces + streamFinish + streamUsage, false, streamPieces, streamFinish + streamUsage},
		{"one value", "application/json", whole, true, "", whole},
	} {
		for n := 1; n < len(c.body); n += 7 {
			r, failure := (&ChatReader{name: "model m", added: c.added}).restart(c.media)
			if failure != nil {
				t.Fatal(failure.Refusal)
			}
			passed, failure := feed(r, c.body, n)
			if failure != nil || passed != c.passed || string(r.Tail()) != c.tail {
				t.Fatalf("%s, in pieces of %d: %v\npassed %s\nwant   %s\ntail %s\nwant %s", c.name, n, failure, passed, c.passed, r.Tail(), c.tail)
			}
			if !strings.Contains(c.body, "prompt_tokens") {
				continue
			}
			if got, want := r.Completion(), (Completion{Finish: FinishStop, Model: "gpt-x-1", Usage: Usage{Known: true, Input: 7, Output: 3, Total: 10}}); got.Finish != want.Finish || got.Model != want.Model || got.Usage != want.Usage || got.Text != "" {
				t.Fatalf("%s: got %+v", c.name, got)
			}
		}
	}
}

// A usage that cannot be read, and a member that is a duplicate, leave the answer as it is.
func TestOddChatAnswerIsPassedOn(t *testing.T) {
	for _, usage := range []string{`{"prompt_tokens":1.5}`, `{"prompt_tokens":"1"}`, `{"prompt_tokens":99999999999999999999}`, `{"prompt_tokens":-5}`, `7`, `{"x":1,"x":2}`} {
		body := `{"a":1,"a":2,"choices":[{"finish_reason":"stop"}],"usage":` + usage + `}`
		r, _ := (&ChatReader{name: "model m"}).restart("application/json")
		if _, failure := feed(r, body, 1<<20); failure != nil || string(r.Tail()) != body || r.Completion().Usage != (Usage{}) {
			t.Errorf("%s: %v %s %+v", usage, failure, r.Tail(), r.Completion())
		}
	}
}

// The scripted model takes time and memory in proportion to its message.
func TestScriptIsLinear(t *testing.T) {
	tools := []ToolSpec{{Name: "t", Schema: "{}"}}
	p := Prompt{Tools: tools, Messages: []Message{{Role: User, Text: strings.Repeat("use t\n", 1<<20)}}}
	if c := Script(p); len(c.Calls) != ToolCallsMax {
		t.Errorf("%d calls", len(c.Calls))
	}
	p = Prompt{Messages: []Message{{Role: User, Text: strings.Repeat("x", 1<<20)}, {Role: User, Text: strings.Repeat("list my messages\n", 1<<18)}}}
	if c := Script(p); jsonBytesMax(c.Text) > OutputBytesMax || len(c.Text) < OutputBytesMax/2 {
		t.Errorf("%d bytes", len(c.Text))
	}
}

func TestBrokenChatAnswerFails(t *testing.T) {
	for _, c := range []struct {
		name, media, body string
		class             Class
		want              string
	}{
		{"no finish", "text/event-stream", streamPieces, Broken, "without a finish reason"},
		{"no finish before the end", "text/event-stream", streamPieces + streamDone, Broken, "without a finish reason"},
		{"not JSON", "text/event-stream", "data: {\n\n", Broken, "not JSON"},
		{"an error", "text/event-stream", streamPieces + "data: {\"error\":{\"message\":\"you sent s3cret\",\"type\":\"server_error\"}}\n\n", Broken, "server_error: you sent ***"},
		{"a long line", "text/event-stream", "data: " + strings.Repeat("x", LineBytesMax), Refused, "longer than"},
		{"an endless tail", "text/event-stream", streamFinish + strings.Repeat("data: {\"x\":\""+strings.Repeat("y", 1<<19)+"\"}\n\n", 9), Refused, "follow the finish reason"},
		{"an empty value", "application/json", "", Broken, "got nothing"},
		{"no choice", "application/json", "{}", Broken, "without a finish reason"},
		{"an error value", "application/json", `{"error":"s3cret"}`, Broken, "***"},
		{"a long value", "application/json", strings.Repeat(" ", BodyBytesMax+1), Refused, "exceeds"},
	} {
		r, _ := (&ChatReader{name: "model m", secrets: Secrets{"s3cret"}}).restart(c.media)
		_, failure := feed(r, c.body, 1<<20)
		if failure == nil || failure.Class != c.class || !strings.Contains(failure.Refusal.Detail, c.want) || r.Tail() != nil || r.Completion().Finish != NoFinish {
			t.Errorf("%s: got %+v, want %s: %s", c.name, failure, c.class, c.want)
		}
	}
	if _, failure := (&ChatReader{name: "model m"}).restart("text/html"); failure == nil {
		t.Error("a page was accepted")
	}
}

// The scripted model answers requests of clients.
func TestChatAsPrompt(t *testing.T) {
	c := readChat(t, `{"model":"scripted","messages":[{"role":"developer","content":"x"},{"role":"user","content":[{"type":"text","text":"use clock {}"}]},
		{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"clock","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"noon"}],
		"tools":[{"type":"function","function":{"name":"clock"}}]}`)
	p, r := c.Prompt()
	if r != nil {
		t.Fatal(r)
	}
	answer := Script(p)
	if answer.Text != "noon" {
		t.Errorf("got %+v", answer)
	}
	reader, _ := (&ChatReader{name: "model scripted"}).restart("application/json")
	if _, failure := feed(reader, string(AppendAnswer(nil, answer)), 9); failure != nil || reader.Completion().Usage != answer.Usage {
		t.Errorf("got %+v, %+v", failure, reader.Completion())
	}
	c = readChat(t, `{"model":"scripted","messages":[{"role":"tool","tool_call_id":"9"}]}`)
	if _, r := c.Prompt(); r == nil {
		t.Error("the result of an unknown call was accepted")
	}
}

// An answer that is complete but for its end survives its deadline, as the client has it.
func TestFinishedChatAnswerSurvivesDeadline(t *testing.T) {
	const deadline = actor.Time(1e9)
	for finish, want := range map[string]bool{`"stop"`: true, `null`: false} {
		c := readChat(t, `{"model":"m","stream":true,"messages":[1]}`)
		config, _, r := Model{URL: "http://127.0.0.1:9/v1"}.Chat(&c, "m", deadline, AttemptLimits{})
		if r != nil {
			t.Fatal(r)
		}
		x, pace := NewExchange(config), NewBackoff(BackoffConfig{})
		for _, in := range []Input{Begin{}, Head{Attempt: 1, Status: 200, Headers: []Header{{Name: "Content-Type", Value: "text/event-stream"}}},
			Bytes{Attempt: 1, Bytes: []byte("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":" + finish + "}]}\n\n")}} {
			x.Step(1, in, pace, 0)
		}
		last := x.Step(deadline, Tick{}, pace, 0)
		end, ok := last[len(last)-1].(Ended)
		if !ok || (end.Outcome.Refusal == nil) != want {
			t.Errorf("finish reason %s: got %+v, want an answer: %v", finish, last, want)
		}
	}
}

// What is taken from a budget for a request of a client: the larger maximum, for each choice, and everything if it is not
// known how the model reads it.
func TestTokensOfChat(t *testing.T) {
	for text, want := range map[string]int64{
		"":                            0,
		`,"max_tokens":50`:            50,
		`,"max_tokens":null`:          0,
		`,"max_completion_tokens":60`: 60,
		`,"max_completion_tokens":1,"max_tokens":100`: 100,
		`,"max_tokens":1,"max_completion_tokens":100`: 100,
		`,"max_tokens":50,"n":3`:                      150,
		`,"n":3`:                                      tokensMax,
		`,"max_tokens":50,"n":-3`:                     50 * choicesMax,
		`,"max_tokens":0`:                             tokensMax,
		`,"max_tokens":-1`:                            tokensMax,
		`,"max_tokens":1e18`:                          tokensMax,
		`,"max_tokens":"10"`:                          tokensMax,
		`,"max_tokens":10.5`:                          tokensMax,
		`,"max_tokens":9223372036854775807`:           tokensMax,
		`,"max_tokens":99999999999999999999999`:       tokensMax,
		`,"max_tokens":4503599627370496,"n":1000`:     tokensMax,
		`,"MAX_TOKENS":100000`:                        tokensMax,
	} {
		c, refusal := ReadChat([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}]` + text + "}"))
		if refusal != nil {
			t.Errorf("%s: %v", text, refusal)
			continue
		}
		if prompt, got := c.Tokens(); got != want || prompt < 20 {
			t.Errorf("%s: got %d and %d, want %d", text, prompt, got, want)
		}
	}
}
