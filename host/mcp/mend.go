// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// malformedKey is the member of _meta that names an entry of a list which is no tool.
const malformedKey = "troupe/malformed"

// mend replaces the entries of a list of tools that are none by tools that malformedOf finds,
// because the SDK rejects a list with one of them as a whole. It returns other messages unchanged.
func mend(message []byte) []byte {
	if !bytes.Contains(message, []byte(`"tools"`)) {
		return message
	}
	lenient := json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	var response, result map[string]jsontext.Value
	var entries []jsontext.Value
	if json.Unmarshal(message, &response, lenient) != nil || json.Unmarshal(response["result"], &result, lenient) != nil ||
		json.Unmarshal(result["tools"], &entries, lenient) != nil || len(entries) > ToolsMax {
		return message
	}
	mended := false
	for i, entry := range entries {
		if entry.Kind() == '{' && json.Unmarshal(entry, new(sdk.Tool), lenient) == nil {
			continue
		}
		name := fmt.Sprintf("entry %d", i+1)
		var named struct {
			Name jsontext.Value `json:"name"`
		}
		if json.Unmarshal(entry, &named, lenient) == nil && len(named.Name) > 0 {
			name += fmt.Sprintf(" (name %.80s)", named.Name)
		}
		made, err := json.Marshal(sdk.Tool{Meta: sdk.Meta{malformedKey: name}, InputSchema: map[string]any{}}, lenient)
		if err != nil {
			return message
		}
		entries[i], mended = made, true
	}
	if !mended {
		return message
	}
	var err error
	if result["tools"], err = json.Marshal(entries, lenient); err == nil {
		if response["result"], err = json.Marshal(result, lenient); err == nil {
			var b []byte
			if b, err = json.Marshal(response, lenient); err == nil {
				return b
			}
		}
	}
	return message
}

// malformedOf returns the name of an entry that mend has replaced, or "".
func malformedOf(t *sdk.Tool) string {
	name, _ := t.Meta[malformedKey].(string)
	return name
}

// mendedEvents mends the messages in a stream of events.
type mendedEvents struct {
	io.ReadCloser
	lines *bufio.Reader
	rest  []byte
	err   error
}

// Read implements io.Reader.
func (m *mendedEvents) Read(p []byte) (int, error) {
	for len(m.rest) == 0 {
		if m.err != nil {
			return 0, m.err
		}
		m.rest, _, m.err = readLine(m.lines, messageBytesMax) // the part up to the limit is no JSON, and passed on
		if text, ok := strings.CutPrefix(string(m.rest), "data:"); ok {
			line := strings.TrimRight(text, "\r\n")
			m.rest = append(append([]byte("data:"), mend([]byte(line))...), text[len(line):]...)
		}
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// mendedBody mends the message that a body has.
type mendedBody struct {
	io.ReadCloser
	mended io.Reader // nil before the first read
	err    error
}

// Read implements io.Reader.
func (m *mendedBody) Read(p []byte) (int, error) {
	if m.mended == nil {
		var b []byte
		if b, m.err = io.ReadAll(m.ReadCloser); m.err == nil {
			b = mend(b)
		}
		m.mended = bytes.NewReader(b)
	}
	n, err := m.mended.Read(p)
	if err == io.EOF && m.err != nil {
		err = m.err
	}
	return n, err
}
