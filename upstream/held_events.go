// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/runs"
)

// heldEventsMax is the number of events that are held back at once.
const heldEventsMax = 256

// heldEvent is an event of a stream that is passed on.
type heldEvent struct {
	frame runs.Frame
	data  []byte // what is passed on of it
	raw   []byte // its lines, or nil if it has to be written anew
}

// pass appends the event. It is the same bytes unless its data has changed.
func (h *heldEvent) pass(b []byte) []byte {
	if h.raw != nil && string(h.data) == h.frame.Data {
		return append(b, h.raw...)
	}
	event := runs.Frame{Name: h.frame.Name, Data: string(h.data)}
	if event.Check() != nil {
		event.Name = ""
	}
	return event.Append(b)
}

// heldEvents are events that are held back because the end of one of their texts may begin a secret. If
// it does, the text is masked; otherwise they are passed on as they are.
type heldEvents struct {
	mask  masker
	all   []heldEvent
	texts []heldText // of all
}

// heldText is a text that comes in pieces, such as the content of a choice or the arguments of a tool call.
type heldText struct {
	path string // see eventPiece
	text string
}

// add returns the events that can be passed on, with a new one as the last.
func (h *heldEvents) add(e heldEvent) []byte {
	if len(h.mask.secrets) == 0 {
		return e.pass(nil)
	}
	e.raw = bytes.Clone(e.raw) // the reader uses the memory again
	h.hold(e)
	changed, waits := false, false
	for _, t := range h.texts {
		changed = changed || h.mask.secrets.redact(t.text) != t.text
		waits = waits || h.mask.begin(t.text) < len(t.text)
	}
	switch {
	case changed:
		return h.masked()
	case waits && len(h.all) < heldEventsMax:
		return nil
	}
	return h.release()
}

func (h *heldEvents) hold(e heldEvent) {
	h.all = append(h.all, e)
	for _, p := range eventPieces(e.data) {
		i := slices.IndexFunc(h.texts, func(t heldText) bool { return t.path == p.path })
		if i < 0 {
			i = len(h.texts)
			h.texts = append(h.texts, heldText{path: p.path})
		}
		h.texts[i].text += p.text
	}
}

// masked returns the events with their texts masked. The first event with a piece of a text gets all of
// it. An end that may begin another secret becomes an event of its own, which is held.
func (h *heldEvents) masked() []byte {
	var rests []heldEvent
	for _, t := range h.texts {
		text := h.mask.secrets.redact(t.text)
		at := h.mask.begin(text)
		if text == t.text && at == len(text) {
			continue
		}
		rest, last := text[at:], 0
		text = text[:at]
		for i := range h.all {
			for j, p := range eventPieces(h.all[i].data) {
				if p.path == t.path {
					h.all[i].data = withPiece(h.all[i].data, j, text)
					text, last = "", i
				}
			}
		}
		if rest != "" {
			rests = append(rests, heldEvent{frame: h.all[last].frame, data: withOnlyPiece(h.all[last].data, t.path, rest)})
		}
	}
	b := h.release()
	for _, e := range rests {
		h.hold(e)
	}
	return b
}

// release returns the events, of which none is held any longer.
func (h *heldEvents) release() (b []byte) {
	for i := range h.all {
		b = h.all[i].pass(b)
	}
	h.all, h.texts = h.all[:0], h.texts[:0]
	return b
}

// eventPiece is a piece of a text in an event.
type eventPiece struct {
	path string // steps from the event, each ended by a zero byte: the name of a member, or # and the index of an element
	text string
	at   span // in the event
}

// eventPieces returns the texts in the deltas of an event, in their order. An element of a list is known
// by its member index, as clients know choices and tool calls.
func eventPieces(data []byte) (all []eventPiece) {
	var event members
	if event.read(data, lenient) != nil {
		return nil
	}
	choices := event["choices"].value
	for _, c := range elementsOf(data, choices) {
		var choice members
		if choice.read(data[c.at.from:c.at.to], lenient) != nil {
			continue
		}
		if delta, ok := choice["delta"]; ok {
			at := span{c.at.from + delta.value.from, c.at.from + delta.value.to}
			all = appendPieces(all, data, at, "choices\x00#"+c.index+"\x00delta\x00")
		}
	}
	return all
}

func appendPieces(all []eventPiece, data []byte, at span, path string) []eventPiece {
	switch value := jsontext.Value(data[at.from:at.to]); value.Kind() {
	case '"':
		return append(all, eventPiece{path, scalarText(value), at})
	case '{':
		var of members
		if of.read(value, lenient) != nil {
			return all
		}
		names := slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Compare(of[a].name, of[b].name) })
		for _, name := range names {
			m := of[name].value
			all = appendPieces(all, data, span{at.from + m.from, at.from + m.to}, path+name+"\x00")
		}
	case '[':
		for _, e := range elementsOf(data, at) {
			all = appendPieces(all, data, e.at, path+"#"+e.index+"\x00")
		}
	}
	return all
}

// element is an element of a list.
type element struct {
	index string // its member index, or else its position
	at    span
}

func elementsOf(data []byte, list span) (all []element) {
	d := jsontext.NewDecoder(bytes.NewReader(data[list.from:list.to]), lenient)
	if token, err := d.ReadToken(); err != nil || token.Kind() != '[' {
		return nil
	}
	for d.PeekKind() != ']' {
		value, err := d.ReadValue()
		if err != nil {
			return all
		}
		to := list.from + int(d.InputOffset())
		e := element{strconv.Itoa(len(all)), span{to - len(value), to}}
		var of struct {
			Index jsontext.Value `json:"index"`
		}
		if value.Kind() == '{' && json.Unmarshal(value, &of, lenient) == nil && of.Index.Kind() == '0' {
			e.index = string(of.Index)
		}
		all = append(all, e)
	}
	return all
}

// withPiece returns an event with another text in place of one of its pieces.
func withPiece(data []byte, i int, text string) []byte {
	at := eventPieces(data)[i].at
	return slices.Concat(data[:at.from], marshal(text), data[at.to:])
}

// withOnlyPiece returns an event like another one whose only text is a piece with this path.
func withOnlyPiece(data []byte, path, text string) []byte {
	value := jsontext.Value(marshal(text))
	for _, step := range slices.Backward(strings.Split(strings.TrimSuffix(path, "\x00"), "\x00")) {
		index, isElement := strings.CutPrefix(step, "#")
		switch {
		case isElement && value.Kind() == '{':
			value = slices.Concat([]byte(`[{"index":`+index+`,`), value[1:], []byte("]"))
		case isElement:
			value = slices.Concat([]byte("["), value, []byte("]"))
		default:
			value = slices.Concat([]byte("{"), marshal(step), []byte(":"), value, []byte("}"))
		}
	}
	var event, piece map[string]jsontext.Value
	if json.Unmarshal(data, &event, lenient) != nil || json.Unmarshal(value, &piece) != nil {
		return []byte("{}")
	}
	delete(event, "usage")
	event["choices"] = piece["choices"]
	return marshal(event)
}
