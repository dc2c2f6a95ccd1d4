// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/tools"
)

var anyUUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)

// Each part of detached calls can be off alone, for the server and for an agent, and other calls are as before.
func TestPartsOfDetachedCallsAreOff(t *testing.T) {
	const invocation = `{"kind":"skill_invocation","skill":"look","mode":"execute","input":{"x":1}`
	for name, c := range map[string]struct {
		off                    dispatcher.Routing
		agent                  actor.Routing // of the asker
		message, answer, after string
		slow                   string // delivered of a callee of 90 s
	}{
		"all on":                           {dispatcher.Routing{}, actor.Routing{}, invocation + `,"correlationId":"ID","returnTo":"agent:a:s-1","timeout":60000}`, "pending", "skill_response completed yes", "skill_timeout timeout "},
		"no correlation":                   {dispatcher.Routing{NoCorrelation: true}, actor.Routing{}, invocation + `,"returnTo":"agent:a:s-1","timeout":60000}`, "pending", "skill_response completed yes", "skill_timeout timeout "},
		"no returnTo":                      {dispatcher.Routing{NoReturnTo: true}, actor.Routing{}, invocation + `,"correlationId":"ID"}`, "pending", "skill_response completed yes", "skill_timeout timeout "},
		"no responses":                     {dispatcher.Routing{NoResponses: true}, actor.Routing{}, invocation + `,"correlationId":"ID","returnTo":"agent:a:s-1","timeout":60000}`, "working", "", ""},
		"no timeouts":                      {dispatcher.Routing{NoTimeouts: true}, actor.Routing{}, invocation + `,"correlationId":"ID","returnTo":"agent:a:s-1","timeout":60000}`, "pending", "skill_response completed yes", "skill_response completed slept"},
		"all off":                          {dispatcher.Routing{NoCorrelation: true, NoReturnTo: true, NoResponses: true, NoTimeouts: true}, actor.Routing{}, invocation + `}`, "working", "", ""},
		"the agent has none":               {dispatcher.Routing{}, actor.Routing{Correlation: actor.Off, ReturnTo: actor.Off, Responses: actor.Off, Timeouts: actor.Off}, invocation + `}`, "working", "", ""},
		"the agent has what others do not": {dispatcher.Routing{NoCorrelation: true, NoReturnTo: true, NoResponses: true, NoTimeouts: true}, actor.Routing{Correlation: actor.On, ReturnTo: actor.On, Responses: actor.On, Timeouts: actor.On}, invocation + `,"correlationId":"ID","returnTo":"agent:a:s-1","timeout":60000}`, "pending", "skill_response completed yes", "skill_timeout timeout "},
		"the agent has one more":           {dispatcher.Routing{NoCorrelation: true, NoReturnTo: true}, actor.Routing{Correlation: actor.On, Channel: actor.On}, invocation + `,"correlationId":"ID"}`, "pending", "skill_response completed yes", "skill_timeout timeout "},
		"the agent has one less":           {dispatcher.Routing{}, actor.Routing{Timeouts: actor.Off}, invocation + `,"correlationId":"ID","returnTo":"agent:a:s-1","timeout":60000}`, "pending", "skill_response completed yes", "skill_response completed slept"},
	} {
		var got string
		routed := func(d *actor.Definition) { d.Routing = c.agent }
		n := newNode(t, 1, agent("a", sending(), routed), agent("b", receives(&got, "yes")), agent("slow", sleeping(90*time.Second)), agent("k", calling("b")), agent("d", usingFor(tools.DebateCall), routed))
		n.routing = c.off
		n.restart(1)
		run := n.send("a/s-1", askB)
		n.advance(time.Second)
		if got = anyUUID.ReplaceAllString(got, "ID"); got != c.message {
			t.Errorf("%s: the callee got\n%s want\n%s", name, got, c.message)
		}
		if text := n.result(run); !strings.HasPrefix(text, `{"status":"`+c.answer+`","correlationId":"`) {
			t.Errorf("%s: answered %s", name, text)
		}
		var want []string
		if c.after != "" {
			want = []string{c.after}
		}
		n.wantDelivered(want...)
		n.send("a/s-1", `{"agent":"slow","skill":"look"}`)
		n.advance(20 * time.Second)
		n.restart(1) // a call keeps its parts
		n.advance(10 * time.Minute)
		if c.slow != "" {
			want = append(want, c.slow)
		}
		n.wantDelivered(want...)
		if text := n.result(n.send("d/s-1", `{"participants":["b"],"topic":"x"}`)); !strings.HasPrefix(text, `{"status":"`+c.answer+`","calls":`) {
			t.Errorf("%s: a debate is answered %s", name, text)
		}
		n.want(n.send("k/s-1", "x"), "k(yes)")
		if got != "x" {
			t.Errorf("%s: call_agent sends %s", name, got)
		}
		if j := n.journalOf(alice); len(j.Mail.Rows) > 0 || n.expiryIndex[alice] != 0 {
			t.Errorf("%s: %d rows are left", name, len(j.Mail.Rows))
		}
	}
}

// A callee that never answers ends the call also without timeouts.
func TestCallWithoutTimeoutsEnds(t *testing.T) {
	n := newNode(t, 1, agent("a", sending()), agent("b", echo()))
	n.routing = dispatcher.Routing{NoTimeouts: true}
	n.restart(1)
	n.drop = func(e actor.Envelope) bool { return e.Body.Name() == "answered" }
	n.send("a/s-1", askB)
	n.advance(n.limits.AgentCallTimeoutMax - time.Second)
	n.wantNone()
	n.advance(time.Minute)
	n.wantDelivered("skill_timeout timeout ")
}

// wantNone checks that no outcome was delivered.
func (n *node) wantNone() {
	n.t.Helper()
	if got := n.delivered(alice); len(got) > 0 {
		n.t.Errorf("delivered %q, want nothing", got)
	}
}
