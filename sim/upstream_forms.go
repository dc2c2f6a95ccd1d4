// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// many is a list of n equal values.
func many(n int, value string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(value+",", n), ",") + "]"
}

// storedForms are the forms of values that nodes store and read again: their bytes may be
// damaged or those of another version.
var storedForms = [...]*jsonForm{
	{name: "prompt", unnamed: true, fields: []formField{
		{name: "model", good: append(plainValues("big", strings.Repeat("m", 256)), formValue{`""`, ""}), bad: append([]string{long(257)}, notText...)},
		{name: "messages", required: true, good: []formValue{
			{`[{"role":"user","content":"a"}]`, "user:a::"},
			{`[{"role":"system","content":"s"},{"role":"user","content":"\u0061\n"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"n","arguments":"{}"}}]},{"role":"tool","content":"r","tool_call_id":"1"}]`,
				"system:s:: user:a\n:: assistant:::1 n {} tool:r:1:"},
			{`[{"role":"assistant","content":"both","tool_calls":[{"id":"` + strings.Repeat("i", 256) + `","type":"function","function":{"name":"` + strings.Repeat("n", 256) + `","arguments":"no JSON"}}]}]`,
				"assistant:both::" + strings.Repeat("i", 256) + " " + strings.Repeat("n", 256) + " no JSON"},
		}, bad: []string{"[]", "7", "{}", `"a"`, "[7]", `[{}]`, `[{"role":"judge","content":"a"}]`, `[{"role":7,"content":"a"}]`, `[{"role":"user","content":7}]`, `[{"role":"user","content":"a","name":"b"}]`,
			`[{"role":"user","content":"a","tool_call_id":"1"}]`, `[{"role":"tool","content":"a","tool_call_id":"1"}]`, `[{"role":"tool","content":"a"}]`,
			`[{"role":"user","content":"a","tool_calls":[{"id":"1","type":"function","function":{"name":"n","arguments":"{}"}}]}]`,
			`[{"role":"assistant","tool_calls":[{"id":"","type":"function","function":{"name":"n","arguments":"{}"}}]}]`, `[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"","arguments":"{}"}}]}]`,
			`[{"role":"assistant","tool_calls":[{"id":` + long(257) + `,"type":"function","function":{"name":"n","arguments":"{}"}}]}]`, `[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":` + long(257) + `,"arguments":"{}"}}]}]`,
			`[{"role":"assistant","tool_calls":` + many(129, `{"id":"1","type":"function","function":{"name":"n","arguments":"{}"}}`) + "}]"}},
		{name: "tools", good: []formValue{{"[]", ""}, {`[{"type":"function","function":{"name":"a.b","description":"d","parameters":{"type":"object"}}},{"type":"function","function":{"name":"c","parameters":{}}}]`, `a.b:d:{"type":"object"} c::{}`}},
			bad: []string{"7", "{}", `["a"]`, `[{}]`, `[{"type":"function","function":{"name":"","parameters":{}}}]`, `[{"type":"function","function":{"name":` + long(257) + `,"parameters":{}}}]`, `[{"type":"function","function":{"name":"a","parameters":[]}}]`,
				`[{"type":"function","function":{"name":"a"}}]`, `[{"type":"function","function":{"name":"a","parameters":{}}},{"type":"function","function":{"name":"a","parameters":{}}}]`}},
		{name: "max_tokens", absent: "0", good: numbers("1", "16777216", "0"), bad: append([]string{"16777217"}, notNumber...)},
		{name: "temperature", good: []formValue{{"0", "0"}, {"2", "2"}, {"0.25", "0.25"}}, bad: []string{"-0.1", "2.0001", `"1"`, "true", "{}", "1e400"}},
		{name: "seed", good: numbers("0", "-7", "9223372036854775807"), bad: append([]string{"9223372036854775808"}, notNumber...)},
	}, read: readPromptForm},
	{name: "completion", unnamed: true, fields: []formField{
		{name: "text", good: append(plainValues("a", "\u00e9"), formValue{`""`, ""}), bad: notText},
		{name: "finish", absent: "none", good: []formValue{{`"stop"`, "stop"}, {`"tool_calls"`, "tool_calls"}, {`"length"`, "length"}, {`"content_filter"`, "content_filter"}}, bad: notText},
		{name: "model", good: plainValues("big"), bad: notText},
		{name: "tool_calls", good: []formValue{{"[]", ""}, {`[{"id":"1","name":"n","arguments":"{\"a\":1}"},{"id":"2","name":"m","arguments":""}]`, `1 n {"a":1};2 m `}}, bad: []string{"7", "{}", `"a"`, "[7]", `[{"id":7}]`, `[{"id":"1","index":0}]`, `[{"name":[]}]`, `[{"arguments":{}}]`}},
		{name: "usage", good: []formValue{{`{"input_tokens":1,"output_tokens":2,"total_tokens":4}`, "1 2 4"}, {"{}", "0 0 0"}}, bad: []string{"7", "[]", `"a"`, `{"input_tokens":"1"}`, `{"tokens":1}`, `{"output_tokens":1.5}`}},
	}, read: readCompletionForm},
	{name: "target", unnamed: true, fields: []formField{
		{name: "url", required: true, good: externalForm.field("endpoint").good, bad: externalForm.field("endpoint").bad},
		{name: "auth_env", good: plainValues("TROUPE_AUTH_A", "TROUPE_AUTH_X_9", "TROUPE_AUTH_"+strings.Repeat("A", 116)), bad: append([]string{`"HOME"`, `"TROUPE_AUTH_"`, `"TROUPE_AUTH_a"`, `"TROUPE_AUTH_` + strings.Repeat("A", 117) + `"`}, notText...)},
		{name: "concurrency", absent: "0", good: numbers("0", "1", "1024"), bad: append([]string{"-1", "1025"}, notNumber...)},
		{name: "retry.attempts", absent: "0", good: numbers("0", "1", "20"), bad: append([]string{"-1", "21"}, notNumber...)},
		{name: "retry.delay_ms", absent: "0", good: numbers("0", "1", "2000"), bad: append([]string{"-1", "3600001", "9223372036854775807"}, notNumber...)},
		{name: "retry.time_ms", absent: "0", good: numbers("0", "1", "3600000"), bad: append([]string{"-1", "3600001", "9223372036854775807"}, notNumber...)},
		{name: "retry.exact", absent: "false", good: numbers("true", "false"), bad: []string{`"true"`, "1", "{}"}},
	}, read: readTargetForm},
	{name: "key", unnamed: true, fields: []formField{
		{name: "key_id", required: true, good: plainValues("0123456789abcdef"), bad: append([]string{`""`, `"0123456789abcde"`, `"0123456789abcdeg"`, `"0123456789ABCDEF"`, `"0123456789abcdef0"`}, notText...)},
		{name: "name", good: append(plainValues("a key", strings.Repeat("k", ingress.KeyNameBytesMax)), formValue{`""`, ""}), bad: append([]string{long(ingress.KeyNameBytesMax + 1), `"a\nb"`, `"\u00e9"`}, notText...)},
		{name: "user", good: append(plainValues("alice@example.com", "a b/c", "local", strings.Repeat("u", 256)), formValue{`"Zo\u00eb"`, "Zo\u00eb"}),
			bad: append([]string{`"operator"`, `"key:0123456789abcdef"`, long(257), `" a"`, `"a\nb"`, `"a\u0000"`, `"a\u202e"`}, notText...)},
		{name: "digest", required: true, good: plainValues(strings.Repeat("0f", 32)), bad: append([]string{`""`, `"` + strings.Repeat("0f", 31) + `"`, `"` + strings.Repeat("0g", 32) + `"`, `"` + strings.Repeat("0f", 33) + `"`}, notText...)},
		{name: "scopes", required: true, good: []formValue{{`["call"]`, "call"}, {`["call","read"]`, "call read"}, {`["admin"]`, "admin"}}, bad: append([]string{"[]", `["all"]`, `["call","call"]`, `["read","call"]`}, notList...)},
		{name: "created_at", good: plainValues("2026-01-01T00:00:00.000000000Z"), bad: append([]string{`"now"`, `"2026-13-01T00:00:00.000000000Z"`}, notText...)},
		{name: "expires_at", good: plainValues("2026-02-28T23:59:59.999999999Z"), bad: append([]string{`"2026-02-30T00:00:00.000000000Z"`, `"2026-01-01"`}, notText...)},
	}, read: readKeyForm},
}

func readPromptForm(body []byte) (formValues, *actor.Refusal) {
	p, err := upstream.DecodePrompt(body)
	if err != nil {
		return nil, invalidRefusal(err)
	}
	clear(body)
	v := formValues{"model": p.Model, "max_tokens": fmt.Sprint(p.MaxTokens)}
	var messages, tools []string
	for _, m := range p.Messages {
		var calls []string
		for _, c := range m.Calls {
			calls = append(calls, c.ID+" "+c.Name+" "+c.Arguments)
		}
		messages = append(messages, m.Role.String()+":"+m.Text+":"+m.CallID+":"+strings.Join(calls, ";"))
	}
	for _, t := range p.Tools {
		tools = append(tools, t.Name+":"+t.Description+":"+t.Schema)
	}
	v["messages"], v["tools"] = strings.Join(messages, " "), strings.Join(tools, " ")
	if p.Temperature != nil {
		v["temperature"] = fmt.Sprint(*p.Temperature)
	}
	if p.Seed != nil {
		v["seed"] = fmt.Sprint(*p.Seed)
	}
	if again, err := upstream.DecodePrompt(p.Encode()); err != nil || !slices.EqualFunc(again.Messages, p.Messages, func(a, b upstream.Message) bool { return a.Text == b.Text && len(a.Calls) == len(b.Calls) }) {
		return nil, actor.Refuse(actor.Rejected, "the encoded prompt is read as %+v: %v", again, err)
	}
	return v, nil
}

func readCompletionForm(body []byte) (formValues, *actor.Refusal) {
	c, err := upstream.DecodeCompletion(body)
	if err != nil {
		return nil, invalidRefusal(err)
	}
	clear(body)
	v := formValues{"text": c.Text, "finish": "none", "model": c.Model}
	if c.Finish != upstream.NoFinish {
		v["finish"] = c.Finish.String()
	}
	var calls []string
	for _, call := range c.Calls {
		calls = append(calls, call.ID+" "+call.Name+" "+call.Arguments)
	}
	if v["tool_calls"] = strings.Join(calls, ";"); c.Usage.Known {
		v["usage"] = fmt.Sprint(c.Usage.Input, c.Usage.Output, c.Usage.Total)
	}
	return v, nil
}

func readTargetForm(body []byte) (formValues, *actor.Refusal) {
	t, err := upstream.DecodeTarget(body)
	if err != nil {
		return nil, invalidRefusal(err)
	}
	clear(body)
	return formValues{"url": t.URL, "auth_env": t.AuthEnv, "concurrency": fmt.Sprint(t.Concurrency), "retry.attempts": fmt.Sprint(t.Retry.Tries),
		"retry.delay_ms": fmt.Sprint(t.Retry.Delay.Milliseconds()), "retry.time_ms": fmt.Sprint(t.Retry.Time.Milliseconds()), "retry.exact": fmt.Sprint(t.Retry.Exact)}, nil
}

func readKeyForm(body []byte) (formValues, *actor.Refusal) {
	k, err := ingress.DecodeKey(body)
	if err != nil {
		return nil, invalidRefusal(err)
	}
	clear(body)
	v := formValues{"key_id": k.ID, "name": k.Name, "user": k.User, "digest": fmt.Sprintf("%x", k.Digest), "scopes": strings.Join(ingress.ScopeNames(k.Scopes), " ")}
	if k.Created != 0 {
		v["created_at"] = runs.FormatTime(k.Created)
	}
	if k.Expires != 0 {
		v["expires_at"] = runs.FormatTime(k.Expires)
	}
	return v, nil
}
