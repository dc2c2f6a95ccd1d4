// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
)

func interleaved(d *actor.Definition) { d.Turns = actor.Interleaved }
func volatile(d *actor.Definition)    { d.Durability = actor.Volatile }

func withKey(key string) func(*actor.Call) {
	return func(c *actor.Call) { c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: key} }
}

// sleepByLength returns an agent that sleeps ten seconds for "long" and one second
// for any other message.
func sleepByLength() script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if actor.TextOf(b.Call.Parts) == "long" {
			return sleeping(10*time.Second)(b, answers)
		}
		return sleeping(time.Second)(b, answers)
	}
}

func TestInterleavedTurnsOvertake(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*actor.Definition)
		short  string
	}{{"serial", func(*actor.Definition) {}, "nothing"}, {"interleaved", interleaved, "slept"}} {
		n := newNode(t, 1, agent("a", sleepByLength(), test.change))
		long, short := n.send("a", "long"), n.send("a", "short")
		n.advance(2 * time.Second)
		if got := n.result(short); got != test.short {
			t.Errorf("%s: short message: got %q, want %q", test.name, got, test.short)
		}
		n.advance(20 * time.Second)
		n.want(long, "slept")
		n.want(short, "slept")
	}
}

// Actors in memory adopt a changed turn mode of their agent once no older turn is
// running.
func TestTurnModeChangeAppliesToLoadedActors(t *testing.T) {
	for _, test := range []struct {
		before, after func(*actor.Definition)
		short         string
	}{{interleaved, func(*actor.Definition) {}, "nothing"}, {func(*actor.Definition) {}, interleaved, "slept"}} {
		n := newNode(t, 1, agent("a", sleepByLength(), test.before))
		first := n.send("a", "long")
		n.agents = []actor.Definition{agent("a", sleepByLength(), test.after, func(d *actor.Definition) { d.Hash = actor.HashOf([]byte("next")) })}
		n.step(n.cells[0], Agents{Definitions: n.agents})
		n.advance(20 * time.Second)
		n.want(first, "slept")
		long, short := n.send("a", "long"), n.send("a", "short")
		n.advance(2 * time.Second)
		n.want(short, test.short)
		n.advance(20 * time.Second)
		n.want(long, "slept")
		n.want(short, "slept")
	}
}

// A run whose agent is absent at a start waits for a start that has it.
func TestRunOfAbsentAgentIsParked(t *testing.T) {
	n := newNode(t, 2, agent("a", calling("b")), agent("b", sleeping(10*time.Second)))
	run, queued := n.send("a", "x"), n.send("a", "y")
	all := n.agents
	for range 2 { // a further start without it changes nothing
		n.agents = all[1:]
		n.restart(2)
		n.advance(time.Hour)
		if r := n.runs[run]; r.Status.Ended() || r.Refusal == nil || !strings.Contains(r.Refusal.Detail, "no agent a") {
			t.Fatalf("got run %+v, want a parked one", r)
		}
		n.want(n.send("a", "new"), "NotFound")
		for _, id := range []actor.CallID{run, queued} {
			retry := n.send("a", "", func(c *actor.Call) { c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpRetry, id })
			if r := n.replies[retry].Refusal; r == nil || !strings.Contains(r.Detail, "stays parked: absent: there is no agent a; start the server with the files") {
				t.Errorf("got %v", r)
			}
		}
	}
	n.agents = all
	n.restart(2)
	n.advance(time.Minute)
	for id, want := range map[actor.CallID]string{run: "a(x)", queued: "a(y)"} {
		if r := n.runs[id]; r.Status != runs.Done || r.Text == "" {
			t.Errorf("got %s %q %v, want %s", r.Status, r.Text, r.Refusal, want)
		}
	}
}

// A run that began before a start without its model waits for a start that has it. A message
// after that start fails at once.
func TestRunOfAbsentModelIsParked(t *testing.T) {
	n := newNode(t, 1, modelAgent())
	run := n.send("thinker", "why")
	absent := actor.Refuse(actor.ModelNotFound, "unknown model m")
	absent.Field = AbsentField
	n.restart(1)
	n.drain()
	n.sendOutcome(n.external[0], actor.Answer{Refusal: absent})
	n.advance(time.Hour)
	if r := n.runs[run]; r.Status.Ended() || !strings.Contains(r.Refusal.Detail, "unknown model m") {
		t.Fatalf("got run %+v, want a parked one", r)
	}
	other := n.send("thinker/other", "why")
	n.sendOutcome(n.external[1], actor.Answer{Refusal: absent})
	n.want(other, "ModelNotFound")
	n.restart(1)
	n.drain()
	n.sendOutcome(n.external[0], completion("because"))
	if r := n.runs[run]; r.Status != runs.Done || r.Text != "because" {
		t.Errorf("got %s %q", r.Status, r.Text)
	}
}

// A provider that does not know its model ends the run also after a restart.
func TestUnknownModelOfProviderEndsRun(t *testing.T) {
	n := newNode(t, 1, modelAgent())
	run := n.send("thinker", "why")
	n.restart(1)
	n.drain()
	n.sendOutcome(n.external[0], actor.Answer{Refusal: actor.Refuse(actor.ModelNotFound, "no such model")})
	if r := n.runs[run]; !r.Status.Ended() {
		t.Errorf("got %s", r.Status)
	}
}

// A volatile actor keeps the newest outcomes of calls with keys, up to
// keyedOutcomeBytesMax.
func TestVolatileKeyedOutcomesAreBounded(t *testing.T) {
	n := newNode(t, 1, agent("a", echo(), volatile))
	large := strings.Repeat("x", 1<<19)
	var runs []actor.CallID
	for i := range 20 {
		runs = append(runs, n.send("a", large, withKey(fmt.Sprint(i))))
	}
	if held := n.cells[0].actors.find(actor.NewID("a", "")).journal.OutcomeBytes(); held > keyedOutcomeBytesMax || held < keyedOutcomeBytesMax/2 {
		t.Errorf("got %d bytes of outcomes", held)
	}
	for i, again := range map[int]bool{19: true, 0: false} {
		if got := n.replies[n.send("a", large, withKey(fmt.Sprint(i)))].Run == runs[i]; got != again {
			t.Errorf("key %d: got the same run: %v", i, got)
		}
	}
}

func TestDivergentReplayParksRun(t *testing.T) {
	n := newNode(t, 1, agent("a", calling("b")), agent("b", sleeping(20*time.Second)), agent("c", echo()))
	n.send("a", "x", withKey("k"))
	n.agents[0] = agent("a", calling("c")) // another implementation under the same name
	n.restart(1)
	n.advance(30 * time.Second)
	id := n.send("a", "x", withKey("k"))
	n.want(id, "nothing")
	parked := ""
	for _, r := range n.cells[0].actors.find(actor.NewID("a", "")).journal.Runs {
		parked = r.Parked
	}
	if !strings.Contains(parked, "step 1") || !strings.Contains(parked, "call b") || !strings.Contains(parked, "call c") {
		t.Errorf("got park detail %q", parked)
	}
	n.advance(24 * time.Hour)
	if n.want(id, "nothing"); n.cells[0].actors.find(actor.NewID("a", "")).journal.Runs[0].Parked != parked {
		t.Error("the parked run has ended in time")
	}
}

func TestVolatileActorsWriteNoEntries(t *testing.T) {
	n := newNode(t, 2, agent("a", calling("b"), volatile), agent("b", echo(), volatile), agent("c", calling("a")))
	n.want(n.send("a", "x"), "a(b:x)")
	if n.entries != 0 {
		t.Errorf("got %d entries, want 0", n.entries)
	}
	n.want(n.send("c", "x"), "c(a(b:x))")
	if n.entries == 0 {
		t.Error("a journaled caller wrote no entry")
	}
}

// TestResponseGate checks which responses may leave before the log is durable.
func TestResponseGate(t *testing.T) {
	for _, test := range []struct {
		name   string
		call   func(*actor.Call)
		env    func(*actor.Envelope)
		agent  string
		gated  bool
		effect string
	}{
		{"reply of a journaled agent", nil, nil, "a", true, "Respond"},
		{"reply of a volatile agent", nil, nil, "v", false, "Respond"},
		{"reply of a volatile agent to a durable request", nil, func(e *actor.Envelope) { e.Durable = true }, "v", true, "Respond"},
		{"refusal without an entry", nil, nil, "missing", false, "Respond"},
	} {
		n := newNode(t, 1, agent("a", echo()), agent("v", echo(), volatile))
		n.drain()
		c := n.cells[0]
		callCount++
		id := actor.NewCallID(n.now, 1, callCount)
		call := actor.Call{ID: id, Root: id, To: actor.NewID(test.agent, ""), Operation: "o", Kind: actor.Waiting, Lane: actor.Normal, Attempt: 1,
			Origin: actor.Human, Left: time.Minute, Via: c.self, Budget: 1}
		env := actor.Envelope{From: actor.Address{Node: "other", Incarnation: 1}, To: call.To, Epoch: n.epoch, Body: actor.Request{Call: call}}
		c.waiters.byCall[id] = &waiter{call: &call}
		if test.env != nil {
			test.env(&env)
		}
		effects := c.Step(n.now, Deliver{env}).Effects
		for len(effects) > 0 {
			e := effects[0]
			effects = effects[1:]
			if load, ok := e.Op.(Load); ok {
				effects = append(effects, c.Step(n.now, Loaded{Actor: load.Actor, Epoch: load.Epoch}).Effects...)
			}
			if name := strings.TrimPrefix(fmt.Sprintf("%T", e.Op), "runtime."); name == test.effect && e.Gated != test.gated {
				t.Errorf("%s: gated %v, want %v", test.name, e.Gated, test.gated)
			}
		}
		if c.waiters.byCall[id] != nil {
			t.Errorf("%s: got no response", test.name)
		}
	}
}

func TestPoisonedCallIsRefused(t *testing.T) {
	n := newNode(t, 1, agent("a", script(func(actor.Begin, [][]actor.Answer) (actor.Action, error) { panic("agent failed") })))
	callCount++
	id := actor.NewCallID(n.now, 1, callCount)
	strikes := 0
	for range 5 {
		n.drain()
		func() {
			defer func() {
				if recover() != nil {
					if n.cells[0].FaultingCall() != id {
						t.Errorf("got faulting call %s", n.cells[0].FaultingCall())
					}
					strikes++
					n.restart(1)
				}
			}()
			n.cells[0].strikes[id] = strikes
			call := actor.Call{ID: id, Root: id, To: actor.NewID("a", ""), Operation: "o", Kind: actor.Waiting, Lane: actor.Normal, Attempt: 1, Origin: actor.Human}
			n.step(n.cells[0], Deliver{actor.Envelope{To: call.To, Body: actor.Request{Call: call}}})
			n.drain()
		}()
		if n.result(id) != "nothing" {
			break
		}
	}
	n.want(id, "Unavailable")
	if strikes != 3 {
		t.Errorf("got %d strikes, want 3", strikes)
	}
}

func TestCallTreeBudget(t *testing.T) {
	n := newNode(t, 1, agent("a", calling("b", "b", "b", "b")), agent("b", echo()))
	n.limits.CallsPerTreeMax = 3
	n.restart(1)
	n.want(n.send("a", "x"), "a(b:xb:xb:xBudget)")
}

func TestInvalidClientCallsAreRefused(t *testing.T) {
	n := newNode(t, 1, agent("a", echo()))
	chain := func(c *actor.Call) { c.Chain, c.Parent = []actor.ID{actor.NewID("b", "")}, c.ID }
	n.want(n.send("a", "x", chain), "Invalid")
	n.want(n.send("a", "x", func(c *actor.Call) { c.Kind = actor.Detached }), "Invalid")
	n.want(n.send("a", strings.Repeat("x", 1<<20)), "Invalid")
	n.want(n.send("a", "x", func(c *actor.Call) { c.Kind, c.Parent, c.Operation = actor.Signal, c.ID, "go" }), "NotFound")
}

func TestDuplicateJoinsOpenRun(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(time.Second)))
	first := n.send("a", "x", withKey("k"))
	second := n.send("a", "x", withKey("k"))
	n.want(second, "nothing")
	n.advance(2 * time.Second)
	n.want(first, "slept")
	n.want(second, "slept")
	if n.replies[second].Run != first {
		t.Error("the duplicate started a run of its own")
	}
}

func TestIdleActorIsPassivatedAndReloaded(t *testing.T) {
	n := newNode(t, 1, agent("a", echo()))
	first := n.send("a", "x", withKey("k"))
	n.advance(n.limits.PassivateAfter + time.Second)
	if n.cells[0].actors.count != 0 {
		t.Error("the idle actor is still in memory")
	}
	second := n.send("a", "x", withKey("k"))
	n.want(second, "a:x")
	if n.replies[second].Run != first {
		t.Error("the key was lost on passivation")
	}
}

// A cancel may overtake its request.
func TestCancelBeforeRequest(t *testing.T) {
	n := newNode(t, 2, agent("a", calling("b")), agent("b", echo()))
	var delayed []actor.Envelope
	n.drop = func(env actor.Envelope) bool {
		_, request := env.Body.(actor.Request)
		if request {
			delayed = append(delayed, env)
		}
		return request
	}
	id := n.send("a", "x", func(c *actor.Call) { c.Left = 500 * time.Millisecond })
	n.advance(time.Second)
	n.want(id, "Deadline")
	n.drop = nil
	for _, env := range delayed {
		n.inputs = append(n.inputs, func() { n.step(n.cells[n.cells[0].owner(n.shard(env.To)).Cell], Deliver{env}) })
	}
	n.drain()
	for _, saved := range n.log {
		for _, e := range saved.Entries {
			if e.Actor.Agent == "b" && strings.Contains(fmt.Sprintf("%T", e.Record), "Accepted") {
				t.Error("the cancelled call was accepted")
			}
		}
	}
	if len(delayed) == 0 {
		t.Error("no request was sent")
	}
}

// The callee of a tool call has the key and project of its caller, and a chain
// longer by one.
func TestCallThroughTool(t *testing.T) {
	describe := script(func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
		c := b.Call
		return actor.Complete(actor.Text(fmt.Sprintf("%s in %s below %s: %s", c.To, c.Project, actor.PathString(c.Chain), actor.TextOf(c.Parts)))), nil
	})
	tool := script(func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskTool, Name: "call_agent", Parts: []actor.Part{{Media: actor.MediaJSON,
				Bytes: []byte(`{"agent_id":"b","message":"hello","timeout_ms":1000}`)}}}}}, nil
		}
		return actor.Complete(answers[0][0].Parts), nil
	})
	n := newNode(t, 2, agent("a", tool), agent("b", describe))
	n.want(n.send("a/s", "x", func(c *actor.Call) { c.Project = "p-1" }), "b/s in p-1 below a/s: hello")
}

// No open work is lost while reads fail for some time. Only new calls are refused.
func TestFailedActorLoadIsRetried(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(20*time.Second)))
	first := n.send("a", "x", withKey("k"))
	n.failLoads = 3
	n.restart(1)
	n.drain()
	n.want(n.send("a", "y"), "nothing") // the load has failed; the call waits for the next attempt
	n.advance(25 * time.Second)
	if n.failLoads != 0 {
		t.Errorf("the load was not retried, %d failures are left", n.failLoads)
	}
	again := n.send("a", "x", withKey("k"))
	n.want(again, "slept")
	if n.replies[again].Run != first {
		t.Error("the run was started again")
	}
}

// Any output of an agent, its work or a tool leads to entries that can be read
// again, and to a defined answer for the caller. The test node decodes each entry.
func TestInvalidAgentOutputIsNeverLogged(t *testing.T) {
	const bad = "\xff\xfe"
	long := strings.Repeat("x", 2<<20)
	many := make([]string, 100)
	for i := range many {
		many[i] = bad
	}
	done := func(o actor.Outcome) script {
		return func(actor.Begin, [][]actor.Answer) (actor.Action, error) { return actor.Action{Done: &o}, nil }
	}
	asks := func(a ...actor.Ask) script {
		return func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) == 0 {
				return actor.Action{Asks: a}, nil
			}
			return actor.Complete(actor.Text(answerText(answers[0][0]))), nil
		}
	}
	work := func(text string) script {
		return asks(actor.Ask{Kind: actor.AskWork, Name: "w", Work: func(context.Context) ([]byte, error) { return []byte(text), nil }})
	}
	for name, test := range map[string]struct {
		agent script
		want  string
	}{
		"warnings":        {done(actor.Outcome{Status: actor.Partial, Parts: actor.Text("ok"), Warnings: many}), "ok"},
		"bytes":           {done(actor.Outcome{Parts: actor.Text(bad)}), bad},
		"media":           {done(actor.Outcome{Parts: []actor.Part{{Media: bad}}}), "Invalid"},
		"long":            {done(actor.Outcome{Parts: actor.Text(long)}), "Invalid"},
		"parts":           {done(actor.Outcome{Parts: make([]actor.Part, 300)}), "Invalid"},
		"no reason":       {done(actor.Outcome{Status: actor.Failed}), "Unavailable"},
		"unknown reason":  {done(actor.Outcome{Refusal: &actor.Refusal{Reason: 99, Detail: long, Chain: make([]actor.ID, 99)}}), "Unavailable"},
		"unknown ask":     {asks(actor.Ask{Kind: 99}), "Invalid"},
		"name of a sleep": {asks(actor.Ask{Kind: actor.AskSleep, Name: bad}), "Invalid"},
		"target":          {asks(actor.Ask{Kind: actor.AskCall, Name: "no agent/at all/x/y"}), "Invalid"},
		"unknown tool":    {asks(actor.Ask{Kind: actor.AskTool, Name: "nothing"}), "NotFound"},
		"long message":    {asks(actor.Ask{Kind: actor.AskCall, Name: "a", Parts: actor.Text(long)}), "Invalid"},
		"long work":       {work(long), "Invalid"},
		"bytes of work":   {work(bad), ""},
		"error": {func(actor.Begin, [][]actor.Answer) (actor.Action, error) {
			return actor.Action{}, errors.New(bad + long)
		}, "Unavailable"},
		"no asks, no outcome": {func(actor.Begin, [][]actor.Answer) (actor.Action, error) { return actor.Action{}, nil }, "Unavailable"},
	} {
		n := newNode(t, 1, agent("g", test.agent), agent("caller", calling("g")))
		id := n.send("g", "x")
		n.advance(time.Second)
		if got := n.result(id); got != test.want {
			t.Errorf("%s: got %.80q, want %q", name, got, test.want)
		}
		n.send("caller", "x")
		n.advance(time.Second)
	}
}

// The second attempt is refused while the first is still in flight. The caller MUST
// then cancel the first attempt. Otherwise a refused call would run. The budget of the
// call is not returned, since the first attempt could spend it before the cancel arrives.
func TestRefusedRetryCancelsEarlierAttempt(t *testing.T) {
	n := newNode(t, 2, agent("a", calling("b")), agent("b", sleeping(3*time.Second)))
	n.limits.MaxPendingPerActor = 1
	n.limits.CallsPerTreeMax = 9
	n.restart(2)
	n.drain()
	var delayed *actor.Envelope
	n.drop = func(env actor.Envelope) bool {
		r, ok := env.Body.(actor.Request)
		if ok && !r.Call.IsRoot() && delayed == nil {
			delayed = &env
			return true
		}
		return false
	}
	n.send("b", "holds the turn", func(c *actor.Call) { c.Left = time.Hour })
	n.send("b", "fills the mailbox")
	id := n.send("a", "x")
	n.advance(2 * time.Second)
	n.want(id, "a(Busy)")
	if got := n.replies[id].Budget; got != 4 { // 9 without the call and its share of 4
		t.Errorf("got a rest of %d calls, want 4", got)
	}
	n.advance(10 * time.Second)
	before := n.eventCounts[history.Admit]
	n.step(n.cells[n.cells[0].owner(n.shard(delayed.To)).Cell], Deliver{*delayed})
	n.drain()
	if n.eventCounts[history.Admit] != before {
		t.Error("the first attempt was accepted after the second was refused")
	}
}

// The network between nodes may duplicate a request: one copy is refused and the other
// accepted. The call then returns no budget, since the run of the copy may spend it.
func TestCallRefusedByAnotherNodeReturnsNoBudget(t *testing.T) {
	for _, test := range []struct {
		node   actor.NodeID
		reason actor.Reason
		want   uint32
	}{
		{"n", actor.Busy, 8}, // 9 without the call
		{"m", actor.Busy, 4}, // 9 without the call and its share of 4
		{"m", actor.NotFound, 4},
		{"m", actor.Rejected, 8}, // a run was refused, and has ended
	} {
		n := newNode(t, 2, agent("a", calling("b")), agent("b", sleeping(time.Second)))
		n.limits.CallsPerTreeMax = 9
		n.restart(2)
		n.drain()
		var request *actor.Envelope
		n.drop = func(env actor.Envelope) bool {
			r, ok := env.Body.(actor.Request)
			if ok && !r.Call.IsRoot() {
				request = &env
			}
			return ok && !r.Call.IsRoot()
		}
		id := n.send("a", "x")
		n.drain()
		call := request.Body.(actor.Request).Call
		reply := actor.Fail(call.ID, actor.Refuse(test.reason, "refused"))
		if reply.Budget = call.Budget; test.reason == actor.Busy {
			reply.Refusal.RetryAfter = time.Second
		}
		caller, _ := call.Caller()
		owner := n.cells[0].owner(n.shard(caller))
		n.step(n.cells[owner.Cell], Deliver{actor.Envelope{From: actor.Address{Node: test.node}, To: caller, Epoch: owner.Epoch, Body: actor.Answered{Reply: reply}}})
		n.drain()
		if got := n.replies[id].Budget; got != test.want {
			t.Errorf("%s by node %s: got a rest of %d calls, want %d", test.reason, test.node, got, test.want)
		}
	}
}

// An outcome may arrive while its actor is still being loaded. The driver keeps
// outcomes of effects of the previous incarnation until the actor is loaded.
func TestAwaitFollowsActorLoad(t *testing.T) {
	a := actor.NewID("a", "")
	n := newNode(t, 1, agent("a", script(func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskWork, Name: "w", Work: func(context.Context) ([]byte, error) { return nil, nil }}}}, nil
		}
		return actor.Complete(actor.Text(answerText(answers[0][0]))), nil
	})))
	n.drain()
	callCount++
	call := actor.Call{ID: actor.NewCallID(n.now, 99, callCount), To: a, Operation: "o", Kind: actor.Waiting, Lane: actor.Normal, Attempt: 1, Origin: actor.Human}
	call.Root = call.ID
	withKey("k")(&call)
	n.step(n.cells[0], Deliver{actor.Envelope{To: a, Body: actor.Request{Call: call}}})
	n.inputs[0]() // Loaded: the turn starts its work
	n.inputs = nil
	n.restart(1)
	n.cells[0] = NewCell(Config{Self: actor.Address{Node: "n", Incarnation: 9}, Seed: 9, Tools: n.tools})
	effect := actor.EffectID{Run: call.ID, Step: 1}
	n.inputs = nil
	for _, in := range []Input{Limits{n.limits}, Agents{Definitions: n.agents, Former: n.former}, Owners{n.table(1)}, Boot{Running: []actor.EffectID{effect}}} {
		n.step(n.cells[0], in)
	}
	if len(n.awaited) > 0 {
		t.Error("the outcome was awaited before its actor was loaded")
	}
	n.drain()
	if len(n.awaited) != 1 || n.awaited[0] != effect {
		t.Fatalf("got awaited effects %v", n.awaited)
	}
	n.step(n.cells[0], Outcome{ID: effect, Attempt: 1, Answer: actor.Answer{Parts: actor.Text("done")}})
	n.drain()
	n.want(n.send("a", "", withKey("k")), "done")
}

// stopCounter counts the turns that were stopped.
type stopCounter struct {
	actor.Turn
	count *int
}

func (s stopCounter) Stop() { *s.count++ }

type stopCountingAgent struct{ count *int }

func (s stopCountingAgent) Begin(b actor.Begin) actor.Turn {
	return stopCounter{sleeping(time.Hour).Begin(b), s.count}
}

func TestAbandonStopsTurns(t *testing.T) {
	count := 0
	n := newNode(t, 1, actor.Definition{Name: "a", Hash: actor.HashOf([]byte("a")), Behavior: stopCountingAgent{&count}})
	n.send("a/1", "x")
	n.send("a/2", "x")
	n.cells[0].Abandon()
	if count != 2 {
		t.Errorf("%d turns were stopped, want 2", count)
	}
}

// A shard is lost and regained while one of its actors is being loaded. The result
// of the earlier load is stale.
func TestLoadFromOldEpochIsIgnored(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(time.Hour)))
	n.drain()
	c := n.cells[0]
	n.paused = true
	n.send("a", "x")
	n.inputs[0]()
	n.paused, n.inputs = false, nil // the answer to the load is still in flight
	old := n.epoch
	n.step(c, Owners{})
	n.epoch++
	n.step(c, Owners{n.table(1)})
	n.inputs = nil
	n.send("a", "y")
	n.inputs = nil
	c.Step(n.now, Loaded{Actor: actor.NewID("a", ""), Epoch: old})
	if c.actors.find(actor.NewID("a", "")).loaded {
		t.Error("a load from another epoch was accepted")
	}
}
