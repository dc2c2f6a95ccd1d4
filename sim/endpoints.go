// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// Requests to the gateway are sent as bytes. A valid request has one of several
// formattings. Malformed input is sent, too.

// requestBody returns the body of a message, in the client's formatting. All
// formattings mean the same.
func (w *Simulation) requestBody(c *client) []byte {
	fields := map[string]any{"content": c.text, "session_id": c.to.Key}
	if c.bodyStyle != 3 && c.no%3 == 0 {
		fields["project_id"] = fmt.Sprintf("p-%d", c.no)
	}
	timeout := ""
	if c.left > 0 {
		fields["timeout_ms"] = c.left.Milliseconds()
		timeout = fmt.Sprintf("\"timeout_ms\": %d, ", c.left.Milliseconds())
	}
	b := invariant.Must(json.Marshal(fields))
	switch c.bodyStyle {
	case 1:
		return invariant.Must(json.MarshalIndent(json.RawMessage(b), " ", "\t"))
	case 2:
		return []byte(strings.Replace(string(b), `"content":"`, `"cont\u0065nt":"`, 1))
	case 3:
		return fmt.Appendf(nil, "\r\n{%s\"content\": %s, \"session\": %q}", timeout, invariant.Must(json.Marshal(c.text)), c.to.Key)
	}
	return b
}

// bodyStyles is the number of formattings of a message body.
const bodyStyles = 4

// malformedMessages are bodies that the gateway MUST reject as messages. LONG is
// replaced by an array nested more deeply than the gateway permits.
var malformedMessages = [...]string{
	"", " ", "{", "[]", "7", "null", `"text"`, "{}", `{"content":`, `{"content":7}`, `{"content":null}`, `{"content":"a","content":"b"}`,
	`{"content":"a"}{}`, `{"content":"a"} x`, `{"content":"a","model":"m"}`, `{"content":"a","session":"a b"}`, `{"content":"a","session":7}`,
	`{"content":"a","timeout_ms":-1}`, `{"content":"a","timeout_ms":1.5}`, `{"content":"a","timeout_ms":"1"}`, `{"content":"a","timeout_ms":99999999999}`,
	"{\"content\":\"\xff\"}", "{\"content\":\"a\nb\"}", `{"content":"\ud800"}`, `{"content":{"a":[1]}}`, `{"content":[{"type":"image","text":"a"}]}`, `{"message":{"role":"tool","content":"a"}}`, `{"content":LONG}`, `{"\u0000":1}`,
}

// endpoints are the other inputs of the gateway, each with valid and malformed
// examples. LONG is replaced by a text longer than any endpoint accepts.
var endpoints = [...]struct {
	name    string
	read    func(text string) *actor.Refusal
	good    []string
	rubbish []string
}{
	{"signal", func(text string) *actor.Refusal { _, r := ingress.DecodeSignal([]byte(text)); return r },
		[]string{`{"name":"go"}`, `{"name":"go","payload":null}`, `{"name":"go","payload":{"a":[1,"b"]}}`, `{"name":"go","payload":"on"}`},
		[]string{"", "[]", "{}", `{"name":""}`, `{"name":"a b"}`, `{"name":".."}`, `{"name":7}`, `{"name":"LONG"}`, `{"name":"go","payload":}`, `{"name":"go","to":"me"}`}},
	{"invocation", func(text string) *actor.Refusal {
		_, _, r := ingress.Invoke(actor.CallID{1}, actor.NewID("xan", "s0"), "ana", []byte(text))
		return r
	}, []string{`{"content":"a"}`, `{"message":"a","session_id":"s0","timeout_ms":1}`, `{"agent_id":"ana","session_id":"s0","input_message":{"role":"user","content":"a"},"messages":[],"context":{}}`},
		[]string{"", "null", "{}", `{"message":null}`, `{"message":7}`, `{"message":"a","timeout_ms":-1}`, `{"message":"a","session_id":"a/b"}`, `{"message":"a","session_id":"s1"}`, `{"message":"a","agent_id":"b"}`, `{"input_message":{"role":"system","content":"a"}}`, `{"input_message":{"role":"user","content":"a"},"run_id":"run1"}`}},
	{"cancel", func(text string) *actor.Refusal { return ingress.CheckEmpty([]byte(text)) }, []string{"", "{}"}, []string{"[]", "7", `{"why":"so"}`, "{}{}"}},
	{"backup", func(text string) *actor.Refusal { _, r := ingress.Backup([]byte(text)); return r },
		[]string{`{"name":"copy"}`}, []string{"", "{}", `{"name":""}`, `{"name":"/copy"}`, `{"name":"a\u0000b"}`, `{"name":"LONG"}`, `{"name":["a"]}`, `{"dir":"/a"}`}},
	{"idempotency key", func(text string) *actor.Refusal {
		_, r := ingress.ParseIdempotency("client-0", "messages", strings.Split(text, "|"), nil)
		return r
	}, []string{"a", "a key of mine"}, []string{"", "a|b", "LONG", "a\nb", "\u00e9"}},
	{"stream cursor", func(text string) *actor.Refusal { _, r := ingress.ParseCursor(text); return r },
		[]string{"0", "7", "7.0.12"}, []string{"-1", "+1", "01", "1.", ".1", "1..2", "1,2", "x", "99999999999999999999", "LONG", strings.Repeat("0.", ingress.TreeRunsMax)}},
	{"run", func(text string) *actor.Refusal { _, err := actor.ParseCallID(text); return invalidRefusal(err) },
		[]string{"0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"}, []string{"", "7", "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e5", "0190D5B2-7C3E-7A41-8F10-2B6F0C9D4E55", "0190d5b2x7c3e-7a41-8f10-2b6f0c9d4e55", "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4exx"}},
	{"actor", func(text string) *actor.Refusal { _, err := actor.ParseID(text); return invalidRefusal(err) },
		[]string{"ana", "ana/s0", "default/ana/s0"}, []string{"", "/", "ana/", "a b", "a/b/c/d", "..", "ana/LONG", "../etc/passwd"}},
	{"priority", func(text string) *actor.Refusal { _, err := actor.ParseLane(text); return invalidRefusal(err) },
		[]string{actor.Normal.String(), actor.High.String(), actor.Low.String(), "high", "normal", "low"}, []string{"", "urgent", "High", "LONG"}},
	{"time", func(text string) *actor.Refusal { _, err := runs.ParseTime(text); return invalidRefusal(err) },
		[]string{runs.FormatTime(Origin), "1969-07-20T20:17:40.000000001Z"}, []string{"", "now", "2026-01-01", "2026-13-01T00:00:00.000000000Z", "2026-01-01T00:00:00.00000000 Z", "2026-02-30T00:00:00.000000000Z"}},
}

// invalidRefusal returns the refusal of a malformed path segment or header.
func invalidRefusal(err error) *actor.Refusal {
	if err == nil {
		return nil
	}
	return actor.Refuse(actor.Invalid, "%v", err)
}

// sendMalformed has a client send malformed input in place of its request: a malformed
// message, or malformed input to another endpoint. The gateway MUST refuse it as
// invalid. It reports whether the gateway refused it.
func (w *Simulation) sendMalformed(c *client, cell *cell) bool {
	name, good, samples, read := "message", string(w.requestBody(c)), malformedMessages[:], func(text string) *actor.Refusal {
		_, r := ingress.Message(actor.NewPrincipal("", ""), c.to.Agent, []byte(text))
		return r
	}
	long := strings.Repeat("[", ingress.DepthMax+1) + strings.Repeat("]", ingress.DepthMax+1)
	if choice := w.entropy.Int(2 * len(endpoints)); choice >= len(endpoints) {
		d := &endpoints[choice-len(endpoints)]
		name, samples, read = d.name, d.rubbish, d.read
		good, long = d.good[w.entropy.Int(len(d.good))], strings.Repeat("a", 1<<13)
	}
	if refusal := read(good); refusal != nil {
		w.fail(CodecRoundTrip, fmt.Sprintf("valid input %q for %s rejected: %v", good, name, refusal))
	}
	malformed := strings.ReplaceAll(samples[w.entropy.Int(len(samples))], "LONG", long)
	sent := string(w.faultyBytes(ClientGarbage, []byte(good), []byte(malformed)))
	refusal := read(sent)
	if sent == malformed && (refusal == nil || refusal.Reason != actor.Invalid || refusal.HTTP() != 400) {
		w.fail(CodecRoundTrip, fmt.Sprintf("malformed input %.60q for %s: want a refusal as Invalid, got %v", sent, name, refusal))
	}
	return recordChange(w, ClientGarbage, true, refusal == nil, "client %d sends %s the malformed %s %.60q: %v", c.no, cell.self, name, sent, refusal)
}

// traceHeaders are the trace headers of clients, and whether they are valid.
var traceHeaders = [...]struct {
	headers []string
	good    bool
}{
	{nil, false},
	{[]string{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, true},
	{[]string{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, false},
	{[]string{"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, false},
	{[]string{"00-00000000000000000000000000000000-b7ad6b7169203331-01"}, false},
	{[]string{"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, false},
	{[]string{"00-0af7651916cd43dd8448eb211c80319c"}, false},
}

// traceParent returns the trace to which a client's request belongs.
func (w *Simulation) traceParent(c *client) string {
	p := traceHeaders[c.no%len(traceHeaders)]
	trace := ingress.Trace(p.headers, nil)
	if (trace != "") != p.good {
		w.fail(CodecRoundTrip, fmt.Sprintf("trace headers %q are read as trace %q", p.headers, trace))
	}
	return trace
}

// acceptHeaders are the Accept headers of clients. The last two of them request a
// stream.
var acceptHeaders = [...]string{"", "*/*", "application/json", "text/html", "text/event-stream;q=0", "text/event-stream;q=0.3, application/json",
	"text/event-stream;q=2", "application/json;q=0.9,text/event-stream;q=0.8", "text/plain;q=x", "text/event-stream;q=", "TEXT/event-stream , application/json;q=0.5", "text/event-stream; charset=utf-8, application/json"}

// wantsStream reports whether a client requests the answer as a stream.
func (w *Simulation) wantsStream() bool {
	i := w.entropy.Int(len(acceptHeaders))
	wants := ingress.WantsStream(acceptHeaders[i])
	if wants != (i >= len(acceptHeaders)-2) {
		w.fail(CodecRoundTrip, fmt.Sprintf("Accept header %q is read as a request for a stream: %v", acceptHeaders[i], wants))
	}
	return wants
}

// forgeToken returns a run token that the server did not mint.
func (w *Simulation) forgeToken(token string) string {
	at := w.entropy.Int(len(token))
	forged := [...]string{token[:at], token + "A", token[:at] + "!" + token[at+1:], strings.ToUpper(token), "", token + "\n", strings.Replace(token, ".", "", 2)}[w.entropy.Int(7)]
	return string(w.faultyBytes(CallbackForged, []byte(token), []byte(forged)))
}
