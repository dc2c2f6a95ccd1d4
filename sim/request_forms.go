// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
)

// The forms of requests, from docs/api.md and docs/guide-agents.md. Limits are numbers
// here: a form that took them from the program would accept any change of them.

// long returns a JSON text of n bytes.
func long(n int) string { return `"` + strings.Repeat("a", n) + `"` }

func plainValues(texts ...string) (all []formValue) {
	for _, t := range texts {
		all = append(all, formValue{`"` + t + `"`, t})
	}
	return all
}

func numbers(texts ...string) (all []formValue) {
	for _, t := range texts {
		all = append(all, formValue{t, t})
	}
	return all
}

// notText, notNumber and notList are values of other types.
var (
	notText   = []string{"7", "-1.5", "true", "false", "{}", "[]", `["a"]`, `{"a":1}`}
	notNumber = []string{`"1"`, `""`, "true", "{}", "[]", "[1]", "1.5", "1e400", "99999999999999999999"}
	notList   = []string{`"a"`, "7", "true", "{}", `{"a":"b"}`, "[7]", "[null]", `["a",7]`, `[["a"]]`, "[{}]", `["b","a","b"]`}
)

// goodNames are valid names of actors and sessions, and badNames are other texts.
var (
	goodNames = append(plainValues("s", "A-Z_09.x", strings.Repeat("n", 64), "a", "0"), formValue{`"\u0073\u0031"`, "s1"})
	badNames  = slices.Concat([]string{long(65), `"a b"`, `"a/b"`, `"."`, `".."`, `"\u00e9"`, `"a\nb"`, `" a"`, `"a\u0000"`}, notText)
)

// messageFields are the fields of a message, except its project.
var messageFields = []formField{
	{name: "content", alias: "message", required: true, bad: slices.Concat([]string{`""`}, badParts, notText),
		good: append(plainValues("a", "and so on", "\u00e9\U0001F600", strings.Repeat("a", 300), "{\u2028}"), formValue{`"a\u0062\n\"\\\/"`, "ab\n\"\\/"}, formValue{`" "`, " "}, formValue{`"\ud83d\ude00"`, "\U0001F600"},
			formValue{`[{"type":"text","text":"a"},{"text":"\u0062","type":"text"}]`, "ab"}, formValue{`[{"type":"text","text":" "}]`, " "})},
	{name: "session_id", alias: "session", good: goodNames, bad: badNames},
	{name: "timeout_ms", good: []formValue{{"1", "1ms"}, {"30000", "30s"}, {"86400000", "24h0m0s"}, {"1234567", "20m34.567s"}, {"90", "90ms"}},
		bad: append([]string{"0", "-1", "86400001", "999999999999999999", "9223372036854775807", "1e3", "-0"}, notNumber...)},
	{name: "priority", good: plainValues("high", "normal", "low"), bad: append([]string{`"urgent"`, `"High"`, `"highest"`, `"lo"`, `" low"`}, notText...)},
}

// badParts are lists of parts that no content may be, and badObjects are objects that no
// message may be.
var (
	badParts   = []string{`[{"type":"image_url","image_url":{"url":"http://a.example"}}]`, `[{"type":"text","text":"a"},{"type":"audio","text":"b"}]`, `[{"text":"a"}]`, `[{"type":"text"}]`, `[{"type":"text","text":7}]`, `[{"type":"text","text":"a","id":"1"}]`, `[{"type":"text","text":""}]`, "[[]]"}
	badObjects = []string{`{"role":"assistant","content":"a"}`, `{"role":"system","content":"a"}`, `{"role":7,"content":"a"}`, `{"role":"user"}`, `{"role":"user","content":""}`, `{"role":"user","content":{"role":"user","content":"a"}}`, `{"role":"user","content":"a","name":"b"}`,
		`{"role":"user","content":[{"type":"file"}]}`}
)

// objectField returns the field of a message that is an object with a role.
func objectField(name string) formField {
	return formField{name: name, required: true, missing: "content", bad: slices.Concat([]string{`""`}, badObjects, badParts, notText),
		good: []formValue{{`{"role":"user","content":"a"}`, "a"}, {`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"role":"user"}`, "ab"}, {`{"role":null,"content":" "}`, " "}, {`"a"`, "a"}}}
}

// callValues returns the meaning of a decoded message.
func callValues(call *actor.Call, session string) formValues {
	v := formValues{"session_id": session, "project_id": call.Project}
	if call.Left != 0 {
		v["timeout_ms"] = call.Left.String()
	}
	if call.Lane != 0 {
		v["priority"] = strings.ToLower(call.Lane.String())
	}
	return v
}

// checkForms has a random form read one of its objects, and checks the trace headers of a
// request and the bindings of a secret.
func (w *Simulation) checkForms() {
	p, headers := &picker{seed: uint64(w.entropy.Int(1 << 24))}, &picker{seed: uint64(w.entropy.Int(1 << 24))}
	if !w.auditEnabled() {
		return
	}
	f := requestForms[p.Int(len(requestForms))]
	o := f.draw(p)
	w.checkForm(f, &o)
	if why := checkTrace(headers); why != "" {
		w.fail(CodecRoundTrip, why)
	}
	if why := checkBindings(headers); why != "" {
		w.fail(NobodyAstray, why)
	}
}

// requestForms are the forms of requests to the gateway, and of the inputs of tools.
var requestForms = append([]*jsonForm{
	{name: "message", fields: append(slices.Clone(messageFields), formField{name: "project_id", good: goodNames, bad: badNames}),
		read: func(body []byte) (formValues, *actor.Refusal) {
			call, refusal := ingress.Message(actor.NewPrincipal("", ""), "ana", body)
			if refusal != nil {
				return nil, refusal
			}
			clear(body) // the call has its own copy
			v := callValues(&call, call.To.Key)
			if call.To.Key == actor.DefaultKey {
				v["session_id"] = ""
			}
			v["content"] = actor.TextOf(call.Parts)
			return v, nil
		}},
	{name: "invocation", fields: append(slices.Concat(messageFields[:1], []formField{{name: "session_id", alias: "session", good: []formValue{{`"s0"`, ""}, {`"\u00730"`, ""}}, bad: append([]string{`"s"`, `"s1"`}, badNames...)}}, messageFields[2:]), formField{name: "project_id", good: []formValue{{`""`, ""}}, bad: append([]string{`"p"`, `"another"`}, badNames...)}),
		read: func(body []byte) (formValues, *actor.Refusal) {
			call, to, refusal := ingress.Invoke(actor.CallID{1}, actor.NewID("xan", "s0"), "ana", body)
			if refusal != nil {
				return nil, refusal
			}
			clear(body)
			var in struct {
				Agent   string `json:"agent_id"`
				Message string `json:"message"`
				Timeout int64  `json:"timeout_ms"`
			}
			if err := json.Unmarshal(call.Parts[0].Bytes, &in); err != nil {
				return nil, invalidRefusal(err)
			}
			call.Left = time.Duration(in.Timeout) * time.Millisecond
			agent, session, _ := strings.Cut(in.Agent, "/")
			if want := actor.NewID(agent, textOr(session, "s0")); to != want || call.Kind != actor.Signal || call.Parent != (actor.CallID{1}) {
				return nil, actor.Refuse(actor.Rejected, "it calls %s, and checks %s", want, to)
			}
			v := callValues(&call, session)
			v["content"] = in.Message
			return v, nil
		}},
	{name: "message of a user", fields: append([]formField{objectField("message")}, messageFields[1:]...),
		read: func(body []byte) (formValues, *actor.Refusal) {
			call, refusal := ingress.Message(actor.NewPrincipal("", ""), "ana", body)
			if refusal != nil {
				return nil, refusal
			}
			clear(body)
			v := callValues(&call, strings.TrimSuffix(call.To.Key, actor.DefaultKey))
			v["message"] = actor.TextOf(call.Parts)
			return v, nil
		}},
	{name: "forwarded invocation", fields: []formField{objectField("input_message"),
		{name: "agent_id", good: []formValue{{`"ana"`, ""}, {`""`, ""}}, bad: append([]string{`"bo"`, `"Ana"`, `" ana"`}, notText...)},
		{name: "run_id", good: []formValue{{`"` + actor.CallID{1}.String() + `"`, ""}, {`""`, ""}}, bad: append([]string{`"run1"`, `"` + actor.CallID{2}.String() + `"`}, notText...)},
		{name: "messages", good: []formValue{{"[]", ""}, {`[{"role":"system","content":"s"},{"role":"user","content":"u"}]`, ""}, {"[7]", ""}}, bad: []string{"7", `"a"`, "{}", "true"}},
		{name: "context", good: []formValue{{"{}", ""}, {`{"user_id":"u1"}`, ""}, {`{"a":[1]}`, ""}}, bad: []string{"7", `"a"`, "[]", "true"}},
	}, read: func(body []byte) (formValues, *actor.Refusal) {
		call, to, refusal := ingress.Invoke(actor.CallID{1}, actor.NewID("xan", "s0"), "ana", body)
		if refusal != nil {
			return nil, refusal
		}
		clear(body)
		var in struct {
			Agent   string `json:"agent_id"`
			Message string `json:"message"`
		}
		if err := json.Unmarshal(call.Parts[0].Bytes, &in); err != nil {
			return nil, invalidRefusal(err)
		}
		if to != actor.NewID("ana", "s0") || in.Agent != "ana" {
			return nil, actor.Refuse(actor.Rejected, "it calls %s, and checks %s", in.Agent, to)
		}
		return formValues{"input_message": in.Message}, nil
	}},
	{name: "signal", fields: []formField{
		{name: "name", required: true, good: goodNames, bad: append([]string{`""`}, badNames...)},
		{name: "payload", good: []formValue{{`"on"`, "text/plain on"}, {`""`, "text/plain "}, {`{"a":[1,"b"]}`, `application/json {"a":[1,"b"]}`}, {"7", "application/json 7"}, {"false", "application/json false"},
			{`"\u0061\n"`, "text/plain a\n"}, {strings.Repeat("[", 63) + strings.Repeat("]", 63), "application/json " + strings.Repeat("[", 63) + strings.Repeat("]", 63)}}},
	}, read: func(body []byte) (formValues, *actor.Refusal) {
		signal, refusal := ingress.DecodeSignal(body)
		if refusal != nil {
			return nil, refusal
		}
		clear(body)
		v := formValues{"name": signal.Name}
		for _, p := range signal.Payload {
			v["payload"] += p.Media + " " + string(p.Bytes)
		}
		return v, nil
	}},
	{name: "backup", fields: []formField{{name: "name", required: true, good: goodNames, bad: append([]string{`""`}, badNames...)}},
		read: func(body []byte) (formValues, *actor.Refusal) {
			name, refusal := ingress.Backup(body)
			return formValues{"name": name}, refusal
		}},
	{name: "cancellation", read: func(body []byte) (formValues, *actor.Refusal) { return nil, ingress.CheckEmpty(body) }},
	declaredForm, externalForm,
}, slices.Concat(toolForms[:], storedForms[:])...)

// commonFields are the fields of both kinds of agents.
var commonFields = []formField{
	{name: "agent_id", required: true, missing: "name", good: goodNames, bad: append([]string{`""`}, badNames...)},
	{name: "name", good: append(plainValues("a name", strings.Repeat("n", 128)), formValue{`"\u00e9"`, "\u00e9"}), bad: append([]string{`""`, `" "`, long(129), `"a\nb"`, `"a\tb"`, `"\u0000"`, `"\u007f"`}, notText...)},
	{name: "description", good: plainValues("what it does", strings.Repeat("d", 1024)), bad: append([]string{`""`, long(1025), `"a\nb"`, `"\u001b[1m"`}, notText...)},
	{name: "capabilities", good: []formValue{{"[]", ""}, {`["tools","a.b"]`, "tools a.b"}, {`["A"]`, "A"}}, bad: append([]string{`["a b"]`, `[""]`, "[" + strings.Repeat(`"a",`, 64) + `"b"]`}, notList...)},
	{name: "durability", absent: "journaled", good: plainValues("journaled", "none"), bad: append([]string{`""`, `"None"`, `"volatile"`}, notText...)},
	{name: "turns", absent: "serial", good: plainValues("serial", "interleaved"), bad: append([]string{`""`, `"parallel"`}, notText...)},
	{name: "recursion", absent: "by_agent", good: plainValues("by_agent", "by_actor"), bad: append([]string{`""`, `"none"`}, notText...)},
	{name: "user_text", good: plainValues("flag", "redact", "off"), bad: append([]string{`""`, `"on"`}, notText...)},
	{name: "priority", good: plainValues("normal", "high", "low"), bad: append([]string{`""`, `"urgent"`, `"High"`}, notText...)},
}

// describedFields are commonFields of an external agent, whose capabilities may be any object or list; only a
// list of texts is one of names.
func describedFields() []formField {
	all := slices.Clone(commonFields)
	for i := range all {
		if all[i].name == "capabilities" {
			all[i].bad = []string{`["a b"]`, `[""]`, `"a"`, "7", "true"}
		}
	}
	return all
}

// bounded returns the field of a whole number from 1 to the maximum, and what it means
// if it is absent.
func bounded(name string, maximum int, absent string) formField {
	return formField{name: name, absent: absent, good: numbers("1", "2", strconv.Itoa(maximum)), bad: append([]string{"0", "-1", strconv.Itoa(maximum + 1), "-9223372036854775808"}, notNumber...)}
}

// declaredForm is the form of a declared agent, and externalForm that of an external one.
var (
	declaredForm = &jsonForm{name: "declared agent", read: readSpecForm, fields: slices.Concat(commonFields, []formField{
		{name: "kind", absent: "declared", good: plainValues("declared"), bad: append([]string{`""`, `"native"`, `"Declared"`}, notText...)},
		{name: "model", absent: "scripted", good: goodNames, bad: append([]string{`""`}, badNames...)},
		{name: "prompt", absent: "default", good: append(plainValues("Be brief.", strings.Repeat("p", 32<<10)), formValue{`"two\nlines"`, "two\nlines"}), bad: append([]string{`""`, `" \n"`, long(32<<10 + 1), `"a\u0000"`}, notText...)},
		{name: "tools", absent: "call_agent", good: []formValue{{"[]", ""}, {`["call_agent","clock","a.b-c_D9"]`, "call_agent clock a.b-c_D9"}},
			bad: append([]string{`["a b"]`, `[""]`, `["troupe.announce"]`, `["` + strings.Repeat("t", 129) + `"]`, `["a/b"]`}, notList...)},
		{name: "agents", absent: "any", good: []formValue{{"[]", ""}, {`["ana","bo"]`, "ana bo"}}, bad: append([]string{`["a/b"]`, `["a b"]`, `[""]`}, notList...)},
		{name: "on_failure", absent: "return_error", good: plainValues("return_error", "fail_run"), bad: append([]string{`""`, `"retry"`}, notText...)},
		{name: "parameters.temperature", good: []formValue{{"0", "0"}, {"0.2", "0.2"}, {"2", "2"}, {"1e0", "1"}, {"2.0", "2"}, {"-0.0", "0"}}, bad: []string{"-0.1", "2.0001", "3", "1e400", `"1"`, "true", "[]", "{}"}},
		bounded("parameters.max_tokens", 1<<24, ""),
		{name: "parameters.seed", good: numbers("0", "7", "-7", "9223372036854775807", "-9223372036854775808"), bad: append([]string{"9223372036854775808"}, notNumber...)},
		bounded("limits.steps", 50, "50"), bounded("limits.model_timeout_ms", 3_600_000, ""), bounded("limits.tool_timeout_ms", 3_600_000, ""), bounded("limits.call_timeout_ms", 300_000, ""),
	})}
	externalForm = &jsonForm{name: "external agent", read: readSpecForm, fields: slices.Concat(describedFields(), []formField{
		{name: "kind", absent: "external", always: true, good: plainValues("external"), bad: append([]string{`""`, `"native"`}, notText...)},
		{name: "endpoint", required: true, good: plainValues("http://a.example", "https://a.example:8443/v1/agent", "http://127.0.0.1:9001", "http://[::1]:80", "http://A-b.example"),
			bad: append([]string{`""`, `"a.example"`, `"ftp://a.example"`, `"http://"`, `"http://me@a.example"`, `"http://me:pw@a.example"`, `"http://a.example/?q=1"`, `"http://a.example/#f"`, `"http://a.example:0"`, `"http://a.example:65536"`,
				`"http://a.example:x"`, `"http://a b"`, `"http://a..b"`, `"http://[fe80::1%25eth0]"`, `"http://[1.2.3.4]"`, `"http://1.2.3"`, `"http://%zz"`, `"http://` + strings.Repeat("a.", 1024) + `b"`}, notText...)},
		{name: "retry", absent: "matched", good: plainValues("never", "safe", "matched"), bad: append([]string{`""`, `"always"`}, notText...)},
		bounded("concurrency", 1024, "64"),
		{name: "auth.env", good: plainValues("TROUPE_AUTH_A", "TROUPE_AUTH_X_9"), bad: append([]string{`""`, `"HOME"`, `"TROUPE_AUTH_"`, `"TROUPE_AUTH_a"`, `"troupe_auth_A"`, `"TROUPE_AUTH_A B"`}, notText...)},
		bounded("limits.invoke_timeout_ms", 3_600_000, ""), bounded("limits.retry_attempts", 20, ""),
		{name: "limits.retry_jitter", good: numbers("true", "false"), bad: []string{`"true"`, "1", "{}", "[]"}},
	})}
)

// readSpecForm reads a spec and returns its meaning.
func readSpecForm(body []byte) (formValues, *actor.Refusal) {
	spec, err := agents.ReadJSON(body)
	if err != nil {
		refusal := invalidRefusal(err)
		if problems, ok := err.(agents.Problems); ok {
			refusal.Field = problems[0].Field
		}
		return nil, refusal
	}
	clear(body)
	return specValues(&spec), nil
}

// specValues returns the meaning of a spec.
func specValues(s *agents.Spec) formValues {
	number := func(n int64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	v := formValues{"agent_id": s.ID, "description": s.Description, "capabilities": strings.Join(s.Capabilities, " "), "durability": s.Durability, "turns": s.Turns, "recursion": s.Recursion,
		"priority": s.Priority, "user_text": s.UserText, "kind": s.Kind, "model": s.Model, "prompt": s.Prompt, "tools": strings.Join(s.Tools, " "), "agents": strings.Join(s.Agents, " "), "on_failure": s.OnFailure,
		"parameters.max_tokens": number(int64(s.Parameters.MaxTokens)), "limits.steps": number(int64(s.Limits.Steps)), "limits.model_timeout_ms": number(s.Limits.ModelTimeoutMS),
		"limits.tool_timeout_ms": number(s.Limits.ToolTimeoutMS), "limits.call_timeout_ms": number(s.Limits.CallTimeoutMS), "limits.invoke_timeout_ms": number(s.Limits.InvokeTimeoutMS),
		"limits.retry_attempts": number(int64(s.Limits.RetryAttempts)), "endpoint": s.Endpoint, "retry": s.Retry, "concurrency": number(int64(s.Concurrency)), "auth.env": s.Auth.Env}
	if v["name"] = s.Name; s.Name == s.ID {
		v["name"] = ""
	}
	if s.Agents == nil {
		v["agents"] = "any"
	}
	if strings.HasPrefix(s.Prompt, "You are "+s.Name+", one of several agents") {
		v["prompt"] = "default"
	}
	if t := s.Parameters.Temperature; t != nil {
		v["parameters.temperature"] = fmt.Sprint(*t)
	}
	if n := s.Parameters.Seed; n != nil {
		v["parameters.seed"] = fmt.Sprint(*n)
	}
	if b := s.Limits.RetryJitter; b != nil {
		v["limits.retry_jitter"] = fmt.Sprint(*b)
	}
	return v
}
