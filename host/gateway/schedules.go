// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/internal/command"
)

// scheduleRoutes are the routes about schedules of agents.
type scheduleRoutes struct{ server *Server }

// scheduleView is the JSON form of a schedule.
type scheduleView struct {
	Agent   string         `json:"agent_id"`
	Name    string         `json:"name"`
	Cron    string         `json:"cron"`
	Zone    string         `json:"zone"`
	Text    string         `json:"text"`
	User    string         `json:"user"`
	Session string         `json:"session_id"`
	Next    string         `json:"next,omitzero"`
	Last    *scheduledView `json:"last,omitzero"`
}

// scheduledView is the JSON form of a message of a schedule.
type scheduledView struct {
	At    string `json:"at"`
	Run   string `json:"run_id,omitzero"`
	Error string `json:"error,omitzero"`
}

// list answers with the schedules that act for the user.
func (s scheduleRoutes) list(ctx *fasthttp.RequestCtx) {
	found, err := lookup(s.server, callerOf(ctx), command.SchedulesQuery{})
	if err != nil {
		s.server.respondError(ctx, err)
		return
	}
	out := struct {
		All  []scheduleView `json:"schedules"`
		More bool           `json:"more,omitzero"`
	}{All: []scheduleView{}, More: found.More}
	for i := range found.All {
		one := &found.All[i]
		v := scheduleView{Agent: one.Agent, Name: one.Name, Cron: one.Cron, Zone: one.Zone, Text: one.Text, User: one.User, Session: one.Session, Next: formatOptional(one.Next)}
		if last := &one.Last; last.At != 0 {
			v.Last = &scheduledView{At: formatOptional(last.At), Error: last.Failure}
			if !last.Run.IsZero() {
				v.Last.Run = last.Run.String()
			}
		}
		out.All = append(out.All, v)
	}
	respondJSON(ctx, http.StatusOK, out)
}
