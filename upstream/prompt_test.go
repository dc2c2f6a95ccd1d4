// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

func ptr[T any](v T) *T { return &v }

var fullPrompt = upstream.Prompt{
	Model: "gpt-x",
	Messages: []upstream.Message{
		{Role: upstream.System, Text: "Be brief."},
		{Role: upstream.User, Text: "Open <it> & \"ask\" ä\u2028\xff"},
		{Role: upstream.Assistant, Calls: []upstream.ToolCall{{ID: "a", Name: "browser.open", Arguments: `{"url":"x"}`}, {ID: "b", Name: "gone.tool", Arguments: "{"}}},
		{Role: upstream.Tool, CallID: "a", Text: "a page"},
		{Role: upstream.Tool, CallID: "b"},
		{Role: upstream.Assistant, Text: "It says: a page"},
		{Role: upstream.User},
	},
	Tools: []upstream.ToolSpec{
		{Name: "browser.open", Description: "Opens a page.", Schema: "{ \"type\": \"object\",\n \"properties\": {\"url\": {\"type\": \"string\"}} }"},
		{Name: "browser_open", Schema: `{"type":"object"}`},
	},
	MaxTokens: 100, Temperature: ptr(0.0), Seed: ptr(int64(-7)),
}

func TestModelRequest(t *testing.T) {
	m := upstream.Model{URL: "https://api.example.com/v1/", Key: "sk-secret"}
	request, refusal := m.Request(fullPrompt)
	if refusal != nil {
		t.Fatal(refusal)
	}
	want := `{"model":"gpt-x","messages":[` +
		`{"role":"system","content":"Be brief."},` +
		`{"role":"user","content":"Open <it> & \"ask\" ä` + "\u2028\uFFFD" + `"},` +
		`{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"browser_open","arguments":"{\"url\":\"x\"}"}},` +
		`{"id":"b","type":"function","function":{"name":"gone_tool","arguments":"{}"}}]},` + // invalid arguments are replaced by an empty object
		`{"role":"tool","content":"a page","tool_call_id":"a"},` +
		`{"role":"tool","content":"(empty)","tool_call_id":"b"},` +
		`{"role":"assistant","content":"It says: a page"},` +
		`{"role":"user","content":""}],` +
		`"tools":[{"type":"function","function":{"name":"browser_open","description":"Opens a page.","parameters":{"type":"object","properties":{"url":{"type":"string"}}}}},` +
		`{"type":"function","function":{"name":"browser_open_2","parameters":{"type":"object","properties":{}}}}],` +
		`"max_tokens":100,"temperature":0,"seed":-7,"stream":true,"stream_options":{"include_usage":true}}`
	if got := string(request.Body); got != want {
		t.Errorf("body: got\n%s\nwant\n%s", got, want)
	}
	if request.Method != "POST" || request.URL != "https://api.example.com/v1/chat/completions" {
		t.Errorf("wrong method or URL: %s", request)
	}
	headers := fmt.Sprint(request.Headers)
	if headers != "[content-type: application/json accept: text/event-stream, application/json authorization: ***]" {
		t.Errorf("got headers %s", headers)
	}
	if got := request.Headers[2].Value; got != "Bearer sk-secret" {
		t.Errorf("authorization: got %q, want Bearer sk-secret", got)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if text := fmt.Sprintf(format, m) + fmt.Sprintf(format, request); strings.Contains(text, "sk-secret") {
			t.Errorf("format %s reveals the key: %s", format, text)
		}
	}
	m.MaxTokensName = "max_completion_tokens"
	if request, _ = m.Request(fullPrompt); !strings.Contains(string(request.Body), `"max_completion_tokens":100`) || strings.Contains(string(request.Body), "max_tokens") {
		t.Errorf("want only max_completion_tokens, got %s", request.Body)
	}
	bare, _ := upstream.Model{URL: "http://127.0.0.1:8000"}.Request(upstream.Prompt{Messages: []upstream.Message{{Role: upstream.User, Text: "hi"}}})
	if got := string(bare.Body); got != `{"messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}` || len(bare.Headers) != 2 {
		t.Errorf("minimal prompt: got body %s, headers %v", got, bare.Headers)
	}
	if _, err := upstream.DecodePrompt(request.Body); err != nil {
		t.Errorf("DecodePrompt rejects the request: %v", err)
	}
}

func TestModelRequestRejectsInvalidPrompt(t *testing.T) {
	user := upstream.Message{Role: upstream.User}
	calls := upstream.Message{Role: upstream.Assistant, Calls: []upstream.ToolCall{{ID: "a", Name: "f"}}}
	tool := upstream.ToolSpec{Name: "f", Schema: "{}"}
	long := strings.Repeat("x", 257)
	with := func(messages ...upstream.Message) upstream.Prompt { return upstream.Prompt{Messages: messages} }
	tools := func(tools ...upstream.ToolSpec) upstream.Prompt {
		return upstream.Prompt{Messages: []upstream.Message{user}, Tools: tools}
	}
	for _, c := range []struct {
		p    upstream.Prompt
		want string
	}{
		{with(), "prompt without messages"},
		{with(make([]upstream.Message, 4097)...), "4097 messages exceed the maximum of 4096"},
		{with(upstream.Message{}), "message 0: unknown role 0"},
		{with(user, upstream.Message{Role: upstream.Tool, CallID: "a"}), `message 1: result of unknown call "a"`},
		{with(calls, upstream.Message{Role: upstream.Tool}), `message 1: role tool with call id ""`},
		{with(upstream.Message{Role: upstream.User, CallID: "a"}), `message 0: role user with call id "a"`},
		{with(upstream.Message{Role: upstream.User, Calls: calls.Calls}), "message 0: tool calls in a message of role user"},
		{with(upstream.Message{Role: upstream.Assistant, Calls: make([]upstream.ToolCall, 65)}), "message 0: 65 tool calls exceed the maximum of 64"},
		{with(upstream.Message{Role: upstream.Assistant, Calls: []upstream.ToolCall{{ID: "a"}}}), "message 0: tool call: want an id and a name"},
		{tools(make([]upstream.ToolSpec, 129)...), "129 tools exceed the maximum of 128"},
		{tools(upstream.ToolSpec{Schema: "{}"}), "tool 0: want a name"},
		{tools(upstream.ToolSpec{Name: long, Schema: "{}"}), "tool 0: want a name"},
		{tools(tool, tool), `tool "f" is offered twice`},
		{tools(upstream.ToolSpec{Name: "f"}), `tool "f": schema: want JSON, got nothing`},
		{tools(upstream.ToolSpec{Name: "f", Schema: "[]"}), `tool "f": schema: byte 0: value of the wrong type`},
		{upstream.Prompt{Messages: []upstream.Message{user}, Model: long}, "model name of 257 bytes"},
		{upstream.Prompt{Messages: []upstream.Message{user}, MaxTokens: -1}, "max_tokens -1"},
		{upstream.Prompt{Messages: []upstream.Message{user}, Temperature: ptr(2.1)}, "temperature 2.1"},
		{upstream.Prompt{Messages: []upstream.Message{user}, Temperature: ptr(math.NaN())}, "temperature NaN"},
		{with(upstream.Message{Role: upstream.User, Text: strings.Repeat("x", 8<<20)}), "exceeds the maximum of 8388608"},
	} {
		_, refusal := upstream.Model{URL: "http://m"}.Request(c.p)
		if refusal == nil || refusal.Reason != actor.Invalid || !strings.Contains(refusal.Detail, c.want) {
			t.Errorf("got refusal %v, want %q", refusal, c.want)
		}
	}
	if _, refusal := (upstream.Model{URL: "http://m", MaxTokensName: "tokens"}).Request(with(user)); refusal == nil {
		t.Error("unknown MaxTokensName accepted")
	}
}

func TestCheckURLAndHeaders(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"https://api.example.com/v1", ""},
		{"http://[::1]:8080", ""},
		{"", "want http or https"},
		{"api.example.com", "want http or https"},
		{"ftp://host/", "want http or https"},
		{"file:///etc/passwd", "want http or https"},
		{"http://", "missing host"},
		{"http:///path", "missing host"},
		{"http://:80/", "missing host"},
		{"https://user:key@host/", "contains a user"},
		{"https://host/?key=1", "a query"},
		{"https://host/?", "a query"},
		{"https://host/#", "contains a fragment"},
		{"https://host/a b", "blanks"},
		{"https://host\\@evil/", "backslashes"},
		{"https://host/\r\nx: y", "control characters"},
		{"https://host/%zz", "invalid URL"},
		{"https://" + strings.Repeat("h", 2048), "exceed the maximum of 2048"},
		{"https://h:65535/", ""},
		{"https://h:65536/", "want 1 to 65535"},
		{"https://h:0/", "want 1 to 65535"},
		{"https://h:/", "want only letters"},
		{"https://2130706433/", "ends in a number"},
		{"https://[127.0.0.1]/", "invalid URL"},
	} {
		err := upstream.CheckURL(c.url)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: got error %v, want %q", c.url, err, c.want)
		}
	}
	for _, key := range []upstream.Secret{"a\r\nx-admin: 1", "a\x00", upstream.Secret(strings.Repeat("x", 8<<10))} {
		_, refusal := upstream.Model{URL: "http://m", Key: key}.Request(upstream.Prompt{Messages: []upstream.Message{{Role: upstream.User}}})
		if refusal == nil || !strings.HasPrefix(refusal.Detail, "header authorization: ") || strings.Contains(refusal.Detail, "admin") {
			t.Errorf("invalid key: got refusal %v", refusal)
		}
	}
}

func drawPrompt(t *rapid.T) upstream.Prompt {
	p := upstream.Prompt{Model: drawName(t, "model"), MaxTokens: rapid.IntRange(0, 9).Draw(t, "tokens"), Tools: offeredTools[:rapid.IntRange(0, 2).Draw(t, "tools")]}
	if len(p.Tools) == 0 {
		p.Tools = nil
	}
	if rapid.Bool().Draw(t, "set") {
		p.Temperature, p.Seed = ptr(rapid.Float64Range(0, 2).Draw(t, "temperature")), ptr(rapid.Int64().Draw(t, "seed"))
	}
	var open []string
	for i := range rapid.IntRange(1, 6).Draw(t, "messages") {
		m := upstream.Message{Role: upstream.Role(rapid.IntRange(1, 3).Draw(t, "role")), Text: drawText(t, "text")}
		if m.Role == upstream.Assistant && rapid.Bool().Draw(t, "calls") {
			id := fmt.Sprint("id-", i)
			m.Calls = []upstream.ToolCall{{ID: id, Name: drawName(t, "tool"), Arguments: drawText(t, "arguments")}}
			open = append(open, id)
		} else if len(open) > 0 && rapid.Bool().Draw(t, "result") {
			m.Role, m.CallID = upstream.Tool, rapid.SampledFrom(open).Draw(t, "open")
		}
		p.Messages = append(p.Messages, m)
	}
	return p
}

func TestPromptRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPrompt(t)
		got, err := upstream.DecodePrompt(p.Encode())
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Fatalf("got %+v, error %v\nwant %+v", got, err, p)
		}
	})
}

// FuzzDecodePrompt checks that every accepted prompt survives a round trip and can
// be sent to a model.
func FuzzDecodePrompt(f *testing.F) {
	f.Add(fullPrompt.Encode())
	f.Add([]byte(`{"messages":[{"role":"user","content":"hi"}],"stream":true}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := upstream.DecodePrompt(b)
		if err != nil {
			return
		}
		again, err := upstream.DecodePrompt(p.Encode())
		if err != nil || !reflect.DeepEqual(again.Messages, p.Messages) || string(again.Encode()) != string(p.Encode()) {
			t.Errorf("%+v encodes and decodes to %+v, %v", p, again, err)
		}
		if _, refusal := (upstream.Model{URL: "http://m"}).Request(p); refusal != nil {
			t.Errorf("accepted prompt is refused: %v", refusal)
		}
	})
}

func TestToolNamesOnTheWire(t *testing.T) {
	p := upstream.Prompt{Messages: []upstream.Message{{Role: upstream.User}}}
	for _, name := range []string{"a.b", "a_b", "a-b", "a b", strings.Repeat("x", 80), strings.Repeat("x", 81), "ä"} {
		p.Tools = append(p.Tools, upstream.ToolSpec{Name: name, Schema: "{}"})
	}
	request, refusal := upstream.Model{URL: "http://m"}.Request(p)
	if refusal != nil {
		t.Fatal(refusal)
	}
	offered, err := upstream.DecodePrompt(request.Body)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"a_b", "a_b_2", "a-b", "a_b_3"} {
		if got := offered.Tools[i].Name; got != want {
			t.Errorf("%q has the wire name %q, want %q", p.Tools[i].Name, got, want)
		}
	}
	seen := map[string]bool{}
	for i, tool := range offered.Tools {
		if len(tool.Name) > 64 || strings.Trim(tool.Name, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" || seen[tool.Name] {
			t.Errorf("%q has the wire name %q", p.Tools[i].Name, tool.Name)
		}
		seen[tool.Name] = true
		stream := upstream.AppendStream(nil, upstream.Completion{Calls: []upstream.ToolCall{{ID: "1", Name: tool.Name}}, Finish: upstream.FinishCalls}, 10)
		d, _ := upstream.NewModelDecoder("m", &p, nil, "text/event-stream")
		d.Decode(stream)
		if got := d.Completion().Calls; len(got) != 1 || got[0].Name != p.Tools[i].Name {
			t.Errorf("%q is decoded as %v", p.Tools[i].Name, got)
		}
	}
}

// Strict templates want a user's message first, and then those of the model and the user in turn.
func TestModelRequestAlternatesRoles(t *testing.T) {
	kept := upstream.Kept(`{"reasoning":"r"}`)
	calls := []upstream.ToolCall{{ID: "1", Name: "f"}, {ID: "2", Name: "f"}}
	for name, c := range map[string]struct {
		messages []upstream.Message
		want     string
	}{
		"after a failed run": {[]upstream.Message{{Role: upstream.User, Text: "a"}, {Role: upstream.User, Text: "b"}, {Role: upstream.User, Text: "c"}}, "user a|b|c"},
		"empty texts":        {[]upstream.Message{{Role: upstream.User, Text: "a"}, {Role: upstream.User}, {Role: upstream.User, Text: "b"}}, "user a|b"},
		"answers":            {[]upstream.Message{{Role: upstream.User, Text: "a"}, {Role: upstream.Assistant, Text: "b"}, {Role: upstream.Assistant, Text: "c"}}, "user a, assistant b|c"},
		"instructions":       {[]upstream.Message{{Role: upstream.System, Text: "a"}, {Role: upstream.System, Text: "b"}, {Role: upstream.User, Text: "c"}}, "system a|b, user c"},
		"an answer first":    {[]upstream.Message{{Role: upstream.Assistant, Text: "b"}, {Role: upstream.User, Text: "c"}}, "user (start of the conversation), assistant b, user c"},
		"an answer behind instructions": {[]upstream.Message{{Role: upstream.System, Text: "a"}, {Role: upstream.System, Text: "x"}, {Role: upstream.Assistant, Text: "b"}, {Role: upstream.User, Text: "c"}},
			"system a|x, user (start of the conversation), assistant b, user c"},
		"instructions later": {[]upstream.Message{{Role: upstream.User, Text: "a"}, {Role: upstream.System, Text: "b"}, {Role: upstream.Assistant, Text: "c"}}, "user a, system b, assistant c"},
		"only instructions":  {[]upstream.Message{{Role: upstream.System, Text: "a"}}, "system a"},
		"results of calls": {[]upstream.Message{{Role: upstream.User, Text: "a"}, {Role: upstream.Assistant, Text: "b"}, {Role: upstream.Assistant, Calls: calls},
			{Role: upstream.Tool, CallID: "1", Text: "x"}, {Role: upstream.Tool, CallID: "2", Text: "y"}}, "user a, assistant b with 2 calls, tool x, tool y"},
		"calls before an answer": {[]upstream.Message{{Role: upstream.User, Text: "a"}, {Role: upstream.Assistant, Calls: calls}, {Role: upstream.Assistant, Text: "b"}},
			"user a, assistant  with 2 calls, assistant b"},
		"reasoning": {[]upstream.Message{{Role: upstream.User, Text: "a"}, {Role: upstream.Assistant, Text: "b", Kept: kept}, {Role: upstream.Assistant, Text: "c"}}, "user a, assistant b, assistant c"},
	} {
		p := upstream.Prompt{Messages: c.messages}
		before := string(p.Encode())
		request, refusal := upstream.Model{URL: "http://h"}.Request(p)
		if refusal != nil {
			t.Fatal(refusal)
		}
		sent, err := upstream.DecodePrompt(request.Body)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range sent.Messages {
			text := m.Role.String() + " " + strings.ReplaceAll(m.Text, "\n\n", "|")
			if len(m.Calls) > 0 {
				text += fmt.Sprintf(" with %d calls", len(m.Calls))
			}
			got = append(got, text)
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: got %s, want %s", name, text, c.want)
		}
		if string(p.Encode()) != before {
			t.Errorf("%s: the prompt itself has changed", name)
		}
	}
}
