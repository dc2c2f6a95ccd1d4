// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// contentText returns the text of a content: a string, or the concatenated parts of a
// list. It returns nil if v is absent or null.
func contentText(field string, v jsontext.Value) (*string, *actor.Refusal) {
	if len(v) == 0 || v.Kind() == 'n' {
		return nil, nil
	}
	var text string
	if json.Unmarshal(v, &text) == nil {
		return &text, nil
	}
	var parts []jsontext.Value
	if json.Unmarshal(v, &parts) != nil {
		return nil, invalid(field, `want text or a list of parts {"type": "text", "text": "text for the agent"}`)
	}
	var all strings.Builder
	for i, part := range parts {
		// The members of a part depend on its type.
		var kind struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(part, &kind) == nil && kind.Type != "text" {
			return nil, invalid(field, `part %d has the type %.80q: want "text"`, i, kind.Type)
		}
		var in struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if r := Decode(part, &in); r != nil {
			return nil, invalid(field, "part %d: %s", i, r.Detail)
		}
		if in.Text == nil {
			return nil, invalid(field, "part %d: text is missing", i)
		}
		all.WriteString(*in.Text)
	}
	text = all.String()
	return &text, nil
}

// messageText returns the text of a message: a content, or an object with a content and
// the role of its author, which is a user for every message to an agent.
func messageText(field string, v jsontext.Value) (*string, *actor.Refusal) {
	if v.Kind() != '{' {
		return contentText(field, v)
	}
	var in struct {
		Role    *string        `json:"role"`
		Content jsontext.Value `json:"content"`
	}
	if r := Decode(v, &in); r != nil {
		return nil, invalid(field, "%s", r.Detail)
	}
	if in.Role != nil && *in.Role != "user" {
		return nil, invalid(field, `the role is %.80q: want "user"`, *in.Role)
	}
	text, r := contentText(field, in.Content)
	if r == nil && text == nil {
		r = invalid(field, "content is missing")
	}
	return text, r
}
