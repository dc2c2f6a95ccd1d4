// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// accountAgent returns the agent of the accounts. It grants as many draws as are named; 0 is any number.
func accountAgent(day *actor.Purse, most int64) actor.Definition {
	return agent(actor.AccountAgent, func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
		var a actor.Account
		for _, item := range b.ActorState {
			p, err := actor.DecodePurse(item.Value)
			if err != nil {
				return actor.Action{}, err
			}
			if item.Name == "messages" {
				a.Messages = p.Tokens
			} else {
				a.Drawn = *p
			}
		}
		answer := &a.Drawn
		if b.Call.Operation == actor.OpDraw {
			granted, ok := a.Draw(b.Call.Purse, day, most)
			if !ok {
				refusal := actor.Refuse(actor.Budget, "no more messages")
				refusal.RetryAfter = time.Hour
				return actor.Action{Done: &actor.Outcome{Status: actor.Failed, Refusal: refusal}}, nil
			}
			answer = granted
		} else {
			a.Return(b.Call.Purse)
		}
		action := actor.Complete([]actor.Part{{Media: actor.MediaPurse, Bytes: actor.EncodePurse(answer)}})
		action.StateUpdates = []actor.StateItem{{Name: "drawn", Value: actor.EncodePurse(&a.Drawn)}}
		if most > 0 {
			counted := a.Drawn
			counted.Tokens = a.Messages
			action.StateUpdates = append(action.StateUpdates, actor.StateItem{Name: "messages", Value: actor.EncodePurse(&counted)})
		}
		return action, nil
	}, func(d *actor.Definition) { d.System = true })
}

// drawnBy returns what the account of a user has granted and not got back.
func (n *node) drawnBy(tenant string) actor.Purse {
	j, err := store.Fold(n.log[accountOf(tenant)])
	if err != nil {
		n.t.Fatal(err)
	}
	if len(j.ActorState) == 0 {
		return actor.Purse{}
	}
	p, err := actor.DecodePurse(j.ActorState[0].Value)
	if err != nil {
		n.t.Fatal(err)
	}
	return *p
}

// newDayNode returns a node with a budget of tokens for a user and a day.
func newDayNode(t *testing.T, cells int, day, tree *actor.Purse, agents ...actor.Definition) *node {
	n := newNode(t, cells, append(agents, accountAgent(day, 0))...)
	n.spending = Spending{Tree: tree, Day: day}
	n.restart(cells)
	return n
}

// of sets the user of a call.
func of(tenant string) func(*actor.Call) {
	return func(c *actor.Call) { c.To.Tenant = tenant }
}

// The trees of a user share the budget of a day. Each draws a part, returns the rest, and the next day begins anew.
func TestBudgetOfDay(t *testing.T) {
	for _, kind := range []func(*actor.Definition){func(*actor.Definition) {}, volatile} {
		n := newDayNode(t, 2, tokens(400), nil, agent("thinker", thinking(1), kind))
		day := actor.DayOf(n.now)
		first, second := n.send("thinker/1", "go", of("anna")), n.send("thinker/2", "go", of("anna"))
		if got := n.drawnBy("anna"); got.Tokens != 200 || got.Day != day { // a quarter each
			t.Fatalf("%+v drawn", got)
		}
		n.answerModels(func(int, externalCall) actor.Answer { return spent(30, 0) })
		n.want(first, "ok")
		n.want(second, "ok")
		if got := n.drawnBy("anna"); got.Tokens != 60 {
			t.Errorf("%+v drawn after 60 were spent", got)
		}
		var all []actor.CallID
		for i := range 6 {
			all = append(all, n.send(fmt.Sprint("thinker/", i), "go", of("anna")))
		}
		if got := n.drawnBy("anna"); got.Tokens != 60+3*100 { // the others got 40 or nothing, which is too little, and have returned it
			t.Errorf("%+v drawn by six at once", got)
		}
		other := n.send("thinker", "go", of("ben"))
		n.answerModels(func(int, externalCall) actor.Answer { return spent(50, 0) })
		n.want(other, "ok")
		answers := map[string]int{}
		for _, id := range all {
			answers[n.result(id)]++
		}
		if answers["Budget"] != 3 || answers["ok"] != 3 {
			t.Errorf("got %v", answers)
		}
		if got := n.drawnBy("anna"); got.Tokens != 60+3*50 {
			t.Errorf("%+v drawn at the end", got)
		}
		n.advance(24 * time.Hour)
		next := n.send("thinker", "go", of("anna"))
		n.answerModels(func(int, externalCall) actor.Answer { return spent(10, 0) })
		n.want(next, "ok")
		if got := n.drawnBy("anna"); got.Tokens != 10 || got.Day != day+1 {
			t.Errorf("%+v drawn the next day", got)
		}
	}
}

// A purse that is smaller for other reasons is what a tree draws. Money and tokens are apart.
func TestDrawIsBounded(t *testing.T) {
	for _, test := range []struct {
		name      string
		day, tree *actor.Purse
		own       *actor.Purse
		want      actor.Purse
	}{
		{"by the tree", tokens(400), tokens(70), nil, actor.Purse{Tokens: 70}},
		{"by the agent", tokens(400), tokens(90), tokens(60), actor.Purse{Tokens: 60}},
		{"by the day", tokens(400), tokens(900), nil, actor.Purse{Tokens: 400}},
		{"a tree of tokens and a day of money", micros(400), tokens(60), nil, actor.Purse{Micros: 100}},
	} {
		n := newDayNode(t, 1, test.day, test.tree, agent("thinker", thinking(1), func(d *actor.Definition) { d.Purse = test.own }))
		n.spending.Models = map[string]ModelCost{"m": {Price: upstream.Price{Known: true}}}
		n.restart(1)
		n.send("thinker", "go", of("anna"))
		if got := n.drawnBy("anna"); got.Tokens != test.want.Tokens || got.Micros != test.want.Micros {
			t.Errorf("%s: %+v drawn", test.name, got)
		}
	}
}

// A message beyond the number of a day fails when its turn first asks a model or an agent. Those of other users, of other
// days, of calls and of outcomes do not count.
func TestMessagesOfDay(t *testing.T) {
	for _, kind := range []func(*actor.Definition){func(*actor.Definition) {}, volatile} {
		unlimited := &actor.Purse{Tokens: actor.NoLimit, Micros: actor.NoLimit}
		n := newNode(t, 2, agent("top", calling("thinker"), kind), agent("thinker", thinking(1), kind), accountAgent(unlimited, 2))
		n.spending = Spending{Day: unlimited}
		n.restart(2)
		answer := func() { n.answerModels(func(int, externalCall) actor.Answer { return spent(30, 0) }) }
		first := n.send("top", "go", of("anna"))
		answer()
		second, third, other := n.send("thinker/1", "go", of("anna")), n.send("thinker/1", "go", of("anna")), n.send("top", "go", of("ben"))
		answer()
		answer()
		n.want(first, "top(ok)")
		n.want(second, "ok")
		n.want(third, "Budget")
		n.want(other, "top(ok)")
		fourth := n.send("thinker/2", "go", of("anna"))
		if n.want(fourth, "Budget"); len(n.external) != 3 {
			t.Errorf("%d requests of messages that were refused", len(n.external))
		}
		n.advance(24 * time.Hour)
		next := n.send("thinker/2", "go", of("anna"))
		answer()
		n.want(next, "ok")
	}
}

// The refusal of a message is not stored: after a restart the account is asked again, and refuses again.
func TestRefusedMessageOverRestart(t *testing.T) {
	n := newNode(t, 1, agent("thinker", thinking(1)), accountAgent(tokens(400), 1))
	n.spending = Spending{Day: tokens(400)}
	n.restart(1)
	first := n.send("thinker", "go", of("anna"))
	second := n.send("thinker", "go", of("anna")) // waits for the turn of the first
	n.restart(1)
	n.advance(time.Second)
	n.answerModels(func(int, externalCall) actor.Answer { return spent(30, 0) })
	if a, b := n.runs[first], n.runs[second]; a.Text != "ok" || b.Refusal == nil || b.Refusal.Reason != actor.Budget {
		t.Errorf("%q, then %v", a.Text, b.Refusal)
	}
}

// A message that is refused for the day is asked for again on the next one under the same idempotency key, also after a restart.
// Its answer is then that of all repeats, as is a refusal that does not depend on the day.
func TestRefusedMessageIsRepeatedUnderItsKey(t *testing.T) {
	for name, kind := range map[string]func(*actor.Definition){"journaled": func(*actor.Definition) {}, "volatile": volatile} {
		n := newNode(t, 1, agent("thinker", thinking(1), kind), accountAgent(tokens(400), 1))
		n.spending = Spending{Day: tokens(400)}
		n.restart(1)
		answer := func() { n.answerModels(func(int, externalCall) actor.Answer { return spent(30, 0) }) }
		first := n.send("thinker", "go", of("anna"), withKey("one"))
		answer()
		n.want(first, "ok")
		refused := []actor.CallID{n.send("thinker", "go", of("anna"), withKey("two")), n.send("thinker", "go", of("anna"), withKey("two"))}
		for _, id := range refused {
			if n.want(id, "Budget"); n.replies[id].Run != id {
				t.Errorf("%s: a repeat on the same day got the refusal of an earlier run", name)
			}
		}
		n.advance(12 * time.Hour) // the next day has begun, and the key is remembered for 24 hours
		if n.restart(1); actor.DayOf(n.now) == actor.DayOf(n.now.Add(-12*time.Hour)) {
			t.Fatal("the day has not ended")
		}
		n.drain()
		repeated := n.send("thinker", "go", of("anna"), withKey("two"))
		answer()
		again := n.send("thinker", "go", of("anna"), withKey("two"))
		n.want(repeated, "ok")
		if n.want(again, "ok"); n.replies[again].Run != repeated {
			t.Errorf("%s: the repeat of an answered message is a run of its own", name)
		}
		if old := n.send("thinker", "go", of("anna"), withKey("one")); name == "journaled" && n.replies[old].Run != first { // a restart loses those of volatile agents
			t.Errorf("%s: the key of the first message was forgotten", name)
		}
	}
}

// A request says of which day the budget is that does not suffice.
func TestBudgetOfDayIsNamed(t *testing.T) {
	n := newDayNode(t, 1, tokens(40), nil, agent("thinker", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return thinking(1)(actor.Begin{}, nil)
		}
		return actor.Complete(actor.Text(answers[0][0].Refusal.Detail)), nil
	}))
	id := n.send("thinker", "go", of("anna"))
	if got := n.runs[id].Text; !strings.HasSuffix(got, "up to 50 tokens, and 10 are left of the budget of the run, the least of its agent's, its message's and what its user had left for 2023-11-14 (UTC); max_tokens of the agent or model bounds its answers") {
		t.Errorf("got %q", got)
	}
}

// A draw is repeated until it is answered, and granted once, whatever is lost.
func TestDrawIsRepeated(t *testing.T) {
	for _, lost := range []string{"request", "reply", "both", "return", "nothing, but the node stops"} {
		n := newDayNode(t, 2, tokens(400), nil, agent("thinker", thinking(1)))
		count := 0
		n.drop = func(env actor.Envelope) bool {
			r, isRequest := env.Body.(actor.Request)
			_, isReply := env.Body.(actor.Answered)
			draws := isRequest && r.Call.Operation == actor.OpDraw
			returns := isRequest && r.Call.Operation == actor.OpReturn
			if count++; count > 4 {
				return false
			}
			return draws && (lost == "request" || lost == "both") || isReply && env.To.Tenant == "anna" && (lost == "reply" || lost == "both") || returns && lost == "return"
		}
		id := n.send("thinker", "go", of("anna"))
		if lost == "nothing, but the node stops" {
			n.restart(2)
		}
		n.advance(10 * time.Second)
		if len(n.external) != 1 || n.drawnBy("anna").Tokens != 100 {
			t.Fatalf("%s: %d requests, %+v drawn", lost, len(n.external), n.drawnBy("anna"))
		}
		if lost == "nothing, but the node stops" {
			n.restart(2)
			n.advance(10 * time.Second)
		}
		n.answerModels(func(int, externalCall) actor.Answer { return spent(30, 0) })
		if lost == "nothing, but the node stops" {
			n.restart(2)
		}
		n.advance(time.Hour)
		if n.runs[id].Text != "ok" || n.drawnBy("anna").Tokens != 30 {
			t.Errorf("%s: %q, %+v drawn", lost, n.runs[id].Text, n.drawnBy("anna"))
		}
		if all, _ := PendingCalls(n.cells[0], "anna", ""); len(all) > 0 {
			t.Errorf("%s: the return is listed as a pending call: %v", lost, all)
		}
	}
}

// Random trees of two users never spend more than their day, over restarts too, and what was not spent is drawn no longer.
func TestUsersNeverSpendMoreThanTheirDay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		day := tokens(rapid.Int64Range(1, 1000).Draw(rt, "day"))
		var tree *actor.Purse
		if rapid.Bool().Draw(rt, "trees are limited") {
			tree = tokens(rapid.Int64Range(1, 600).Draw(rt, "tree"))
		}
		kind := func(*actor.Definition) {}
		if rapid.IntRange(0, 3).Draw(rt, "volatile") == 0 {
			kind = volatile
		}
		thinks := agent("thinks", thinking(rapid.IntRange(0, 3).Draw(rt, "requests")), kind)
		n := newDayNode(t, 2, day, tree, thinks, agent("asks", func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) == 0 {
				return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "thinks/" + b.Call.To.Key, Timeout: time.Hour}, {Kind: actor.AskModel, Name: "m", PromptTokens: 10, AnswerTokens: 40, Body: []byte("{}")}}}, nil
			}
			return actor.Complete(actor.Text("done")), nil
		}, kind))
		took, restarts := map[string]int64{}, 0
		sent := 0
		for sent < 6 || len(n.external) > 0 {
			switch action := rapid.IntRange(0, 9).Draw(rt, "action"); {
			case action < 4 && sent < 6:
				n.send(fmt.Sprintf("%s/%d", rapid.SampledFrom([]string{"thinks", "asks"}).Draw(rt, "agent"), sent), "", of(rapid.SampledFrom([]string{"anna", "ben"}).Draw(rt, "user")))
				sent++
			case action == 4 && restarts < 3:
				restarts++
				n.restart(2)
				n.advance(5 * time.Second)
			case len(n.external) > 0:
				o := n.external[0]
				n.external = n.external[1:]
				used := rapid.Int64Range(1, 50).Draw(rt, "took")
				took[o.effect.Op.(Model).Call.To.Tenant] += used
				n.sendOutcome(o, spent(used, 0))
				n.advance(time.Second)
			}
		}
		n.advance(time.Minute)
		for _, user := range []string{"anna", "ben"} {
			got := n.drawnBy(user).Tokens
			if took[user] > day.Tokens {
				rt.Fatalf("%s spent %d of %d", user, took[user], day.Tokens)
			}
			// A volatile run that a crash ends keeps what it has drawn, as does one whose callee was one.
			if exact := restarts == 0 || thinks.Durability == actor.Journaled; exact && got != took[user] || got < took[user] {
				rt.Fatalf("%s spent %d, and has drawn %d", user, took[user], got)
			}
		}
	})
}

// What a run leaves to the turns for its detached calls stays drawn until they have ended.
func TestHeirsReturnPurse(t *testing.T) {
	n := newDayNode(t, 1, tokens(1600), nil, agent("asker", sending()), agent("thinker", thinking(1)))
	n.send("asker", `{"agent":"thinker","input":{},"skill":"x"}`, of("anna"))
	if got := n.drawnBy("anna").Tokens; got != 400 || len(n.external) != 1 {
		t.Fatalf("%d drawn, %d requests", got, len(n.external))
	}
	n.answerModels(func(int, externalCall) actor.Answer { return spent(7, 0) })
	n.advance(time.Second)
	if got := n.drawnBy("anna").Tokens; got != 7 {
		t.Errorf("%d drawn after the outcome", got)
	}
	if !slices.ContainsFunc(n.cells[0].actors.ordered(), func(a *activation) bool { return a.id.Agent == "asker" && len(a.journal.Mail.Rows) == 0 }) {
		t.Error("a row is left")
	}
}

// What was not drawn is not returned, nor is nothing, nor anything to accounts that the configuration has no longer.
func TestWhatIsNotReturned(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, after Spending
		drawn         int64
	}{
		{"the run began without a budget of the day", Spending{Tree: tokens(100)}, Spending{Tree: tokens(100), Day: tokens(400)}, 0},
		{"nothing is left", Spending{Day: tokens(200)}, Spending{Day: tokens(200)}, 50},
		{"there is no budget of the day any longer", Spending{Day: tokens(400)}, Spending{}, 100},
	} {
		n := newDayNode(t, 1, tokens(400), nil, agent("thinker", thinking(1)))
		n.spending = test.before
		n.restart(1)
		id := n.send("thinker", "go", of("anna"))
		n.spending = test.after
		n.restart(1)
		n.advance(5 * time.Second)
		n.answerModels(func(int, externalCall) actor.Answer { return spent(50, 0) })
		n.advance(time.Second)
		if got := n.drawnBy("anna").Tokens; n.runs[id].Text != "ok" || got != test.drawn || n.eventCounts[history.Detach] != 0 {
			t.Errorf("%s: %q, %d drawn, %d returns", test.name, n.runs[id].Text, got, n.eventCounts[history.Detach])
		}
	}
}

// Returns that nobody takes are bounded, as are the detached calls of an actor.
func TestReturnsAreBounded(t *testing.T) {
	n := newDayNode(t, 1, tokens(1_000_000), tokens(60), agent("thinker", thinking(1)))
	n.drop = func(env actor.Envelope) bool {
		r, ok := env.Body.(actor.Request)
		return ok && r.Call.Operation == actor.OpReturn
	}
	for range store.PendingMax + 3 {
		n.send("thinker", "go", of("anna"))
		n.answerModels(func(int, externalCall) actor.Answer { return spent(50, 0) })
		n.external = nil
	}
	if rows := len(n.journalOf(actor.ID{Tenant: "anna", Agent: "thinker", Key: actor.DefaultKey}).Mail.Rows); rows != store.PendingMax {
		t.Errorf("%d rows, want %d", rows, store.PendingMax)
	}
	n.drop = nil
	n.advance(2 * time.Minute)
	if got := n.drawnBy("anna").Tokens; got != 50*(store.PendingMax+3)+3*10 { // three kept what they had left
		t.Errorf("%d drawn", got)
	}
}

// reminding sets a reminder for a message "go", asks a model, and answers other messages.
func reminding(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
	if len(answers) == 0 && actor.TextOf(b.Call.Parts) == "go" {
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskTool, Name: tools.Remind, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"text":"x","after":3600000}`)}}},
			{Kind: actor.AskModel, Name: "m", PromptTokens: 10, AnswerTokens: 40, Body: []byte("{}")}}}, nil
	}
	text := "ok"
	if len(answers) > 0 {
		text = detachedText(answers[0][0])
	}
	return actor.Complete(actor.Text(text)), nil
}

// What is left for turns that never come, or come later, can be drawn again.
func TestRestComesBack(t *testing.T) {
	call := `{"agent":"thinker","input":{},"skill":"x"`
	failing := func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return thinking(1)(b, answers)
		}
		return actor.Action{}, actor.Refuse(actor.Unavailable, "no")
	}
	for _, test := range []struct {
		name    string
		asker   script
		thinker script
		message string
		then    func(n *node)
		want    int64 // drawn; 7 for each request
	}{
		{"a silent call", sending(), thinking(1), call + `,"timeoutSeconds":0}`, nil, 7},
		{"a late answer", sending(), thinking(1), call + `,"timeoutSeconds":1}`, func(n *node) { n.advance(5 * time.Second) }, 7},
		{"a callee that fails", sending(), failing, call + "}", nil, 7},
		{"outcomes of which one turn reads all", sending(), thinking(1), strings.Replace(call, "thinker", "thinker/a", 1) + "}\n" + strings.Replace(call, "thinker", "thinker/b", 1) + "}", nil, 14},
		{"a reminder keeps a part", reminding, nil, "go", func(n *node) { n.answerModels(func(int, externalCall) actor.Answer { return spent(7, 0) }) }, 7 + 49},
		{"one that is cancelled does not", reminding, nil, "go", func(n *node) {
			n.answerModels(func(int, externalCall) actor.Answer { return spent(7, 0) })
			row := n.journalOf(actor.ID{Tenant: "anna", Agent: "asker", Key: "s-1"}).Mail.Rows[0].Call.ID
			n.send("asker/s-1", "", of("anna"), func(c *actor.Call) { c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpCancelReminder, row })
		}, 7},
		{"nor one of a session that is deleted", reminding, nil, "go", func(n *node) {
			n.answerModels(func(int, externalCall) actor.Answer { return spent(7, 0) })
			n.step(n.cells[0], Forget{Session{"anna", "s-1"}})
			n.drain()
		}, 7},
	} {
		agents := []actor.Definition{agent("asker", test.asker, func(d *actor.Definition) { d.Coalesce = true })}
		if test.thinker != nil {
			agents = append(agents, agent("thinker", test.thinker))
		}
		n := newDayNode(t, 1, tokens(1600), nil, agents...)
		n.send("asker/s-1", test.message, of("anna"))
		if test.then != nil {
			test.then(n)
		}
		n.answerModels(func(int, externalCall) actor.Answer { return spent(7, 0) })
		n.advance(10 * time.Minute)
		if got := n.drawnBy("anna").Tokens; got != test.want {
			t.Errorf("%s: %d drawn, want %d", test.name, got, test.want)
		}
	}
}

// What a run has spent beyond its purse is charged, also if turns for reminders follow.
func TestDebtIsInherited(t *testing.T) {
	n := newDayNode(t, 1, tokens(1000), tokens(100), agent("asker", reminding))
	total := 0
	for i := range 20 {
		n.send(fmt.Sprint("asker/", i), "go", of("anna"))
		total += 300 * n.answerModels(func(int, externalCall) actor.Answer { return spent(300, 0) })
		n.external = nil
		n.advance(time.Minute)
	}
	if got := n.drawnBy("anna").Tokens; total != 1200 || got != 1200 { // the fourth began with 100 left
		t.Errorf("%d spent, %d drawn", total, got)
	}
}

// What a person adds to one run frees nothing that others have drawn.
func TestRaiseFreesNoOthers(t *testing.T) {
	n := newDayNode(t, 1, tokens(400), tokens(100), agent("thinker", thinking(3)))
	n.spending.Ask = true
	n.restart(1)
	all := func() {
		n.answerModels(func(int, externalCall) actor.Answer { return spent(40, 0) })
		n.external = nil
	}
	for i := range 4 {
		n.send(fmt.Sprint("thinker/", i), "go", func(c *actor.Call) { c.Left = time.Hour })
		all()
	}
	n.raising(n.pending()[0], `,"raise":{"tokens":5000}`)
	all()
	if got := n.drawnBy(actor.DefaultTenant).Tokens; got != 300 || len(n.pending()) != 3 { // the run itself has spent of the addition alone
		t.Errorf("%d drawn, %d wait", got, len(n.pending()))
	}
}

// A node that is down for minutes grants a draw once, and takes a return.
func TestAccountsOutlastDowntime(t *testing.T) {
	for _, lost := range []string{"answers", actor.OpReturn} {
		n := newDayNode(t, 2, tokens(400), nil, agent("thinker", thinking(1)))
		n.drop = func(env actor.Envelope) bool {
			_, isReply := env.Body.(actor.Answered)
			r, isRequest := env.Body.(actor.Request)
			return lost == "answers" && isReply && env.To.Tenant == "anna" || isRequest && r.Call.Operation == lost
		}
		n.send("thinker/a", "go", of("anna"), func(c *actor.Call) { c.Left = time.Hour })
		n.answerModels(func(int, externalCall) actor.Answer { return spent(7, 0) })
		n.now = n.now.Add(10 * time.Minute)
		n.drop = func(env actor.Envelope) bool {
			r, ok := env.Body.(actor.Request)
			return ok && r.Call.Operation == actor.OpDraw
		}
		n.restart(2)
		n.drain()
		n.drop = nil
		n.send("thinker/b", "go", of("anna"))
		n.advance(30 * time.Second)
		n.answerModels(func(int, externalCall) actor.Answer { return spent(7, 0) })
		n.advance(time.Minute)
		if got := n.drawnBy("anna").Tokens; got != 14 {
			t.Errorf("%s: %d drawn", lost, got)
		}
	}
}

// While the account is away, the turns of outcomes ask models: they have their purse.
func TestOutcomesDoNotWaitForAccounts(t *testing.T) {
	send := sending()
	n := newDayNode(t, 1, tokens(1600), nil, agent("asker", func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if isDelivered(&b.Call) {
			return thinking(1)(b, answers)
		}
		return send(b, answers)
	}), agent("thinker", thinking(1)))
	n.send("asker", `{"agent":"thinker","input":{},"skill":"x"}`, of("anna"))
	n.drop = func(env actor.Envelope) bool {
		r, ok := env.Body.(actor.Request)
		return ok && r.Call.Operation == actor.OpDraw
	}
	asked := n.answerModels(func(int, externalCall) actor.Answer { return spent(7, 0) })
	if runs := n.journalOf(actor.ID{Tenant: "anna", Agent: "asker", Key: actor.DefaultKey}).Runs; len(runs) != 0 || asked != 2 {
		t.Errorf("%d runs are open, %d requests", len(runs), asked)
	}
}

// A turn of an agent without a journal draws before the first of its asks that can spend anything, and one without such an
// ask never does. Other turns draw before they begin.
func TestOnlySpendingDraws(t *testing.T) {
	declaredTool := pay
	declaredTool.Policy = "allow"
	ask := func(a actor.Ask) script {
		return func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
			if len(answers) == 0 {
				return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: time.Millisecond}, a}}, nil
			}
			return actor.Complete(nil), nil
		}
	}
	tool := func(name, input string) actor.Ask {
		return actor.Ask{Kind: actor.AskTool, Name: name, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(input)}}}
	}
	for _, c := range []struct {
		name  string
		ask   actor.Ask
		draws bool
	}{
		{"work", actor.Ask{Kind: actor.AskWork, Name: "w"}, false},
		{"a wait", actor.Ask{Kind: actor.AskWait, Name: "go", Timeout: time.Minute}, false},
		{"a declared tool", tool(pay.Name, `{"amount":1}`), false},
		{"an unknown tool", tool("nobody.knows", `{}`), false},
		{"a model", actor.Ask{Kind: actor.AskModel, Name: "m", PromptTokens: 10, AnswerTokens: 40, Body: []byte("{}")}, true},
		{"a call", actor.Ask{Kind: actor.AskCall, Name: "idle", Timeout: time.Minute}, true},
		{"a call by a tool", tool(tools.CallAgent, `{"agent_id":"idle","message":"x"}`), true},
		{"a detached call", tool(tools.AgentCall, `{"agent":"idle","skill":"x","input":{}}`), true},
	} {
		for durable, kind := range map[bool]func(*actor.Definition){true: func(*actor.Definition) {}, false: volatile} {
			n := newDayNode(t, 1, tokens(400), nil, agent("asker", ask(c.ask), kind), agent("idle", ask(actor.Ask{Kind: actor.AskSleep, Timeout: time.Millisecond}), kind))
			n.tools = declared(declaredTool)
			n.restart(1)
			draws := 0
			n.drop = func(env actor.Envelope) bool {
				if r, ok := env.Body.(actor.Request); ok && r.Call.Operation == actor.OpDraw {
					draws++
				}
				return false
			}
			n.send("asker", "go", of("anna"))
			if draws > 1 || draws == 1 != (c.draws || durable) {
				t.Errorf("%s: %d draws", c.name, draws)
			}
			for _, e := range n.external {
				if op, ok := e.effect.Op.(Model); ok && op.Volatile == durable {
					t.Errorf("%s: the request says volatile %v", c.name, op.Volatile)
				}
			}
		}
	}
}
