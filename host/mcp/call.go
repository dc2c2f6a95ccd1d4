// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/tools"
)

// errorTextMax is the length of the error of a tool in a refusal.
const errorTextMax = 1 << 10

// call performs a call of a tool. A call whose tool may be repeated is sent a second time if its
// session ends without an answer.
func (s *server) call(ctx context.Context, tool string, repeatable bool, input []byte) (result tools.Result) {
	answered := false // by the tool
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.stats.Calls++; !answered {
			s.stats.Failures++
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.set.ctx, cancel)()
	name := s.name + "." + tool
	if ctx.Err() != nil {
		return tools.Refused(actor.RefuseUnavailable(0, "%s: its time was over before the request was sent", name))
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return tools.Refused(actor.RefuseUnavailable(0, "%s: all %d calls that the MCP server may have at once were in use", name, cap(s.slots)))
	}
	for attempt := 1; ; attempt++ {
		l, refusal := s.session(ctx, attempt > 1)
		if refusal != nil {
			refusal.Detail = name + ": " + refusal.Detail
			return tools.Refused(refusal)
		}
		var unsent atomic.Bool
		got, err := l.callTool(context.WithValue(ctx, unsentKey{}, &unsent), &sdk.CallToolParams{Meta: metaOf(ctx), Name: tool, Arguments: jsontext.Value(input)})
		var wire *jsonrpc.Error
		switch {
		case err == nil:
			s.noteAnswer()
			answered = true
			return resultOf(name, got)
		case ctx.Err() != nil: // the SDK has sent the cancellation
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				s.noteTimeout(l)
			}
			if repeatable {
				return tools.Refused(&actor.Refusal{Reason: actor.Deadline, Operation: "invoke " + name, Detail: name + ": no answer of the MCP server in time"})
			}
			return tools.Refused(actor.Refuse(actor.Unknown, "%s: no answer of the MCP server in time; it may have performed the call", name))
		case errors.As(err, &wire) && !ofTransport(wire):
			s.noteAnswer()
			answered = true
			return tools.Refused(actor.Refuse(actor.Rejected, "%s: the MCP server refused the call: %s (%d)", name, actor.FitText(wire.Message, errorTextMax), wire.Code))
		}
		l.giveUp(err)
		s.waitForEnd(ctx, l)
		switch harmless := repeatable || unsent.Load(); {
		case harmless && attempt == 1:
		case harmless:
			return tools.Refused(actor.Refuse(actor.Unavailable, "%s: the MCP server ended before it answered: %.300v", name, l.cause(err)))
		default:
			return tools.Refused(actor.Refuse(actor.Unknown, "%s: the MCP server ended before it answered, and may have performed the call: %.300v", name, l.cause(err)))
		}
	}
}

// callTool is CallTool that also ends with the link.
func (l *link) callTool(ctx context.Context, params *sdk.CallToolParams) (*sdk.CallToolResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	return l.CallTool(ctx, params)
}

// ofTransport reports whether an error with a code comes from the SDK, which lost the connection, and
// not from the server.
func ofTransport(err *jsonrpc.Error) bool {
	const clientClosing, rejectedByTransport = -32003, -32005
	return rejectedByTransport <= err.Code && err.Code <= clientClosing
}

// waitForEnd waits until an abandoned session is no longer used.
func (s *server) waitForEnd(ctx context.Context, l *link) {
	for {
		s.mu.Lock()
		current, changed := s.link, s.changed
		s.mu.Unlock()
		if current != l {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (s *server) noteAnswer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timeouts = 0
}

// noteTimeout abandons a process that no longer answers.
func (s *server) noteTimeout(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timeouts++; s.timeouts >= timeoutsMax && s.link == l && l.process != nil {
		l.giveUp(errors.New("its last calls were not answered in time"))
	}
}

// metaOf returns the metadata of a call: the trace, and an identity that a repetition of the call
// has as well.
func metaOf(ctx context.Context) sdk.Meta {
	call, ok := engine.ToolCallOf(ctx)
	if !ok {
		return nil
	}
	meta := sdk.Meta{"troupe.run/tool_call_id": call.ID.String()}
	if parent, state, _ := strings.Cut(call.Call.Trace, " "); parent != "" {
		meta["traceparent"] = parent
		if state != "" {
			meta["tracestate"] = state
		}
	}
	return meta
}

// resultOf returns the result of a tool: its structured content, else its text, else all of its
// content as JSON. An error of the tool is a refusal with its text.
func resultOf(name string, got *sdk.CallToolResult) tools.Result {
	var texts []string
	textOnly := true
	for _, c := range got.Content {
		if t, ok := c.(*sdk.TextContent); ok {
			texts = append(texts, t.Text)
		} else {
			textOnly = false
		}
	}
	text := strings.ToValidUTF8(strings.Join(texts, "\n"), "\uFFFD")
	var value any
	switch {
	case got.IsError:
		if text == "" {
			text = "the tool reports an error without a text"
		}
		return tools.Refused(actor.Refuse(actor.Rejected, "%s: %s", name, actor.FitText(text, errorTextMax)))
	case got.StructuredContent != nil:
		value = got.StructuredContent
	case textOnly:
		return tools.Text(text)
	default:
		value = got.Content
	}
	b, err := json.Marshal(value, json.Deterministic(true))
	if err != nil {
		return tools.Refused(actor.Refuse(actor.Rejected, "%s: the MCP server sent a result that is not JSON: %.200v", name, err))
	}
	return tools.JSON(b)
}
