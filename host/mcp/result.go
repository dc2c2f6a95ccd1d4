// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// errorTextMax is the length of the error of a tool in a refusal.
const errorTextMax = 1 << 10

// resultOf returns the result of a tool: its structured content, else its content as text, with a
// description of what is no text. An error of the tool is a refusal with its text.
func resultOf(name string, a *answer) tools.Result {
	if a.Error != nil {
		text := fmt.Sprintf("the MCP server refused the call: %s (%d)", cmp.Or(a.Error.Message, "without a message"), a.Error.Code)
		if data := a.Error.Data; len(data) > 0 && data.Kind() != 'n' {
			text += ": " + plain(data)
		}
		return rejected(name, text)
	}
	var r struct {
		Content    jsontext.Value `json:"content"`
		Structured jsontext.Value `json:"structuredContent"`
		IsError    jsontext.Value `json:"isError"`
	}
	if a.Result.Kind() != '{' || json.Unmarshal(a.Result, &r) != nil { // not as the protocol wants it
		if a.Result.Kind() == 'n' {
			return tools.Text("")
		}
		return tools.JSON(a.Result)
	}
	text := contentText(r.Content)
	structured := len(r.Structured) > 0 && r.Structured.Kind() != 'n'
	switch {
	case r.IsError.Kind() == 't' || r.IsError.Kind() == '"' && string(r.IsError) == `"true"`:
		if structured {
			text = strings.TrimLeft(text+"\n"+string(r.Structured), "\n")
		}
		return rejected(name, cmp.Or(text, "the tool reports an error without a text"))
	case structured:
		return tools.JSON(r.Structured)
	case len(r.Content) == 0 && len(a.Result) > len("{}"): // members that the protocol does not have
		return tools.JSON(a.Result)
	}
	return tools.Text(text)
}

func rejected(name, text string) tools.Result {
	return tools.Refused(actor.Refuse(actor.Rejected, "%s: %s", name, actor.FitText(text, errorTextMax)))
}

// contentText returns the content of a result as lines of text.
func contentText(content jsontext.Value) string {
	blocks := []jsontext.Value{content}
	if content.Kind() == '[' {
		blocks = nil
		if json.Unmarshal(content, &blocks) != nil {
			return ""
		}
	}
	var lines []string
	for _, block := range blocks {
		if block.Kind() == '"' {
			lines = append(lines, plain(block))
		} else if block.Kind() == '{' {
			lines = append(lines, blockText(block))
		}
	}
	return strings.Join(lines, "\n")
}

// blockText returns one block of content as text.
func blockText(block jsontext.Value) string {
	type resource struct {
		URI  string         `json:"uri"`
		Name string         `json:"name"`
		Type string         `json:"mimeType"`
		Text *string        `json:"text"`
		Blob jsontext.Value `json:"blob"`
	}
	var b struct {
		resource
		Kind     string         `json:"type"`
		Data     jsontext.Value `json:"data"`
		Embedded *resource      `json:"resource"`
	}
	if json.Unmarshal(block, &b) != nil {
		return string(block)
	}
	switch {
	case b.Embedded != nil && b.Embedded.Text != nil:
		return *b.Embedded.Text
	case b.Embedded != nil:
		return strings.TrimSpace(upstream.DescribeContent(b.Embedded.Type, decodedSize(b.Embedded.Blob)) + " " + b.Embedded.URI)
	case len(b.Data) > 0:
		return upstream.DescribeContent(cmp.Or(b.Type, b.Kind), decodedSize(b.Data))
	case b.Kind == "resource_link":
		return strings.TrimSpace(b.Name + " " + b.URI)
	case b.Text != nil:
		return *b.Text
	}
	return string(block)
}

// decodedSize returns the size of what a text has in base 64.
func decodedSize(data jsontext.Value) string {
	text := strings.TrimRight(plain(data), "=\r\n ")
	return fmt.Sprintf("%d bytes", base64.RawStdEncoding.DecodedLen(len(text)))
}
