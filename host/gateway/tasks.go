// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// taskRoutes are the routes about detached calls.
type taskRoutes struct{ server *Server }

// taskView is the JSON form of a detached call that is pending, or whose answer is late.
type taskView struct {
	Agent   string `json:"agent"`
	Skill   string `json:"skill"`
	Task    string `json:"taskId"`
	Client  string `json:"clientCorrelationId,omitzero"`
	Asker   string `json:"asker"`
	Session string `json:"session_id"`
	Start   int64  `json:"startTime"`        // in ms since 1970
	Timeout int64  `json:"timeout,omitzero"` // in ms; absent if nobody waits
	Status  string `json:"status"`           // pending, waiting for a person, working if the outcome is not delivered, late, or cancelled
	Waits   *struct {
		For string `json:"for"`
		ID  string `json:"id,omitzero"`
	} `json:"waiting,omitzero"`
}

func newTaskView(t *command.Task) taskView {
	v := taskView{Agent: t.Callee.Agent, Skill: t.Skill, Task: t.Call.String(), Client: t.Client, Asker: t.Asker.Agent, Session: t.Asker.Key,
		Start: int64(t.At) / int64(time.Millisecond), Timeout: t.Left.Milliseconds(), Status: "pending"}
	switch {
	case t.Cancelled:
		v.Status, v.Timeout = "cancelled", 0
	case t.Silent:
		v.Status, v.Timeout = "working", 0
	case t.Late:
		v.Status, v.Timeout = "late", 0
	case t.Waits != "":
		v.Status = "waiting"
		v.Waits = &struct {
			For string `json:"for"`
			ID  string `json:"id,omitzero"`
		}{t.Waits, t.Until}
	}
	return v
}

// getState answers with the state that the agents of a session share.
func (s taskRoutes) getState(ctx *fasthttp.RequestCtx) {
	name, r := ingress.CheckSession(pathParam(ctx, "id"))
	if r != nil {
		badRequest(r).write(ctx)
		return
	}
	by := callerOf(ctx)
	end, err := lookup(s.server, by, command.SessionEndQuery{Session: name})
	if deletedSession(err) != nil || err == nil && !end.Exists {
		sessionNotFound(name).write(ctx)
		return
	}
	var found command.Tasks
	if err == nil {
		found, err = lookup(s.server, by, command.TasksQuery{Session: name})
	}
	var shared command.SessionState
	if err == nil {
		shared, err = lookup(s.server, by, command.SessionStateQuery{Session: name})
	}
	if err != nil {
		s.server.respondError(ctx, err)
		return
	}
	out := struct {
		Session string              `json:"session_id"`
		Pending map[string]taskView `json:"pendingRequests"`
		More    bool                `json:"more,omitzero"`
		Shared  jsontext.Value      `json:",embed"` // workflow, agents and notes
	}{name, map[string]taskView{}, found.More, shared.JSON}
	for i := range found.All {
		out.Pending[found.All[i].Call.String()] = newTaskView(&found.All[i])
	}
	respondJSON(ctx, http.StatusOK, out)
}

// list answers with the detached calls of the caller, the oldest first.
func (s taskRoutes) list(ctx *fasthttp.RequestCtx) {
	found, err := lookup(s.server, callerOf(ctx), command.TasksQuery{})
	if err != nil {
		s.server.respondError(ctx, err)
		return
	}
	out := struct {
		All  []taskView `json:"tasks"`
		More bool       `json:"more,omitzero"`
	}{All: []taskView{}, More: found.More}
	for i := range found.All {
		out.All = append(out.All, newTaskView(&found.All[i]))
	}
	respondJSON(ctx, http.StatusOK, out)
}

// get answers with a task: the run of a callee. Its response can be read as long as the session exists,
// also one that came too late for the asker.
func (s taskRoutes) get(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	if p != nil {
		p.write(ctx)
		return
	}
	found, err := lookup(s.server, callerOf(ctx), command.RunQuery{Run: id})
	view := s.pending(callerOf(ctx), id)
	if notFound(err) && view != nil { // a reminder has no run, and a call gets it with its request
		respondJSON(ctx, http.StatusOK, taskResponse{Task: view.Task, Agent: view.Agent, Session: view.Session, Status: view.Status, Pending: view})
		return
	}
	if err != nil {
		s.server.respondError(ctx, err)
		return
	}
	record := found.Current()
	out := taskResponse{Task: id.String(), Agent: found.Owner.Actor.Agent, Session: found.Owner.Actor.Key, Status: "pending", Start: formatOptional(record.Started)}
	if view != nil {
		out.Pending, out.Status = view, view.Status
	}
	out.Discarded = out.Pending == nil && s.discarded(callerOf(ctx), &record)
	switch {
	case !record.Status.Ended():
		if record.Status == runs.PausedWaitingApproval && out.Pending == nil {
			out.Status = "waiting"
		}
	case record.Refusal != nil:
		out.Status, out.Response = "error", contract.SkillError(contract.Correlation{Call: id}, record.Refusal)
	default:
		response := contract.ReadSkill(record.Text, record.Warnings...)
		out.Status, out.Response = "completed", response.Encode(contract.Correlation{Call: id})
	}
	respondJSON(ctx, http.StatusOK, out)
}

// cancel cancels a task, and everything it waits for. It is idempotent: one that has ended keeps its outcome.
func (s taskRoutes) cancel(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	if p == nil {
		p = requireEmptyBody(ctx)
	}
	var r *client.Request
	if p == nil {
		r, p = requestOf(ctx, "POST /v1/tasks/{id}:cancel "+id.String(), nil)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	by := callerOf(ctx)
	waitCtx := s.server.newClientContext(ctx, cancelTimeout)
	status, err := clientOf(s.server, &by).CancelTask(waitCtx, id, r)
	cause := waitCtx.cause()
	waitCtx.stop()
	out := struct {
		Task   string `json:"taskId"`
		Status string `json:"status"`
	}{id.String(), "working"}
	code := http.StatusOK
	switch {
	case status == runs.Cancelled:
		out.Status = "cancelled"
	case status == runs.Done:
		out.Status = "completed"
	case status.Ended():
		out.Status = "error"
	default:
		code = http.StatusAccepted // it ends once its agent reacts
	}
	switch {
	case respondAborted(ctx, cause):
	case err != nil:
		s.server.respondError(ctx, err)
	default:
		respondJSON(ctx, code, out)
	}
}

// taskResponse is the JSON form of a task.
type taskResponse struct {
	Task      string         `json:"taskId"`
	Agent     string         `json:"agent"`
	Session   string         `json:"session_id"`
	Status    string         `json:"status"`
	Start     string         `json:"started_at,omitzero"`
	Pending   *taskView      `json:"pending,omitzero"` // what the list has of it
	Response  jsontext.Value `json:"response,omitzero"`
	Discarded bool           `json:"response_discarded,omitzero"` // the session that it was for is deleted
}

// pending returns what the list of tasks has of one; nil if nothing.
func (s taskRoutes) pending(by caller, id actor.CallID) *taskView {
	reading := s.server.newTimeout(readTimeout)
	defer reading.stop()
	task, found, err := clientOf(s.server, &by).Task(reading, id)
	if err != nil || !found {
		return nil
	}
	view := newTaskView(&task)
	return &view
}

func notFound(err error) bool {
	var r *actor.Refusal
	return errors.As(err, &r) && r.Reason == actor.NotFound
}

// discarded reports whether the session of the agent that has made a call is deleted, so that nothing is left that
// could have the response.
func (s taskRoutes) discarded(by caller, record *runs.Record) bool {
	if len(record.Chain) == 0 {
		return false
	}
	asker := record.Chain[len(record.Chain)-1].Key
	if asker == record.Actor.Key {
		return false
	}
	end, err := lookup(s.server, by, command.SessionEndQuery{Session: asker})
	return deletedSession(err) != nil || err == nil && !end.Exists
}
