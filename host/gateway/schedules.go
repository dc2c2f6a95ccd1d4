// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"maps"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
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
	Paused  string         `json:"paused,omitzero"`
	Next    string         `json:"next,omitzero"`
	Last    *scheduledView `json:"last,omitzero"`
}

// scheduledView is the JSON form of a message of a schedule.
type scheduledView struct {
	At    string `json:"at"`
	Run   string `json:"run_id,omitzero"`
	Error string `json:"error,omitzero"`
}

// list answers with the schedules that act for the user, or for all.
func (s scheduleRoutes) list(ctx *fasthttp.RequestCtx) {
	by := callerOf(ctx)
	q := command.SchedulesQuery{EveryUser: by.Tenant == ingress.EveryUser}
	if q.EveryUser {
		by.Tenant = actor.DefaultTenant
	}
	found, err := lookup(s.server, by, q)
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
		v := scheduleView{Agent: one.Agent, Name: one.Name, Cron: one.Cron, Zone: one.Zone, Text: one.Text, User: one.User, Session: one.Session, Paused: one.Paused, Next: formatOptional(one.Next)}
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

// specFor returns the spec of an agent without the schedules that act for other users than the caller. An operator
// that acts for no user sees all.
func specFor(by caller, spec jsontext.Value) jsontext.Value {
	if len(spec) == 0 || by.Tenant == actor.DefaultTenant && ingress.Allows(by.Principal, ingress.ScopeOperator) {
		return spec
	}
	s, err := agents.ReadJSON(spec)
	if err != nil || len(s.Schedules) == 0 {
		return spec
	}
	maps.DeleteFunc(s.Schedules, func(_ string, one agents.Schedule) bool { return actor.Namespace(one.User) != by.Tenant })
	return s.Encode()
}
