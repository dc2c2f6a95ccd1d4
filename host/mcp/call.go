// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/internal/shares"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

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
	user := ""
	if call, ok := engine.ToolCallOf(ctx); ok {
		user = call.Call.Principal
	}
	if s.places.Acquire(ctx, user, shares.PlacesOf(s.config.atOnce())) != nil {
		return tools.Refused(actor.RefuseUnavailable(0, "%s: all %d calls that the MCP server may have at once were in use, or three quarters of them by this user", name, s.config.atOnce()))
	}
	defer s.places.Release(user)
	attempts, sent, renewed := 0, 0, false
	for {
		attempts++
		l, refusal := s.session(ctx, attempts > 1)
		if refusal != nil {
			refusal.Detail = name + ": " + refusal.Detail
			return tools.Refused(refusal)
		}
		var unsent atomic.Bool
		got, err := l.callTool(context.WithValue(ctx, unsentKey{}, &unsent), &sdk.CallToolParams{Meta: s.metaOf(ctx), Name: tool, Arguments: jsontext.Value(input)})
		l.end()
		if err == nil {
			a := answerOf(got)
			f := a.Failure
			switch {
			case f == nil:
				s.noteAnswer()
				answered = true
				return resultOf(name, a)
			case f.Forgotten && !renewed && s.mayRenew(l): // nothing was performed
				renewed = true
				s.renew(ctx, l, errForgotten)
				continue
			case f.Forgotten: // it may mean this call: the list shows whether the session can be used
				s.check()
				if renewed {
					f.Detail += ", also in a new session"
				}
				f.Detail += "; nothing was performed"
			case f.Reason == actor.Unknown: // the list shows whether the session can be used
				s.check()
				if sent++; f.Passing && repeatable && sent == 1 {
					continue
				} else if f.Passing && repeatable {
					f.Reason = actor.Unavailable
				}
			}
			return tools.Refused(f.refusal(name))
		}
		if ctx.Err() != nil { // the SDK has sent the cancellation
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				s.noteTimeout(l)
			}
			if repeatable {
				return tools.Refused(&actor.Refusal{Reason: actor.Deadline, Operation: "invoke " + name, Detail: name + ": no answer of the MCP server in time"})
			}
			return tools.Refused(actor.Refuse(actor.Unknown, "%s: no answer of the MCP server in time; it may have performed the call", name))
		}
		switch {
		case l.process != nil || unsent.Load():
			s.renew(ctx, l, err)
		default: // the connection of this call broke
			s.check()
		}
		if !unsent.Load() {
			sent++
		}
		switch harmless := repeatable || sent == 0; {
		case harmless && attempts == 1, repeatable && unsent.Load() && attempts == 2:
		case harmless:
			return tools.Refused(actor.Refuse(actor.Unavailable, "%s: the MCP server ended before it answered: %.300v", name, l.cause(err)))
		default:
			return tools.Refused(actor.Refuse(actor.Unknown, "%s: the MCP server ended before it answered, and may have performed the call: %.300v", name, l.cause(err)))
		}
	}
}

// renew ends the use of a session and waits until it has another one, or none.
func (s *server) renew(ctx context.Context, l *link, err error) {
	l.giveUp(err)
	s.waitForEnd(ctx, l)
}

// refusal returns the refusal of a call without an answer.
func (f *failure) refusal(name string) *actor.Refusal {
	switch f.Reason {
	case actor.Busy:
		return actor.RefuseBusy(actor.ScopeCallee, actor.Duration(f.After), "%s: the MCP server %s", name, f.Detail)
	case actor.Unknown:
		return actor.Refuse(actor.Unknown, "%s: the MCP server %s; it may have performed the call", name, f.Detail)
	}
	return actor.Refuse(f.Reason, "%s: the MCP server %s", name, f.Detail)
}

// mayRenew reports whether another session may help a call whose session the server does not know: not if that one
// was opened for the same reason, and no call in it was answered.
func (s *server) mayRenew(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link != l || !l.again || s.served
}

// callTool is CallTool that also ends with the link.
func (l *link) callTool(ctx context.Context, params *sdk.CallToolParams) (*sdk.CallToolResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	return l.CallTool(ctx, params)
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
	s.timeouts, s.served = 0, true
}

// noteTimeout abandons a process that no longer answers. A module that has missed one deadline is one: it is a single thread.
func (s *server) noteTimeout(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timeouts++; (s.timeouts >= timeoutsMax || s.config.Wasm != "") && s.link == l && l.process != nil {
		l.giveUp(errLate)
	}
}

// metaOf returns the metadata of the call of a context.
func (s *server) metaOf(ctx context.Context) sdk.Meta {
	call, ok := engine.ToolCallOf(ctx)
	if !ok {
		return nil
	}
	return s.metaFor(&call)
}

// metaFor returns the metadata of a call: the trace, an identity that a repetition of the call
// has as well, and if the configuration says so who asks.
func (s *server) metaFor(call *engine.ToolCall) sdk.Meta {
	meta := sdk.Meta{"troupe.run/tool_call_id": call.ID.String()}
	trace := call.Call.Trace
	if s.config.Spans {
		trace = upstream.TraceIn(&call.Call, runs.SpanOfAsk(call.ID.Run, call.ID.Step, call.ID.Index))
	}
	if parent, state, _ := strings.Cut(trace, " "); parent != "" {
		meta["traceparent"] = parent
		if state != "" {
			meta["tracestate"] = state
		}
	}
	if s.config.Identity != "" {
		who := upstream.IdentityOf(&call.Call)
		meta["troupe.run/user"], meta["troupe.run/session"], meta["troupe.run/agent"], meta["troupe.run/run"] = who.User, who.Session, who.Agent, who.Run
	}
	return meta
}
