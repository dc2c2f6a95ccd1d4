// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// namespaces is the part of a simulation that draws and judges namespaces.
type namespaces struct{ *Simulation }

// Each client acts in one of the namespaces of a simulation: the default tenant and those of
// users. The agents exist in all of them. Messages have the marker of their namespace, so do
// their answers, and the calls that they lead to.

// namespaceName returns the name of a namespace.
func namespaceName(i int) string {
	if i == 0 {
		return actor.DefaultTenant
	}
	return fmt.Sprintf("user-%d", i)
}

// namespaceMarker returns the text that occurs in messages and actors of a namespace alone.
func namespaceMarker(tenant string) string {
	if tenant == actor.DefaultTenant {
		return "user-0"
	}
	return tenant
}

// drawNamespace draws a namespace. Half of the draws are the default one.
func (w namespaces) drawNamespace() string {
	users := w.plan.Namespaces - 1
	if users < 1 {
		return actor.DefaultTenant
	}
	return namespaceName(max(0, w.entropy.Int(2*users)-users+1))
}

// namespaceOf returns the namespace of an admitted run.
func (w namespaces) namespaceOf(run actor.CallID) string {
	return cmp.Or(w.eventJudge.admitted[run].Actor.Tenant, actor.DefaultTenant)
}

// mark adds the marker of the actor's namespace to a message, in the syntax of its agent.
func (w namespaces) mark(to actor.ID, message string) string {
	switch {
	case w.plan.Namespaces < 2 || w.team != nil || to.Agent == swapRegisterName || actor.IsSystemAgent(to.Agent):
		return message
	case w.agentKind(to.Agent) == actor.Native:
		return message + "; say " + namespaceMarker(to.Tenant)
	}
	return message + "\nsay " + namespaceMarker(to.Tenant)
}

// checkApart checks bytes that reach a client, a model or an external agent, which acts in a
// namespace: they have the marker of no other.
func (w namespaces) checkApart(tenant, receiver string, texts ...string) {
	for _, text := range texts {
		for i := range w.plan.Namespaces {
			at := strings.Index(text, namespaceMarker(namespaceName(i)))
			switch {
			case at < 0:
			case namespaceName(i) == tenant:
				w.Stats.Audit.NamespacesApart++
			default:
				w.fail(NamespacesApart, fmt.Sprintf("%s in namespace %s receives bytes of %s: %.200q", receiver, tenant, namespaceName(i), text[max(0, at-100):]))
			}
		}
	}
}

// checkReplyApart is checkApart for a reply.
func (w namespaces) checkReplyApart(tenant, receiver string, reply *actor.Reply) {
	w.checkApart(tenant, receiver, reply.Warnings...)
	for i := range reply.Parts {
		w.checkApart(tenant, receiver, string(reply.Parts[i].Bytes))
	}
	if reply.Refusal != nil {
		w.checkApart(tenant, receiver, reply.Refusal.Error())
	}
}

// checkApart is Simulation.checkApart for a request to an upstream.
func (s *upstreamConn) checkApart(r upstream.Request) {
	w, tenant, receiver := namespaces{s.exchange.n.w}, s.exchange.call.To.Tenant, "the server of the "+s.String()
	w.checkApart(tenant, receiver, r.URL, string(r.Body))
	for _, h := range r.Headers {
		w.checkApart(tenant, receiver, h.Value)
	}
}

// auditNamespaces checks that no namespace has the runs, sessions or actors of another.
func (w namespaces) auditNamespaces() {
	for _, c := range w.clients {
		for i := range w.plan.Namespaces {
			if tenant := namespaceName(i); tenant != c.to.Tenant {
				_, found, err := w.store.Run(tenant, c.call)
				events, eventsErr := w.store.Events(tenant, c.call, 0, 1)
				if found || len(events) > 0 || err != nil || eventsErr != nil {
					w.fail(NamespacesApart, fmt.Sprintf("run %s of %s is found in namespace %s, with %d events; errors %v, %v", c.call, c.to, tenant, len(events), err, eventsErr))
				}
			}
		}
	}
	for i := range w.plan.Namespaces {
		tenant := namespaceName(i)
		w.auditSessions(tenant)
		err := store.EachRun(w.store, tenant, runs.Filter{Calls: true, System: true}, func(s *runs.Summary) {
			if s.Actor.Tenant != tenant {
				w.fail(NamespacesApart, fmt.Sprintf("run %s of %s is listed in namespace %s", s.Run, s.Actor, tenant))
			}
			w.checkApart(tenant, "a client that lists runs", string(s.AppendJSON(nil)))
		})
		if err != nil {
			w.fail(StoreReads, err.Error())
		}
	}
}

// auditSessions compares the sessions of a namespace, which are listed in pages, with the
// actors of which the store has entries.
func (w namespaces) auditSessions(tenant string) {
	const limit = 3
	want := map[string][]actor.ID{}
	for id := range w.loadJudge.entries {
		if session, ok := id.Session(); ok && id.Tenant == tenant {
			want[session] = append(want[session], id)
		}
	}
	for before := ""; ; {
		names, next, err := w.store.Sessions(tenant, before, limit)
		if err != nil {
			w.fail(StoreReads, "list of sessions: "+err.Error())
			return
		}
		for _, name := range names {
			ids, err := w.store.SessionActors(tenant, name)
			slices.SortFunc(want[name], actor.ID.Compare)
			if err != nil || len(ids) == 0 || !slices.Equal(ids, want[name]) {
				w.fail(NamespacesApart, fmt.Sprintf("session %s of %s is listed with the actors %v, want %v: %v", name, tenant, ids, want[name], err))
			}
			delete(want, name)
		}
		if before = next; next == "" {
			break
		}
	}
	if len(want) > 0 {
		w.fail(NamespacesApart, fmt.Sprintf("namespace %s lacks the sessions %v", tenant, slices.Sorted(maps.Keys(want))))
	}
}
