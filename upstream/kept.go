// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Kept is a JSON object with members of an answer that go back to the model within the turn. This server does
// not read them. Thinking models refuse a prompt without them. "" means none.
type Kept string

// keptOf returns the members in an object, which decoding has checked.
func keptOf(object jsontext.Value) Kept {
	if object = object.Clone(); len(object) == 0 || object.Canonicalize(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true), jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) != nil {
		return ""
	}
	if object.Kind() != '{' || len(object) == len("{}") || !object.IsValid() {
		return ""
	}
	return Kept(object)
}

func (k Kept) value() jsontext.Value {
	if k == "" {
		return nil
	}
	return jsontext.Value(k)
}

// merge adds the members of the next piece, which replace those of the same name.
func (k Kept) merge(next Kept) (Kept, error) {
	if k == "" || next == "" {
		return k + next, nil
	}
	var all map[string]jsontext.Value
	if err := json.Unmarshal([]byte(k), &all); err != nil {
		return "", err
	}
	if err := json.Unmarshal([]byte(next), &all); err != nil {
		return "", err
	}
	return Kept(marshal(all)), nil
}

// wireReasoning is the reasoning of a model, in the forms of several servers.
type wireReasoning struct {
	ReasoningContent jsontext.Value `json:"reasoning_content,omitzero"`
	Reasoning        jsontext.Value `json:"reasoning,omitzero"`
	Details          jsontext.Value `json:"reasoning_details,omitzero"`
}

func (w wireReasoning) kept() Kept {
	if w.ReasoningContent == nil && w.Reasoning == nil && w.Details == nil {
		return ""
	}
	return keptOf(marshal(w))
}

// reasoning returns the members of a message.
func (k Kept) reasoning() (w wireReasoning) {
	if k != "" && json.Unmarshal([]byte(k), &w) != nil {
		return wireReasoning{}
	}
	return w
}

func (w wireReasoning) checkKinds() error {
	if len(w.Details) > 0 && w.Details.Kind() != '[' {
		return errors.New("reasoning_details: want a list")
	}
	return nil
}

// reasoning collects the reasoning in the pieces of an answer.
type reasoning struct {
	content, text       strings.Builder
	contentHas, textHas bool
	details             []map[string]jsontext.Value
	size                int
}

// add appends a piece. Values of other types are left out.
func (r *reasoning) add(w wireReasoning) error {
	for _, value := range []jsontext.Value{w.ReasoningContent, w.Reasoning, w.Details} {
		r.size += len(strings.ToValidUTF8(string(value), "\uFFFD"))
	}
	if r.size > OutputBytesMax {
		return fmt.Errorf("more than %d bytes of reasoning", OutputBytesMax)
	}
	for _, part := range []struct {
		value jsontext.Value
		to    *strings.Builder
		has   *bool
	}{{w.ReasoningContent, &r.content, &r.contentHas}, {w.Reasoning, &r.text, &r.textHas}} {
		var text string
		if len(part.value) > 0 && part.value.Kind() == '"' && setText(&text, part.value) == nil {
			part.to.WriteString(text)
			*part.has = true
		}
	}
	var details []map[string]jsontext.Value
	if len(w.Details) > 0 && w.Details.Kind() == '[' && unmarshal(w.Details, &details, lenient) == nil {
		for _, d := range details {
			r.addDetail(d)
		}
	}
	return nil
}

// addDetail appends a detail, or joins it with the last one if it continues that: the index and the type are
// equal. Texts are joined; other members, such as a signature, are set.
func (r *reasoning) addDetail(d map[string]jsontext.Value) {
	n := len(r.details) - 1
	if n < 0 || d["index"] == nil || string(d["index"]) != string(r.details[n]["index"]) || string(d["type"]) != string(r.details[n]["type"]) {
		r.details = append(r.details, d)
		return
	}
	last := r.details[n]
	for _, name := range []string{"text", "summary"} {
		var before, next string
		if last[name] != nil && d[name] != nil && setText(&before, last[name]) == nil && setText(&next, d[name]) == nil {
			d[name] = marshal(before + next)
		}
	}
	merged := jsontext.Value(marshal(last))
	if all, err := Kept(merged).merge(Kept(marshal(d))); err == nil {
		var joined map[string]jsontext.Value
		if json.Unmarshal([]byte(all), &joined) == nil {
			r.details[n] = joined
		}
	}
}

func (r *reasoning) kept() Kept {
	var w wireReasoning
	if r.contentHas {
		w.ReasoningContent = marshal(validText(r.content.String()))
	}
	if r.textHas {
		w.Reasoning = marshal(validText(r.text.String()))
	}
	if len(r.details) > 0 {
		w.Details = marshal(r.details)
	}
	return w.kept()
}
