// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/internal/invariant"
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

// heldEvents are events that are held back because the end of their text may begin a secret. If it
// does, the text is masked; otherwise they are passed on as they are.
type heldEvents struct {
	mask masker
	all  []heldEvent
	text string // of all
}

// add returns the events that can be passed on, with a new one as the last.
func (h *heldEvents) add(e heldEvent) []byte {
	if len(h.mask.secrets) == 0 {
		return e.pass(nil)
	}
	e.raw = bytes.Clone(e.raw) // the reader uses the memory again
	h.all, h.text = append(h.all, e), h.text+deltaText(e.data)
	if masked := h.mask.secrets.redact(h.text); masked != h.text {
		at := h.mask.begin(masked)
		text, rest := masked[:at], masked[at:]
		last := heldEvent{frame: e.frame, data: e.data}
		for i := range h.all {
			if deltaText(h.all[i].data) != "" { // the first one has all of it
				h.all[i].data = withDeltaText(h.all[i].data, text)
				text = ""
			}
		}
		b := h.release()
		if rest != "" { // an event of its own, because it may begin another secret
			last.data = withDeltaText(last.data, rest)
			h.all, h.text = append(h.all, last), rest
		}
		return b
	}
	if h.mask.begin(h.text) < len(h.text) && len(h.all) < heldEventsMax {
		return nil
	}
	return h.release()
}

// release returns the events, of which none is held any longer.
func (h *heldEvents) release() (b []byte) {
	for i := range h.all {
		b = h.all[i].pass(b)
	}
	h.all, h.text = h.all[:0], ""
	return b
}

// deltaText returns the text in the first choice of an event, "" if there is none.
func deltaText(data []byte) string {
	var c struct {
		Choices []struct {
			Delta struct {
				Content wireText `json:"content"`
			} `json:"delta"`
		} `json:"choices"`
	}
	if unmarshal(data, &c, lenient) != nil || len(c.Choices) == 0 {
		return ""
	}
	return string(c.Choices[0].Delta.Content)
}

// withDeltaText returns an event for which deltaText is not empty, with another text in its place.
func withDeltaText(data []byte, text string) []byte {
	object := func(value []byte) (all map[string]jsontext.Value) {
		if json.Unmarshal(value, &all) != nil {
			return map[string]jsontext.Value{}
		}
		return all
	}
	event := object(data)
	var choices []jsontext.Value
	if json.Unmarshal(event["choices"], &choices) != nil || len(choices) == 0 {
		return []byte("{}")
	}
	choice := object(choices[0])
	delta := object(choice["delta"])
	delta["content"] = marshal(text)
	encode := func(v any) jsontext.Value { return invariant.Must(json.Marshal(v, json.Deterministic(true))) }
	choice["delta"] = encode(delta)
	choices = slices.Clone(choices)
	choices[0] = encode(choice)
	event["choices"] = encode(choices)
	return encode(event)
}
