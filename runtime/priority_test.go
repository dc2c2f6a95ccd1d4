// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/signals"
)

func withLane(l actor.Lane) func(*actor.Call) { return func(c *actor.Call) { c.Lane = l } }

// showLane returns an agent that completes with the priority of its call.
func showLane() script {
	return func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
		return actor.Complete(actor.Text(fmt.Sprintf("%s:%s", b.Call.To.Agent, b.Call.Lane.Priority()))), nil
	}
}

// A child inherits the priority of its caller, which may lower it and never raise it.
// The priority survives a restart.
func TestChildInheritsPriority(t *testing.T) {
	for _, durability := range []func(*actor.Definition){func(*actor.Definition) {}, volatile} {
		for lane := actor.High; lane <= actor.Low; lane++ {
			for asked := actor.Lane(0); asked <= actor.Low; asked++ {
				a := agent("a", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
					if len(answers) == 0 {
						return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "b", Lane: asked}}}, nil
					}
					return actor.Complete(answers[0][0].Parts), nil
				}, durability)
				b := agent("b", func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
					if len(answers) == 0 {
						return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: time.Second}}}, nil
					}
					return showLane()(b, answers)
				}, durability)
				n := newNode(t, 2, a, b)
				id := n.send("a", "x", withLane(lane))
				n.advance(2 * time.Second)
				want := lane
				if asked > lane { // a larger lane is a lower priority
					want = asked
				}
				if n.want(id, "b:"+want.Priority()); t.Failed() {
					t.Fatalf("called with %s, asked for %s", lane, asked)
				}
			}
		}
	}
}

// A retried attempt has the priority of the first.
func TestResentCallKeepsPriority(t *testing.T) {
	lost := false
	n := newNode(t, 2, agent("a", fanOut("b")), agent("b", showLane()))
	n.drop = func(env actor.Envelope) bool {
		if r, ok := env.Body.(actor.Request); ok && r.Call.To.Agent == "b" && !lost {
			lost = true
			return true
		}
		return false
	}
	id := n.send("a", "x", withLane(actor.Low))
	n.restart(2)
	n.advance(time.Minute)
	if r := n.runs[id]; !lost || r.Text != "a(b:low )" {
		t.Errorf("got %q (first attempt lost: %v)", r.Text, lost)
	}
}

func TestDefaultPriorityIsThatOfTheAgent(t *testing.T) {
	background := func(d *actor.Definition) { d.Lane = actor.Low }
	n := newNode(t, 1, agent("a", showLane(), background), agent("b", showLane()), agent("c", fanOut("a")))
	n.want(n.send("a", "x", withLane(0)), "a:low")
	n.want(n.send("a", "x", withLane(actor.High)), "a:high")
	n.want(n.send("b", "x", withLane(0)), "b:normal")
	n.want(n.send("c", "x", withLane(0)), "c(a:normal )")
	high := n.send("a", "x", withLane(actor.High))
	if r := n.runs[high]; r.Priority != "high" {
		t.Errorf("got priority %q of the run, want high", r.Priority)
	}
}

func TestCallbackLowersPriority(t *testing.T) {
	n := newNode(t, 1, externalAgent(false), agent("helper", showLane()))
	root := n.send("worker", "go", withLane(actor.Normal))
	for lane, want := range map[actor.Lane]string{0: "helper:normal", actor.High: "helper:normal", actor.Normal: "helper:normal", actor.Low: "helper:low"} {
		n.want(n.send("worker", "", func(c *actor.Call) {
			c.Kind, c.Operation, c.Parent, c.Lane = actor.Signal, signals.OpCallAgent, root, lane
			c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(fmt.Sprintf(`{"agent_id":"helper/%d","message":""}`, lane))}}
		}), want)
	}
}

// The default priority of an agent is for its clients. It does not lower a call that
// its external agent makes for a run.
func TestCallbackIgnoresDefaultPriority(t *testing.T) {
	n := newNode(t, 1, externalAgent(false), agent("helper", showLane()))
	n.agents[0].Lane = actor.Low
	n.setAgents(n.agents...)
	root := n.send("worker", "go", withLane(actor.Normal))
	n.want(n.send("worker", "", func(c *actor.Call) {
		c.Kind, c.Operation, c.Parent, c.Lane = actor.Signal, signals.OpCallAgent, root, 0
		c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"agent_id":"helper","message":""}`)}}
	}), "helper:normal")
}

// A run shows its priority and its project before it starts.
func TestQueuedRunShowsPriorityAndProject(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(time.Second)))
	n.send("a", "x")
	queued := n.send("a", "x", withLane(actor.Low), func(c *actor.Call) { c.Project = "p-1" })
	if r := n.runs[queued]; r.Priority != "low" || r.Project != "p-1" {
		t.Errorf("got priority %q and project %q, want low and p-1", r.Priority, r.Project)
	}
}

func TestChildHasProjectOfItsCaller(t *testing.T) {
	n := newNode(t, 2, agent("a", fanOut("b")), agent("b", func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
		return actor.Complete(actor.Text(b.Call.Project)), nil
	}))
	n.want(n.send("a", "x", func(c *actor.Call) { c.Project = "p-1" }), "a(p-1 )")
}

func TestQueuedCallsAreCountedByLane(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(time.Second)))
	for _, lane := range []actor.Lane{actor.Normal, actor.Low, actor.High, actor.Low} {
		n.send("a", "x", withLane(lane))
	}
	if got := n.cells[0].Size().ByLane; got != [actor.Low]int{1, 0, 2} {
		t.Errorf("got %v queued calls by lane, want 1 0 2", got)
	}
	n.advance(time.Minute)
	if got := n.cells[0].Size().ByLane; got != [actor.Low]int{} {
		t.Errorf("got %v queued calls by lane, want none", got)
	}
}
