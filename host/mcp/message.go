// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/upstream"
)

// The SDK ends a session at the first message that it cannot decode, and it rounds numbers. So each
// message is rewritten before the SDK reads it: the answer to a call of a tool becomes a result
// whose structured content is the original text, and an entry of a list of tools carries its
// original text in its metadata.

const methodCall = "tools/call"

// request is what is known of a message that was sent.
type request struct {
	ID     string // of a request; "" of other messages
	Method string
	cancel string // ID of the request that it cancels
}

// requestOf reads a message of the SDK.
func requestOf(message []byte) request {
	var m struct {
		ID     jsontext.Value `json:"id"`
		Method string         `json:"method"`
		Params struct {
			Cancelled jsontext.Value `json:"requestId"`
		} `json:"params"`
	}
	if json.Unmarshal(message, &m) != nil || m.Method == "" {
		return request{}
	}
	r := request{ID: string(m.ID), Method: m.Method}
	if m.Method == "notifications/cancelled" {
		r.cancel = string(m.Params.Cancelled)
	}
	return r
}

// answer is what a server answers to a call of a tool.
type answer struct {
	Result  jsontext.Value `json:"result,omitzero"`
	Error   *rpcError      `json:"error,omitzero"`
	Failure *failure       `json:"failure,omitzero"` // there is no answer that can be read
}

type rpcError struct {
	Code    int64          `json:"code"`
	Message string         `json:"message"`
	Data    jsontext.Value `json:"data,omitzero"`
}

// failure is the reason why a call has no answer.
type failure struct {
	Reason    actor.Reason `json:"reason"`             // Unknown: the call may have been performed
	Detail    string       `json:"detail"`             // follows the name of the server
	After     int64        `json:"after,omitzero"`     // time to wait in ns
	Forgotten bool         `json:"forgotten,omitzero"` // the server does not know the session
	Passing   bool         `json:"passing,omitzero"`   // another attempt may succeed
}

func unreadable(format string, args ...any) *failure {
	return &failure{Reason: actor.Unknown, Detail: fmt.Sprintf(format, args...)}
}

// message returns the message that carries an answer to the call with the ID.
func (a *answer) message(id string) []byte {
	text := string(invariant.Must(json.Marshal(a)))
	result := invariant.Must(json.Marshal(map[string]any{"content": []any{}, "structuredContent": text}, json.Deterministic(true)))
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

// answerOf returns the answer that a result carries.
func answerOf(r *sdk.CallToolResult) *answer {
	var a answer
	text, ok := r.StructuredContent.(string)
	if !ok || json.Unmarshal([]byte(text), &a) != nil {
		a.Failure = unreadable("sent no answer")
	}
	return &a
}

// statusCode is the JSON-RPC error for a response over HTTP with that status to a request that is no
// call of a tool.
func statusCode(status int) int64 { return -10_000 - int64(status) }

func errorMessage(id string, e *rpcError) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":%s}`, id, invariant.Must(json.Marshal(e)))
}

// failureMessage returns the message for a request without an answer that can be read.
func failureMessage(r request, f *failure, code int64) []byte {
	if r.Method == methodCall {
		return (&answer{Failure: f}).message(r.ID)
	}
	return errorMessage(r.ID, &rpcError{Code: code, Message: f.Detail})
}

// received is a message of a server in the form that the SDK reads.
type received struct {
	id   string // of a response; "" of other messages
	line []byte // nil: a response that nothing waits for
}

// receive returns the messages in a text: one, or those of a list. The function sent returns the
// request with an ID; orphan is the ID of a response that has none, "" if it is dropped. It returns an
// error if the text is not JSON.
func receive(text []byte, orphan string, sent func(id string) (request, bool)) (all []received, err error) {
	strict, err := upstream.StrictJSON(text)
	one := []jsontext.Value{strict}
	if err != nil {
		if one = split(text); len(one) < 2 {
			return nil, err
		}
		strict = nil
	}
	if jsontext.Value(strict).Kind() == '[' {
		one = nil
		if err := json.Unmarshal(strict, &one); err != nil {
			return nil, err
		}
	}
	for _, value := range one {
		if m, ok := receiveOne(value, orphan, sent); ok {
			all = append(all, m)
		}
	}
	return all, nil
}

// split returns the messages of a text that has several, one after the other, or nil.
func split(text []byte) (all []jsontext.Value) {
	d := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for {
		value, err := d.ReadValue()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			return nil
		}
		strict, err := upstream.StrictJSON(value)
		if err != nil {
			return nil
		}
		all = append(all, slices.Clone(strict))
	}
}

func receiveOne(value jsontext.Value, orphan string, sent func(id string) (request, bool)) (received, bool) {
	var m struct {
		ID     jsontext.Value `json:"id"`
		Method jsontext.Value `json:"method"`
		Params jsontext.Value `json:"params"`
		Result jsontext.Value `json:"result"`
		Error  jsontext.Value `json:"error"`
	}
	if value.Kind() != '{' || json.Unmarshal(value, &m) != nil {
		return received{}, false
	}
	if m.Method.Kind() == '"' {
		out := map[string]jsontext.Value{"jsonrpc": jsontext.Value(`"2.0"`), "method": m.Method}
		if k := m.ID.Kind(); k == '"' || k == '0' {
			out["id"] = m.ID
		}
		if m.Params.Kind() == '{' {
			out["params"] = m.Params
		}
		return received{line: invariant.Must(json.Marshal(out, json.Deterministic(true)))}, true
	}
	id := idOf(m.ID)
	if id == "" && len(m.Error) > 0 {
		id = orphan
	}
	r, known := sent(id)
	if !known {
		return received{id: id}, id != "" && len(m.Result)+len(m.Error) > 0
	}
	failed := len(m.Error) > 0 && m.Error.Kind() != 'n'
	switch {
	case r.Method == methodCall && failed:
		return received{id, (&answer{Error: errorOf(m.Error)}).message(id)}, true
	case r.Method == methodCall:
		if len(m.Result) == 0 {
			m.Result = jsontext.Value("null")
		}
		return received{id, (&answer{Result: m.Result}).message(id)}, true
	case failed:
		return received{id, errorMessage(id, errorOf(m.Error))}, true
	case r.Method == "tools/list":
		m.Result = withEntries(m.Result)
	}
	out := invariant.Must(json.Marshal(map[string]jsontext.Value{"jsonrpc": jsontext.Value(`"2.0"`), "id": jsontext.Value(id), "result": m.Result}, json.Deterministic(true)))
	return received{id, out}, true
}

// idOf returns the ID of a request of the SDK, which is a whole number, also if a server repeats it as
// a text or with a fraction of zero.
func idOf(value jsontext.Value) string {
	text := string(value)
	if value.Kind() == '"' && json.Unmarshal(value, &text) != nil {
		return ""
	}
	text = strings.TrimSuffix(text, ".0")
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return strconv.FormatInt(n, 10)
	}
	return ""
}

// errorOf reads an error in any form.
func errorOf(value jsontext.Value) *rpcError {
	e := &rpcError{}
	var object struct {
		Code    jsontext.Value `json:"code"`
		Message jsontext.Value `json:"message"`
		Data    jsontext.Value `json:"data"`
	}
	if value.Kind() != '{' || json.Unmarshal(value, &object) != nil {
		e.Message = plain(value)
		return e
	}
	e.Code, _ = strconv.ParseInt(strings.TrimSuffix(plain(object.Code), ".0"), 10, 64)
	e.Message, e.Data = plain(object.Message), object.Data
	return e
}

// plain returns a text, or another value as JSON.
func plain(value jsontext.Value) string {
	var text string
	if value.Kind() == '"' && json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(value)
}

// entryKey is the member of _meta with the text of an entry of a list.
const entryKey = "troupe/entry"

// withEntries puts the text of each entry of a list of tools in its metadata. An entry that the SDK
// would not decode has nothing else.
func withEntries(result jsontext.Value) jsontext.Value {
	var members map[string]jsontext.Value
	var entries []jsontext.Value
	if json.Unmarshal(result, &members) != nil || json.Unmarshal(members["tools"], &entries) != nil || len(entries) > ToolsMax {
		return result
	}
	for i, entry := range entries {
		meta := invariant.Must(json.Marshal(map[string]string{entryKey: string(entry)}))
		var tool map[string]jsontext.Value
		if entry.Kind() != '{' || json.Unmarshal(entry, new(sdk.Tool)) != nil || json.Unmarshal(entry, &tool) != nil {
			tool = map[string]jsontext.Value{"name": jsontext.Value(`""`), "inputSchema": jsontext.Value("{}")}
		}
		tool["_meta"] = meta
		entries[i] = invariant.Must(json.Marshal(tool, json.Deterministic(true)))
	}
	members["tools"] = invariant.Must(json.Marshal(entries))
	return invariant.Must(json.Marshal(members, json.Deterministic(true)))
}

// endOfResponse matches the end of a response whose ID follows its result.
var endOfResponse = regexp.MustCompile(`"id"\s*:\s*"?(\d+)"?\s*(,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$`)

// idOfHead returns the ID at the beginning of a response that is not JSON as a whole, or "".
func idOfHead(head []byte) string {
	d := jsontext.NewDecoder(bytes.NewReader(head), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
		return ""
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return ""
		}
		is := name.String() == "id"
		value, err := d.ReadValue()
		if err != nil {
			return ""
		}
		if is {
			return idOf(value)
		}
	}
	return ""
}
