// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/must"
)

// What comes to a node's door comes as bytes, and not always as the same ones.

// body is a message as a client writes it: mostly as all do, sometimes in
// another way that means the same.
func (w *World) body(c *client) []byte {
	b := must.Do(json.Marshal(map[string]any{"content": c.text, "session": c.to.Key, "timeout_ms": c.left.Milliseconds()}))
	switch c.style {
	case 1:
		return must.Do(json.MarshalIndent(json.RawMessage(b), " ", "\t"))
	case 2:
		return []byte(strings.Replace(string(b), `"content":"`, `"cont\u0065nt":"`, 1))
	case 3:
		return fmt.Appendf(nil, "\r\n{\"timeout_ms\": %d, \"content\": %s, \"session\": %q}", c.left.Milliseconds(), must.Do(json.Marshal(c.text)), c.to.Key)
	}
	return b
}

// styles is in how many ways a message is written.
const styles = 4

// rubbish is what no door takes for a message. LONG is more levels than it looks into.
var rubbish = [...]string{
	"", " ", "{", "[]", "7", "null", `"text"`, "{}", `{"content":`, `{"content":7}`, `{"content":null}`, `{"content":"a","content":"b"}`,
	`{"content":"a"}{}`, `{"content":"a"} x`, `{"content":"a","model":"m"}`, `{"content":"a","session":"a b"}`, `{"content":"a","session":7}`,
	`{"content":"a","timeout_ms":-1}`, `{"content":"a","timeout_ms":1.5}`, `{"content":"a","timeout_ms":"1"}`, `{"content":"a","timeout_ms":99999999999}`,
	"{\"content\":\"\xff\"}", "{\"content\":\"a\nb\"}", `{"content":"\ud800"}`, `{"content":{"a":[1]}}`, `{"content":LONG}`, `{"\u0000":1}`,
}

// sendsRubbish has a client send what is no message before it sends one.
func (w *World) sendsRubbish(c *client, at *cell) {
	text := strings.ReplaceAll(rubbish[w.choose.Int(len(rubbish))], "LONG", strings.Repeat("[", ingress.DepthMax+1)+strings.Repeat("]", ingress.DepthMax+1))
	call, refusal := ingress.Message(c.to.Agent, []byte(text))
	if refusal == nil || refusal.Reason != actor.Invalid || refusal.HTTP() != 400 {
		w.violate(CodecRoundTrip, fmt.Sprintf("a door takes %.60q for %+v, %v", text, call, refusal))
		return
	}
	w.hit(ClientGarbage, "client %d sends %s %.60q, and is told: %v", c.no, at.self, text, refusal)
}

// parents are the headers by which clients name their own trace, and whether they do.
var parents = [...]struct {
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

// parent is the trace that a client's request belongs to.
func (w *World) parent(c *client) string {
	p := parents[c.no%len(parents)]
	trace := ingress.Trace(p.headers)
	if (trace != "") != p.good {
		w.violate(CodecRoundTrip, fmt.Sprintf("a door takes %q for the trace %q", p.headers, trace))
	}
	return trace
}

// accepts are what clients say of the form in which they want their answer: the
// last two want it as it is made.
var accepts = [...]string{"", "*/*", "application/json", "text/html", "text/event-stream;q=0", "text/event-stream;q=0.3, application/json",
	"text/event-stream;q=2", "application/json;q=0.9,text/event-stream;q=0.8", "text/plain;q=x", "text/event-stream;q=", "TEXT/event-stream , application/json;q=0.5", "text/event-stream; charset=utf-8, application/json"}

// wantsStream tells whether a client wants to hear of its run while it goes on.
func (w *World) wantsStream() bool {
	i := w.choose.Int(len(accepts))
	wants := ingress.WantsStream(accepts[i])
	if wants != (i >= len(accepts)-2) {
		w.violate(CodecRoundTrip, fmt.Sprintf("a door takes %q to ask for a stream: %v", accepts[i], wants))
	}
	return wants
}

// forge presents a token that is not one of this server's.
func (w *World) forge(token string) {
	at := w.choose.Int(len(token))
	forged := [...]string{token[:at], token + "A", token[:at] + "!" + token[at+1:], strings.ToUpper(token), "", token + "\n", strings.Replace(token, ".", "", 2)}[w.choose.Int(7)]
	if run, id, refusal := ingress.ReadToken(w.secret(), forged); refusal == nil {
		w.violate(CodecRoundTrip, fmt.Sprintf("a token that is not the server's speaks for run %s of %s", run, id))
		return
	}
	w.hit(CallbackForged, "a token is refused that is not the server's")
}
