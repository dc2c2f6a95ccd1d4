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

// What comes to a node's door comes as bytes, and not always as the same ones.

// requestBody is a message as a client writes it: mostly as all do, sometimes in
// another way that means the same.
func (w *Simulation) requestBody(c *client) []byte {
	b := invariant.Must(json.Marshal(map[string]any{"content": c.text, "session": c.to.Key, "timeout_ms": c.left.Milliseconds()}))
	switch c.bodyStyle {
	case 1:
		return invariant.Must(json.MarshalIndent(json.RawMessage(b), " ", "\t"))
	case 2:
		return []byte(strings.Replace(string(b), `"content":"`, `"cont\u0065nt":"`, 1))
	case 3:
		return fmt.Appendf(nil, "\r\n{\"timeout_ms\": %d, \"content\": %s, \"session\": %q}", c.left.Milliseconds(), invariant.Must(json.Marshal(c.text)), c.to.Key)
	}
	return b
}

// bodyStyles is in how many ways a message is written.
const bodyStyles = 4

// malformedMessages is what no door takes for a message. LONG is more levels than it looks into.
var malformedMessages = [...]string{
	"", " ", "{", "[]", "7", "null", `"text"`, "{}", `{"content":`, `{"content":7}`, `{"content":null}`, `{"content":"a","content":"b"}`,
	`{"content":"a"}{}`, `{"content":"a"} x`, `{"content":"a","model":"m"}`, `{"content":"a","session":"a b"}`, `{"content":"a","session":7}`,
	`{"content":"a","timeout_ms":-1}`, `{"content":"a","timeout_ms":1.5}`, `{"content":"a","timeout_ms":"1"}`, `{"content":"a","timeout_ms":99999999999}`,
	"{\"content\":\"\xff\"}", "{\"content\":\"a\nb\"}", `{"content":"\ud800"}`, `{"content":{"a":[1]}}`, `{"content":LONG}`, `{"\u0000":1}`,
}

// endpoints are the others, each with what it takes and with what it does not. LONG
// is more than any of them takes.
var endpoints = [...]struct {
	name    string
	read    func(text string) *actor.Refusal
	good    []string
	rubbish []string
}{
	{"signal", func(text string) *actor.Refusal { _, r := ingress.Signal(actor.CallID{1}, []byte(text)); return r },
		[]string{`{"name":"go"}`, `{"name":"go","payload":null}`, `{"name":"go","payload":{"a":[1,"b"]}}`, `{"name":"go","payload":"on"}`},
		[]string{"", "[]", "{}", `{"name":""}`, `{"name":"a b"}`, `{"name":".."}`, `{"name":7}`, `{"name":"LONG"}`, `{"name":"go","payload":}`, `{"name":"go","to":"me"}`}},
	{"invocation", func(text string) *actor.Refusal {
		_, _, r := ingress.Invoke(actor.CallID{1}, actor.NewID("xan", "s0"), "ana", []byte(text))
		return r
	}, []string{`{"message":""}`, `{"message":"a","session_id":"s","timeout_ms":1}`},
		[]string{"", "null", "{}", `{"message":null}`, `{"message":7}`, `{"message":"a","timeout_ms":-1}`, `{"message":"a","session_id":"a/b"}`, `{"message":"a","agent_id":"b"}`}},
	{"cancel", func(text string) *actor.Refusal { return ingress.CheckEmpty([]byte(text)) }, []string{"", "{}"}, []string{"[]", "7", `{"why":"so"}`, "{}{}"}},
	{"backup", func(text string) *actor.Refusal { _, r := ingress.Backup([]byte(text)); return r },
		[]string{`{"dir":"/srv/copy"}`}, []string{"", "{}", `{"dir":""}`, `{"dir":"copy"}`, `{"dir":"/a\u0000b"}`, `{"dir":"/LONG"}`, `{"dir":["/a"]}`, `{"folder":"/a"}`}},
	{"key of a request", func(text string) *actor.Refusal {
		_, r := ingress.ParseIdempotency("client-0", "messages", strings.Split(text, "|"), nil)
		return r
	}, []string{"a", "a key of mine"}, []string{"", "a|b", "LONG", "a\nb", "\u00e9"}},
	{"place in a stream", func(text string) *actor.Refusal { _, r := ingress.ParseCursor(text); return r },
		[]string{"0", "7", "7.0.12"}, []string{"-1", "+1", "01", "1.", ".1", "1..2", "1,2", "x", "99999999999999999999", "LONG", strings.Repeat("0.", ingress.TreeRunsMax)}},
	{"run", func(text string) *actor.Refusal { _, err := actor.ParseCallID(text); return invalidRefusal(err) },
		[]string{"0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"}, []string{"", "7", "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e5", "0190D5B2-7C3E-7A41-8F10-2B6F0C9D4E55", "0190d5b2x7c3e-7a41-8f10-2b6f0c9d4e55", "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4exx"}},
	{"actor", func(text string) *actor.Refusal { _, err := actor.ParseID(text); return invalidRefusal(err) },
		[]string{"ana", "ana/s0", "default/ana/s0"}, []string{"", "/", "ana/", "a b", "a/b/c/d", "..", "ana/LONG", "../etc/passwd"}},
	{"priority", func(text string) *actor.Refusal { _, err := actor.ParseLane(text); return invalidRefusal(err) },
		[]string{actor.Normal.String(), actor.High.String(), actor.Low.String()}, []string{"", "urgent", "high", "LONG"}},
	{"time", func(text string) *actor.Refusal { _, err := runs.ParseTime(text); return invalidRefusal(err) },
		[]string{runs.FormatTime(Origin), "1969-07-20T20:17:40.000000001Z"}, []string{"", "now", "2026-01-01", "2026-13-01T00:00:00.000000000Z", "2026-01-01T00:00:00.00000000 Z", "2026-02-30T00:00:00.000000000Z"}},
}

// invalidRefusal is how a door says what is wrong with a part of a path or a header.
func invalidRefusal(err error) *actor.Refusal {
	if err == nil {
		return nil
	}
	return actor.Refuse(actor.Invalid, "%v", err)
}

// sendMalformed has a client send what is no message before it sends one, or come
// to another door with what that does not take.
func (w *Simulation) sendMalformed(c *client, at *cell) {
	name, all, read := "message", malformedMessages[:], func(text string) *actor.Refusal { _, r := ingress.Message(c.to.Agent, []byte(text)); return r }
	if door := w.entropy.Int(2 * len(endpoints)); door >= len(endpoints) {
		d := &endpoints[door-len(endpoints)]
		name, all, read = d.name, d.rubbish, d.read
		if good := d.good[w.entropy.Int(len(d.good))]; read(good) != nil {
			w.fail(CodecRoundTrip, fmt.Sprintf("a door does not take %q for a %s: %v", good, name, read(good)))
		}
	}
	long := strings.Repeat("[", ingress.DepthMax+1) + strings.Repeat("]", ingress.DepthMax+1)
	if name != "message" {
		long = strings.Repeat("a", 1<<13)
	}
	text := strings.ReplaceAll(all[w.entropy.Int(len(all))], "LONG", long)
	refusal := read(text)
	if refusal == nil || refusal.Reason != actor.Invalid || refusal.HTTP() != 400 {
		w.fail(CodecRoundTrip, fmt.Sprintf("a door takes %.60q for a %s, %v", text, name, refusal))
		return
	}
	w.recordFault(ClientGarbage, "client %d sends %s the %s %.60q, and is told: %v", c.no, at.self, name, text, refusal)
}

// traceHeaders are the headers by which clients name their own trace, and whether they do.
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

// traceParent is the trace that a client's request belongs to.
func (w *Simulation) traceParent(c *client) string {
	p := traceHeaders[c.no%len(traceHeaders)]
	trace := ingress.Trace(p.headers)
	if (trace != "") != p.good {
		w.fail(CodecRoundTrip, fmt.Sprintf("a door takes %q for the trace %q", p.headers, trace))
	}
	return trace
}

// acceptHeaders are what clients say of the form in which they want their answer: the
// last two want it as it is made.
var acceptHeaders = [...]string{"", "*/*", "application/json", "text/html", "text/event-stream;q=0", "text/event-stream;q=0.3, application/json",
	"text/event-stream;q=2", "application/json;q=0.9,text/event-stream;q=0.8", "text/plain;q=x", "text/event-stream;q=", "TEXT/event-stream , application/json;q=0.5", "text/event-stream; charset=utf-8, application/json"}

// wantsStream tells whether a client wants to hear of its run while it goes on.
func (w *Simulation) wantsStream() bool {
	i := w.entropy.Int(len(acceptHeaders))
	wants := ingress.WantsStream(acceptHeaders[i])
	if wants != (i >= len(acceptHeaders)-2) {
		w.fail(CodecRoundTrip, fmt.Sprintf("a door takes %q to ask for a stream: %v", acceptHeaders[i], wants))
	}
	return wants
}

// forgeToken presents a token that is not one of this server's.
func (w *Simulation) forgeToken(token string) {
	at := w.entropy.Int(len(token))
	forged := [...]string{token[:at], token + "A", token[:at] + "!" + token[at+1:], strings.ToUpper(token), "", token + "\n", strings.Replace(token, ".", "", 2)}[w.entropy.Int(7)]
	if run, id, refusal := ingress.ReadToken(w.tokenSecret(), forged); refusal == nil {
		w.fail(CodecRoundTrip, fmt.Sprintf("a token that is not the server's speaks for run %s of %s", run, id))
		return
	}
	w.recordFault(CallbackForged, "a token is refused that is not the server's")
}
