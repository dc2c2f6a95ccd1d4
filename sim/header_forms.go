// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// checkTrace generates trace headers. It returns why the program reads them as another
// trace than that from which they were generated, or "".
func checkTrace(p *picker) string {
	parents, want := drawTraceParents(p)
	states, state := drawTraceState(p)
	if want != "" && state != "" {
		want += " " + state
	}
	if got := ingress.Trace(parents, states); got != want {
		return fmt.Sprintf("trace headers %.200q and %.600q are read as %.600q, want %.600q", parents, states, got, want)
	}
	return ""
}

// drawTraceParents generates the traceparent headers of a request, and the value that
// they have as version 00: "" if they are invalid.
func drawTraceParents(p *picker) (headers []string, want string) {
	hex := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "0123456789abcdef"[p.Int(16)]
		}
		b[p.Int(n)] = "123456789abcdef"[p.Int(15)]
		return string(b)
	}
	ids := hex(32) + "-" + hex(16)
	flags := [...]string{"00", "01", "03", "fe", "ff", "0a", "0b"}[p.Int(7)]
	sampled := slices.Contains([]string{"01", "03", "ff", "0b"}, flags)
	switch p.Int(12) {
	case 0, 1, 2:
		return []string{"00-" + ids + "-" + flags}, "00-" + ids + "-" + flags
	case 3, 4: // a later version: only the flag that version 00 defines
		later := [...]string{"01", "cc", "fe"}[p.Int(3)] + "-" + ids + "-" + flags + [...]string{"", "-", "-what-the-future-brings"}[p.Int(3)]
		return []string{later}, "00-" + ids + [...]string{"-00", "-01"}[boolIndex(sampled)]
	case 5:
		return nil, ""
	case 6:
		return []string{"00-" + ids + "-" + flags, "00-" + ids + "-" + flags}, ""
	case 7:
		return []string{[...]string{"ff-" + ids + "-" + flags, "00-" + ids + "-" + flags + "-a", "00-" + ids + "-" + flags + "0", "cc-" + ids + "-" + flags + "0", "00-" + ids, "", "00-" + ids + "-0"}[p.Int(7)]}, ""
	case 8:
		return []string{[...]string{"00-" + strings.Repeat("0", 32) + "-" + hex(16) + "-01", "00-" + hex(32) + "-" + strings.Repeat("0", 16) + "-01"}[p.Int(2)]}, ""
	}
	text := []byte("00-" + ids + "-" + flags)
	text[p.Int(len(text))] = "GAgz _/:`"[p.Int(9)]
	return []string{string(text)}, ""
}

// drawTraceState generates the tracestate headers of a request, and their combination:
// "" if a member is invalid. If it exceeds 512 bytes, members of more than 128 bytes are
// dropped first, then others, always the last one.
func drawTraceState(p *picker) (headers []string, want string) {
	keys := [...]string{"a", "z9_-*/", "0tenant@system", "t@s", strings.Repeat("k", 256), strings.Repeat("t", 241) + "@" + strings.Repeat("s", 14), "b", "vendor1", "vendor2", "vendor3"}
	values := [...]string{"v", "with blanks", "~!@", strings.Repeat("v", 256), strings.Repeat("v", 120), "1"}
	var members []string
	for i := range p.Int(8) {
		members = append(members, keys[(p.Int(2)+2*i)%len(keys)]+"="+values[p.Int(len(values))])
	}
	if p.Int(8) == 7 {
		for i := len(members); i < 32; i++ {
			members = append(members, fmt.Sprintf("m%d=%s", i, strings.Repeat("v", p.Int(20)+1)))
		}
	}
	bad := ""
	if p.Int(4) == 3 {
		bad = [...]string{"=v", "a", "A=1", "9a=1", "a@b@c=1", "a@=1", "@a=1", "a@9=1", "c=", "c=a=b", "c=\u00e9", "c=\x01", strings.Repeat("k", 257) + "=v", strings.Repeat("t", 242) + "@s=v", "t@" + strings.Repeat("s", 15) + "=v", "c=" + strings.Repeat("v", 257)}[p.Int(16)]
		at := p.Int(len(members) + 1)
		members = slices.Insert(members, at, bad)
	} else if len(members) > 0 && p.Int(8) == 7 {
		bad = "duplicate"
		members = append(members, members[p.Int(len(members))])
	}
	seen := map[string]bool{}
	for _, m := range members {
		key, _, _ := strings.Cut(m, "=")
		if seen[key] || len(members) > 32 {
			bad = "duplicate or too many"
		}
		seen[key] = true
	}
	text := strings.Join(members, [...]string{",", " , ", ",,", "\t,"}[p.Int(4)])
	headers = []string{text}
	if len(members) > 1 && p.Int(3) == 2 {
		at := 1 + p.Int(len(members)-1)
		headers = []string{strings.Join(members[:at], ","), "", strings.Join(members[at:], ", ")}
	}
	if bad != "" {
		return headers, ""
	}
	for len(strings.Join(members, ",")) > 512 {
		drop := len(members) - 1
		for i, m := range members {
			if len(m) > 128 {
				drop = i
			}
		}
		members = slices.Delete(members, drop, drop+1)
	}
	return headers, strings.Join(members, ",")
}

// checkBindings generates a URL and the addresses to which a secret is bound. The secret
// may be sent if the parts from which one of the addresses was generated are those of the
// URL. It returns why the program decides otherwise, or "".
func checkBindings(p *picker) string {
	hosts := [...]string{"a.example", "b.example", "10.1.2.3", "[fd00::1]", "sub.a.example"}
	host, scheme := hosts[p.Int(len(hosts))], [...]string{"http", "https"}[p.Int(2)]
	port := [...]string{"", "80", "443", "8443"}[p.Int(4)]
	effective := textOr(port, map[string]string{"http": "80", "https": "443"}[scheme])
	path := [...]string{"", "/", "/v1", "/v1/agent", "/v1/agent/", "/v10"}[p.Int(6)]
	url := scheme + "://" + host + strings.TrimSuffix(":"+port, ":") + path
	unclear := p.Int(8) == 7
	if unclear { // a server may normalize this path
		url = scheme + "://" + host + strings.TrimSuffix(":"+port, ":") + [...]string{"/v1/../v2", "/v1/%2e%2e/v2", "/./v1", "/v1/..;a=1/v2"}[p.Int(4)]
	}
	var addresses []string
	want := false
	for range 1 + p.Int(2) {
		other := hosts[p.Int(len(hosts))]
		if p.Int(2) == 0 {
			other = host
		}
		shown := other
		if p.Int(4) == 3 {
			shown = strings.ToUpper(other)
		}
		matches := other == host
		switch p.Int(3) {
		case 1:
			bound := [...]string{"80", "443", "8443", effective}[p.Int(4)]
			shown, matches = shown+":"+bound, matches && bound == effective
		case 2:
			s, bound, prefix := [...]string{"http", "https", scheme}[p.Int(3)], [...]string{"", "80", "443", effective}[p.Int(4)], [...]string{"", "/", "/v1", "/v1/", "/v1/agent", "/v"}[p.Int(6)]
			matches = matches && s == scheme && textOr(bound, map[string]string{"http": "80", "https": "443"}[s]) == effective &&
				strings.HasPrefix(strings.TrimSuffix(path, "/")+"/", strings.TrimSuffix(prefix, "/")+"/")
			shown = s + "://" + shown + strings.TrimSuffix(":"+bound, ":") + prefix
		}
		want = want || matches && !unclear
		addresses = append(addresses, shown)
	}
	bindings := upstream.Bindings{authEnv: strings.Join(addresses, [...]string{",", ", "}[p.Int(2)])}
	if err := bindings.Check(); err != nil {
		return fmt.Sprintf("valid bindings %q are refused: %v", bindings[authEnv], err)
	}
	if err := bindings.Permit(upstream.Target{URL: url, AuthEnv: authEnv}); (err == nil) != want {
		return fmt.Sprintf("a secret bound to %q may be sent to %s: %v, want %v", bindings[authEnv], url, err == nil, want)
	}
	if err := bindings.Permit(upstream.Target{URL: url}); err != nil {
		return fmt.Sprintf("a target without a secret is refused: %v", err)
	}
	if err := bindings.Permit(upstream.Target{URL: url, AuthEnv: authEnv + "2"}); err == nil {
		return fmt.Sprintf("a secret without binding may be sent to %s", url)
	}
	bindings[authEnv] += "," + invalidBindings[p.Int(len(invalidBindings))]
	if bindings.Check() == nil {
		return fmt.Sprintf("invalid bindings %q are accepted", bindings[authEnv])
	}
	if name := invalidAuthNames[p.Int(len(invalidAuthNames))]; (upstream.Bindings{name: host}).Check() == nil {
		return fmt.Sprintf("a binding of the variable %q is accepted", name)
	}
	return ""
}

// invalidBindings are addresses to which no secret can be bound, and invalidAuthNames are
// names of variables that hold no secret of an agent.
var (
	invalidBindings  = [...]string{"", "a.example/v1", "ftp://a.example", "http://", "a b", "http://a.example/../v1", "http://a.example/%61", "a.example:0", "a.example:x", "http://me@a.example", "http://a.example?q=1"}
	invalidAuthNames = [...]string{"HOME", "TROUPE_AUTH_", "TROUPE_AUTH_a", "TROUPE_AUTH_A B"}
)

// toolForms are the forms of the inputs of tools, from their schemas.
var toolForms = [...]*jsonForm{
	{name: "input of post", schema: true, fields: []formField{
		{name: "to", good: plainValues("bo", "everyone"), bad: append([]string{`""`, `"a"`, `"everybody"`, `"ANA"`, `"b0"`, "null"}, notText...)},
		{name: "copies", good: []formValue{{"1", "1"}, {"9", "9"}, {"2", "2"}, {"1e0", "1"}, {"3.0", "3"}}, bad: append([]string{"0", "10", "-1", "1.5", "null"}, `"1"`, "true", "{}", "[]", "1e400")},
		{name: "kind", good: plainValues("letter"), bad: append([]string{`"parcel"`, `""`, "null"}, notText...)},
		{name: "lines", good: []formValue{{"[]", "[]"}, {`["a",null]`, "[a <nil>]"}, {`["a"]`, "[a]"}}, bad: []string{`["a","b","c"]`, "7", "{}", `"a"`, "null"}},
	}, read: func(body []byte) (formValues, *actor.Refusal) { return readToolInput(postTool, body) }},
	{name: "input of call_agent", schema: true, fields: []formField{
		{name: "agent_id", required: true, good: append(plainValues("s", "ana", "ana/s1"), formValue{`"\u0073"`, "s"}), bad: append([]string{`""`, `"a b"`, `"a/b/c"`, `"/a"`, `"a/"`, "null"}, notText...)},
		{name: "message", required: true, good: append(plainValues("", "a", "\u00e9"), formValue{`"a\n"`, "a\n"}), bad: append([]string{"null"}, notText...)},
		{name: "timeout_ms", good: []formValue{{"1", "1ms"}, {"30000", "30s"}, {"2.0", "2ms"}, {"1e3", "1s"}}, bad: []string{"0", "-1", "1.5", `"1"`, "true", "[]", "{}", "1e400", "null"}},
	}, read: func(body []byte) (formValues, *actor.Refusal) { return readToolInput(tools.CallAgent, body) }},
}

// readToolInput plans the use of a tool by a turn.
func readToolInput(tool string, body []byte) (formValues, *actor.Refusal) {
	call := actor.Call{ID: actor.CallID{1}, Root: actor.CallID{1}, To: actor.NewID("ana", "s0"), Attempt: 1}
	ec := tools.NewContext(call, time.Second, formDispatcher{})
	ask, result := builtinTools().Plan(ec, actor.Ask{Kind: actor.AskTool, Name: tool, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: body}}})
	if result != nil {
		if again := builtinTools().Execute(context.Background(), tool, body, ec); tool == postTool && again.Refusal == nil {
			return nil, nil // a tool that its cell refuses must not run either
		}
		return nil, result.Refusal
	}
	clear(body)
	if ask.Kind == actor.AskCall {
		v := formValues{"agent_id": ask.Name, "message": actor.TextOf(ask.Parts)}
		if ask.Timeout > 0 {
			v["timeout_ms"] = ask.Timeout.String()
		}
		return v, nil
	}
	var members map[string]any
	if err := json.Unmarshal(ask.Parts[0].Bytes, &members); err != nil {
		return nil, invalidRefusal(err)
	}
	v := formValues{}
	for name, value := range members {
		v[name] = fmt.Sprint(value)
	}
	return v, nil
}

// formDispatcher builds the asks of call_agent.
type formDispatcher struct{}

func (formDispatcher) InvokeWithTimeout(target, operation string, parts []actor.Part, timeout actor.Duration) actor.Ask {
	return actor.Ask{Kind: actor.AskCall, Name: target, Operation: operation, Parts: parts, Timeout: timeout}
}
