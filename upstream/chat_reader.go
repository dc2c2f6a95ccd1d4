// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// ChatReader reads the answer to a Chat while it is passed on. It removes a usage that the client
// has not asked for. It also removes two things on which stock clients fail. One is text after the finish
// reason that is not JSON. The other is comments, also those that a server sent as data: some clients read a
// comment and the empty line after it as an event without data.
//
//  1. The deltas of a streamed answer are its events before the one with a finish reason. The Tail begins
//     with that event, after text that was held back until then. The Tail of an answer that is not streamed is
//     the whole answer. The outcome can therefore be recorded before the client can act on it.
//  2. Completion has no text and no tool calls.
//  3. After a failure Tail is empty.
type ChatReader struct {
	name    string
	secrets Secrets
	added   bool    // the usage is not for the client
	sniffed bool    // the body has begun
	head    []byte  // white space before it
	parser  *Parser // nil: the body is one JSON value
	raw     []byte  // lines of the event that is being read
	hidden  heldEvents
	held    bool // a CR was received last
	body    []byte
	tail    []byte
	finish  Finish
	usage   Usage
	model   string
	done    bool
	failure *Failure
}

// restart begins the answer of the next attempt.
func (r *ChatReader) restart(contentType string) (*ChatReader, *Failure) {
	*r = ChatReader{name: r.name, secrets: r.secrets, added: r.added, hidden: heldEvents{mask: masker{secrets: r.secrets.long()}}}
	if media := mediaType(contentType); !readableMedia(media) {
		return nil, fail(Broken, actor.Unavailable, "%s answers with %q: want an event stream or JSON", r.name, r.secrets.quote(media, mediaBytesMax))
	}
	return r, nil
}

// Streams reports whether the answer is a stream of events.
func (r *ChatReader) Streams() bool { return r.parser != nil }

// Tail returns the last part of a complete answer; see the type.
func (r *ChatReader) Tail() []byte {
	if !r.done {
		return nil
	}
	return r.tail
}

// Decode implements Decoder.
func (r *ChatReader) Decode(b []byte) (deltas []Delta, failure *Failure) {
	if r.failure != nil || r.done {
		return nil, r.failure
	}
	if !r.sniffed {
		var events bool
		if b, events, r.sniffed = sniff(&r.head, b); !r.sniffed {
			if len(r.head) > BodyBytesMax {
				r.fail(fail(Refused, actor.ModelRejected, "%s: response exceeds %d bytes", r.name, BodyBytesMax))
			}
			return nil, r.failure
		}
		if events {
			r.parser = NewParser(StreamLimits{})
		}
	}
	if r.parser == nil {
		if len(r.body)+len(b) > BodyBytesMax {
			r.fail(fail(Refused, actor.ModelRejected, "%s: response exceeds %d bytes", r.name, BodyBytesMax))
		} else {
			r.body = append(r.body, b...)
		}
		return nil, r.failure
	}
	if r.held { // a line end of two bytes is read at once
		b = slices.Concat([]byte("\r"), b)
	}
	if r.held = len(b) > 0 && b[len(b)-1] == '\r'; r.held {
		b = b[:len(b)-1]
	}
	return r.readLines(b)
}

// readLines reads lines of a stream, of which the last may be incomplete.
func (r *ChatReader) readLines(b []byte) (deltas []Delta, failure *Failure) {
	for len(b) > 0 {
		n := len(b)
		if end := lineEnd(b); end >= 0 {
			if n = end + 1; b[end] == '\r' && n < len(b) && b[n] == '\n' {
				n++
			}
		}
		events, refusal := r.parser.Parse(b[:n])
		if len(r.raw) <= EventBytesMax { // a longer one is mostly comments
			r.raw = append(r.raw, b[:n]...)
		}
		b = b[n:]
		for _, e := range events {
			raw := r.raw
			if len(events) > 1 || !isOneEvent(raw) {
				raw = nil
			}
			if text := r.read(e, raw); text != "" {
				deltas = append(deltas, Delta{Text: text})
			}
			if r.done || r.failure != nil {
				return deltas, r.failure
			}
		}
		if len(events) > 0 {
			r.raw = r.raw[:0]
		}
		if refusal != nil {
			r.fail(&Failure{Class: Refused, Refusal: actor.Refuse(actor.ModelRejected, "%s: %s", r.name, refusal.Detail)})
			break
		}
	}
	return deltas, r.failure
}

// isOneEvent reports whether lines are those of one event, without comments and without empty lines before it.
func isOneEvent(raw []byte) bool {
	lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(raw)), "\n")
	for i, line := range lines { // the last two are the empty line and what follows it
		if strings.HasPrefix(line, ":") || line == "" && i < len(lines)-2 {
			return false
		}
	}
	return len(raw) <= EventBytesMax
}

// End implements Decoder.
func (r *ChatReader) End() (deltas []Delta, failure *Failure) {
	if r.held && r.failure == nil && !r.done {
		r.held = false
		deltas, _ = r.readLines([]byte("\r"))
	}
	switch {
	case r.failure != nil || r.done:
	case r.parser == nil:
		r.readBody()
	case r.finish == NoFinish:
		r.fail(fail(Broken, actor.Unavailable, "%s: response ended without a finish reason", r.name))
	default:
		r.done = true
	}
	return deltas, r.failure
}

// HasFinish implements Decoder.
func (r *ChatReader) HasFinish() bool {
	return r.parser != nil && r.finish != NoFinish && r.failure == nil
}

// Done implements Decoder.
func (r *ChatReader) Done() bool { return r.done }

// Completion implements Decoder.
func (r *ChatReader) Completion() Completion {
	c := Completion{Usage: r.usage, Model: r.model}
	if r.done {
		c.Finish = r.finish
	}
	return c
}

// Warnings implements Decoder.
func (r *ChatReader) Warnings() []string { return nil }

func (r *ChatReader) fail(f *Failure) {
	if r.failure == nil {
		r.failure = f
	}
}

// chatChunk is the part of an answer that the server reads.
type chatChunk struct {
	Model   string         `json:"model"`
	Error   jsontext.Value `json:"error"`
	Usage   jsontext.Value `json:"usage"`
	Choices []struct {
		Finish jsontext.Value `json:"finish_reason"`
	} `json:"choices"`
}

// read reads one event of a stream and returns it if it is passed on now. Raw are its lines, or nil
// if it has to be written anew.
func (r *ChatReader) read(e runs.Frame, raw []byte) string {
	switch text := strings.TrimSpace(e.Data); {
	case e.Name != "error" && (text == "" || text[0] == ':'): // a comment that became data on its way
		return ""
	case text == "[DONE]":
		if r.finish == NoFinish {
			r.fail(fail(Broken, actor.Unavailable, "%s: response ended without a finish reason", r.name))
			return ""
		}
		r.tail = runs.Frame{Data: "[DONE]"}.Append(r.tail)
		r.done = true
		return ""
	}
	if e.Name == "error" {
		f := parseError([]byte(e.Data)).failure(r.name, r.secrets)
		f.Object = errorObject([]byte(e.Data), r.secrets)
		r.fail(f)
		return ""
	}
	data, ok := r.readChunk([]byte(e.Data))
	if !ok || data == nil {
		return ""
	}
	event := heldEvent{frame: e, data: data, raw: raw}
	if r.finish != NoFinish {
		r.tail = append(append(r.tail, r.hidden.add(event)...), r.hidden.release()...)
		if len(r.tail) > BodyBytesMax {
			r.fail(fail(Refused, actor.ModelRejected, "%s: %d bytes follow the finish reason", r.name, len(r.tail)))
		}
		return ""
	}
	return string(r.hidden.add(event))
}

// readChunk reads one JSON value of the answer and returns what the client gets of it, nil
// for nothing. It returns false after a failure.
func (r *ChatReader) readChunk(data []byte) (pass []byte, ok bool) {
	var c chatChunk
	if err := unmarshal(data, &c, lenient); err != nil {
		if r.parser != nil && r.finish != NoFinish { // the answer is complete
			return nil, true
		}
		r.fail(fail(Broken, actor.Unavailable, "%s: %s", r.name, r.secrets.quoteError(err)))
		return nil, false
	}
	if len(c.Error) > 0 && c.Error.Kind() != 'n' {
		f := parseErrorMember(c.Error).failure(r.name, r.secrets)
		f.Object = errorObject(data, r.secrets)
		r.fail(f)
		return nil, false
	}
	if masked := r.secrets.long().redact(string(data)); masked != string(data) && jsontext.Value(masked).IsValid() { // a secret can be a number
		data = []byte(masked)
	}
	if r.model == "" {
		r.model = actor.FitText(c.Model, NameBytesMax)
	}
	usage, ok := readUsage(c.Usage)
	if ok {
		r.usage = usage
	}
	hasUsage := len(c.Usage) > 0 && c.Usage.Kind() != 'n'
	for _, choice := range c.Choices {
		if f := parseFinish(scalarText(choice.Finish)); f != NoFinish && r.finish == NoFinish {
			r.finish = f
		}
	}
	switch {
	case !r.added || r.parser == nil:
		return data, true
	case hasUsage && len(c.Choices) == 0: // exists only because the server asked for it
		return nil, true
	}
	return withoutMember(data, "usage"), true
}

// readBody reads an answer that is not streamed.
func (r *ChatReader) readBody() {
	body, ok := r.readChunk(r.body)
	switch {
	case !ok:
	case r.finish == NoFinish:
		r.fail(fail(Broken, actor.Unavailable, "%s: response without a finish reason", r.name))
	default:
		r.tail, r.done = body, true
	}
}

// withoutMember returns a JSON object without one of its members.
func withoutMember(object []byte, name string) []byte {
	var all members
	at, ok := member{}, false
	if all.read(object, lenient) == nil {
		at, ok = all[name]
	}
	if !ok {
		return object
	}
	before, after := object[:at.name], bytes.TrimLeft(object[at.value.to:], " \t\r\n")
	if rest, more := bytes.CutPrefix(after, []byte(",")); more {
		after = rest
	} else {
		before = bytes.TrimSuffix(bytes.TrimRight(before, " \t\r\n"), []byte(","))
	}
	return slices.Concat(before, after)
}
