// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
)

// toolCallRoutes are the routes about tool calls.
type toolCallRoutes struct{ *Server }

// toolOutcome is the JSON form of the outcome of a tool call. It has a result if the call
// has succeeded, and an error if it has failed.
type toolOutcome struct {
	Call     string         `json:"tool_call_id"`
	Status   string         `json:"status"` // succeeded, pending or failed
	Result   jsontext.Value `json:"result,omitzero"`
	Error    *toolError     `json:"error,omitzero"`
	Approval string         `json:"approval_id,omitzero"`
}

type toolError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func newToolOutcome(found *command.ToolCall) toolOutcome {
	c := &found.Call
	out := toolOutcome{Call: c.ID.String(), Status: ingress.ToolOutcome(c.Status)}
	switch {
	case out.Status == ingress.ToolSucceeded && found.Result != nil:
		out.Result = ingress.ToolResult(found.Result)
	case out.Status == ingress.ToolSucceeded:
		out.Result = ingress.ToolValue(c.Result)
	case out.Status == ingress.ToolFailed && c.Refusal != nil:
		out.Error = &toolError{cmp.Or(c.Refusal.Code, c.Refusal.Reason.Info().Type), c.Refusal.Detail}
	case out.Status == ingress.ToolFailed: // blocked, and the event with the refusal follows
		out.Error = &toolError{actor.PolicyBlocked.Info().Type, "the policy blocks this call (" + c.Rule + ")"}
	}
	if c.Approval != nil {
		out.Approval = c.ID.Approval()
	}
	return out
}

// toolCallView is the JSON form of a tool call.
type toolCallView struct {
	Outcome    toolOutcome    `json:",embed"`
	State      string         `json:"state"`
	Kind       string         `json:"kind"`
	Name       string         `json:"tool_name"`
	Run        string         `json:"run_id"`
	Root       string         `json:"root_run_id"`
	Args       jsontext.Value `json:"args"`
	Truncated  bool           `json:"truncated,omitzero"` // the arguments are cut
	Timestamps struct {
		Created    string `json:"created_at"`
		Dispatched string `json:"dispatched_at,omitzero"`
		Ended      string `json:"ended_at,omitzero"`
	} `json:"timestamps"`
	Policy *policyView `json:"policy,omitzero"`
}

type policyView struct {
	Decision string `json:"decision"`
	Rule     string `json:"rule"`
}

func newToolCallView(found *command.ToolCall) toolCallView {
	c := &found.Call
	v := toolCallView{Outcome: newToolOutcome(found), State: c.Status.String(), Kind: toolKind(c), Name: c.Name, Run: c.ID.Run.String(), Root: found.Owner.Root.String(),
		Args: ingress.ToolValue(c.Args), Truncated: c.Truncated}
	v.Timestamps.Created = runs.FormatTime(c.Created)
	v.Timestamps.Dispatched, v.Timestamps.Ended = formatOptional(c.Dispatched), formatOptional(c.Ended)
	if c.Decision != "" {
		v.Policy = &policyView{c.Decision, c.Rule}
	}
	return v
}

// clientCallView is the JSON form of a call of a client tool in a list.
type clientCallView struct {
	ID    string         `json:"tool_call_id"`
	State string         `json:"state"`
	Kind  string         `json:"kind"`
	Name  string         `json:"tool_name"`
	Args  jsontext.Value `json:"args"`
	pendingView
}

// listToolCalls answers with a page of the calls of client tools that wait for a device of their user, the oldest
// first.
func listToolCalls(s *Server, ctx *fasthttp.RequestCtx) {
	listWaiting(s, ctx, "tool calls", command.ApprovalsQuery{Clients: true}, func(ctx *fasthttp.RequestCtx, found command.Approvals, next string) {
		out := struct {
			Calls []clientCallView `json:"tool_calls"`
			Next  string           `json:"next_cursor,omitzero"`
		}{[]clientCallView{}, next}
		for i := range found.All {
			a := &found.All[i]
			out.Calls = append(out.Calls, clientCallView{a.ID.String(), runs.ToolStatusWaitingClient.String(), runs.KindClient, a.Tool, ingress.ToolValue(string(a.Args)),
				newPendingView(a.ID.Run, a.Root, a.Actor, a.Principal, a.Created, a.Until)})
		}
		respondJSON(ctx, http.StatusOK, out)
	})
}

func toolKind(c *runs.ToolCall) string {
	if c.OnDevice {
		return runs.KindClient
	}
	return "server_tool"
}

// formatOptional returns a time as text, or "" for 0.
func formatOptional(at actor.Time) string {
	if at == 0 {
		return ""
	}
	return runs.FormatTime(at)
}

func toolCallNotFound(id string) *problem { return refusalProblem(actor.ToolCallNotFound(id)) }

// invokeTool uses a tool on behalf of the run that an external agent works on. It answers
// once the call has ended or waits for a person, or after the time of the request; the call
// continues then.
func (s toolCallRoutes) invokeTool(ctx *fasthttp.RequestCtx) {
	from, tool := callerOf(ctx), pathParam(ctx, "id")
	in, p := decodeBody(ctx, func(b []byte) (ingress.ToolInvocation, *actor.Refusal) { return ingress.InvokeTool(from.Run, tool, b) })
	keys := headers(ctx, ingress.IdempotencyKey)
	switch {
	case p != nil:
	case in.Key != nil && len(keys) > 0 && keys[0] != *in.Key:
		p = invalid(http.StatusBadRequest, "idempotency_key", "idempotency_key: differs from the header "+ingress.IdempotencyKey+", which means the same: want one of them")
	case in.Key != nil:
		keys = []string{*in.Key}
	}
	var r *client.Request
	if p == nil {
		r, p = requestOf(ctx, "POST /v1/tools/{id}:invoke "+tool, keys)
	}
	if p == nil {
		p = s.checkRecorded(ctx, from)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	r.Origin = actor.Agent
	var id runs.ToolCallID
	added := perform(s.Server, ctx, client.Timeout, func(ctx context.Context) (err error) {
		id, err = clientOf(s.Server, &from).AddTool(ctx, from.Actor, from.Run, in.Tool, r)
		return err
	})
	if !added {
		return
	}
	found, answered := s.await(ctx, from, id, in.Wait, func(c *runs.ToolCall) bool { return c.Status.Ended() || c.Status == runs.ToolStatusWaitingApproval })
	if answered {
		return
	}
	status, out := http.StatusOK, newToolOutcome(&found)
	if out.Status == ingress.ToolPending {
		status = http.StatusAccepted
	}
	respondJSON(ctx, status, out)
}

// checkRecorded refuses tool calls and model requests of an agent whose runs have no events: no
// client could read their outcome.
func (s toolCallRoutes) checkRecorded(ctx *fasthttp.RequestCtx, by caller) *problem {
	all, err := s.agents(ctx)
	if err != nil {
		return s.errorProblem(ctx, err)
	}
	for i := range all {
		if all[i].Name == by.Actor.Agent && all[i].Durability == actor.Volatile {
			return refusalProblem(actor.Refuse(actor.Rejected, "%s has durability none, so its runs record no tool calls and no requests to models", by.Actor.Agent))
		}
	}
	return nil
}

// await returns the state of a tool call that satisfies done, or the state after the time.
// If it cannot be read or the client has gone, it answers the request.
func (s toolCallRoutes) await(ctx *fasthttp.RequestCtx, by caller, id runs.ToolCallID, wait time.Duration, done func(*runs.ToolCall) bool) (found command.ToolCall, answered bool) {
	watch := clientOf(s.Server, &by).Watch(s.draining)
	defer watch.Close()
	if wait > 0 {
		if err := watch.Follow(client.Subject{Run: id.Run}); err != nil {
			s.respondError(ctx, err)
			return found, true
		}
	}
	waitCtx := s.newClientContext(ctx, wait)
	defer waitCtx.stop()
	after := uint64(0)
	for last := wait == 0; ; {
		found, err := lookup(s.Server, by, command.ToolCallQuery{ID: id})
		if err != nil {
			s.toolCallProblem(ctx, id, err).write(ctx)
			return found, true
		}
		if done(&found.Call) || last {
			return found, false
		}
		for changed := false; !changed && !last; {
			if err := watch.Await(waitCtx); err != nil {
				if respondAborted(ctx, waitCtx.cause()) {
					return found, true
				}
				last = true
			} else if changed, err = s.changed(by, id, &after); err != nil {
				s.toolCallProblem(ctx, id, err).write(ctx)
				return found, true
			}
		}
	}
}

// changed reports whether the run has an event behind after that changes a tool call, and
// moves after to the last event. An answer of the agent has many events of its own.
func (s toolCallRoutes) changed(by caller, id runs.ToolCallID, after *uint64) (found bool, err error) {
	for {
		page, err := lookup(s.Server, by, command.EventsQuery{Run: id.Run, After: *after, Limit: EventsMax})
		if err != nil {
			return false, err
		}
		for i := range page.All {
			e, err := runs.Decode(page.All[i].Body)
			if err != nil {
				return false, err
			}
			found = found || e.Type.Ends() || e.Step == id.Step && e.Index == id.Index
		}
		if *after = page.After; len(page.All) < EventsMax {
			return found, nil
		}
	}
}

// toolCallProblem returns the problem for an error of the node about a tool call.
func (s toolCallRoutes) toolCallProblem(ctx *fasthttp.RequestCtx, id runs.ToolCallID, err error) *problem {
	if r := (*actor.Refusal)(nil); errors.As(err, &r) && r.Reason == actor.NotFound {
		return toolCallNotFound(id.String())
	}
	return s.errorProblem(ctx, err)
}

// find returns the tool call in the path and the caller that may read it. A request that
// acts for a run, and one of the principal that registered the agent of an open run, reads
// the calls of that run.
func (s toolCallRoutes) find(ctx *fasthttp.RequestCtx) (by caller, found command.ToolCall, p *problem) {
	by = callerOf(ctx)
	id, err := runs.ParseToolCallID(pathParam(ctx, "id"))
	if err != nil || !by.Run.IsZero() && by.Run != id.Run {
		return by, found, toolCallNotFound(pathParam(ctx, "id"))
	}
	by, found, err = findToolCall(s.Server, by, id)
	if err != nil {
		return by, found, s.errorProblem(ctx, err)
	}
	return by, found, nil
}

// findToolCall is find for a tool call and the caller that asks for it.
func findToolCall(s *Server, by caller, id runs.ToolCallID) (caller, command.ToolCall, error) {
	reading, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	found, err := clientOf(s, &by).ToolCall(reading, id)
	if r := (*actor.Refusal)(nil); errors.As(err, &r) && r.Reason == actor.NotFound && by.Run.IsZero() {
		if agent, p := (forwardedRuns{s}).workingOn(&by, id.Run); p == nil {
			by = *agent
			found, err = clientOf(s, &by).ToolCall(reading, id)
		}
	}
	return by, found, err
}

// deviceHeader is the header with which a device of a user names itself: in a message, whose
// run prefers it for client tools, and in the result of such a tool.
const deviceHeader = "X-Device-Id"

// deviceNamed returns the device in the header of a request, or "".
func deviceNamed(h *fasthttp.RequestHeader) (device string, p *problem) {
	device = string(h.Peek(deviceHeader))
	if device != "" && actor.CheckName(device) != nil {
		return "", invalid(http.StatusBadRequest, deviceHeader, deviceHeader+": "+actor.CheckName(device).Error())
	}
	return device, nil
}

// giveResult takes the result of a client tool from the device that performs it.
func (s toolCallRoutes) giveResult(ctx *fasthttp.RequestCtx) {
	device, p := deviceNamed(&ctx.Request.Header)
	var found command.ToolCall
	var result signals.GiveResult
	var r *client.Request
	if p == nil {
		_, found, p = s.find(ctx)
	}
	if p == nil {
		result, p = decodeBody(ctx, ingress.DecodeToolResult)
	}
	if p == nil {
		r, p = requestOf(ctx, "POST /v1/tool_calls/{id}:result "+pathParam(ctx, "id"), headers(ctx, ingress.IdempotencyKey))
	}
	if p != nil {
		p.write(ctx)
		return
	}
	by := callerOf(ctx)
	if perform(s.Server, ctx, client.Timeout, func(ctx context.Context) error {
		return clientOf(s.Server, &by).GiveResult(ctx, &found, device, result, r)
	}) {
		respondJSON(ctx, http.StatusOK, newToolCallView(&found))
	}
}

// getToolCall answers with the state of a tool call.
func (s toolCallRoutes) getToolCall(ctx *fasthttp.RequestCtx) {
	_, found, p := s.find(ctx)
	if p != nil {
		p.write(ctx)
		return
	}
	respondJSON(ctx, http.StatusOK, newToolCallView(&found))
}

// waitForToolCall answers with the state of a tool call once it has ended, or after the time
// of the request.
func (s toolCallRoutes) waitForToolCall(ctx *fasthttp.RequestCtx) {
	wait, p := queryUint(ctx, "timeout_ms", uint64(ingress.ToolWaitDefault.Milliseconds()), uint64(ingress.ToolWaitMax.Milliseconds()))
	if p == nil {
		p = requireEmptyBody(ctx)
	}
	var by caller
	var found command.ToolCall
	if p == nil {
		by, found, p = s.find(ctx)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	if !found.Call.Status.Ended() {
		release, r := s.streams.acquire(&by)
		if r != nil {
			refusalProblem(r).write(ctx)
			return
		}
		defer release()
		var answered bool
		if found, answered = s.await(ctx, by, found.Call.ID, time.Duration(wait)*time.Millisecond, func(c *runs.ToolCall) bool { return c.Status.Ended() }); answered {
			return
		}
	}
	respondJSON(ctx, http.StatusOK, newToolCallView(&found))
}
