// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/troupe-run/troupe"
)

// An agent that passes questions on, and another that answers them.
func Example() {
	server, err := troupe.Open(troupe.Config{Temporary: true, Agents: []troupe.Agent{
		{Name: "helper", Func: func(t *troupe.Turn) (string, error) { return "echo " + t.Message(), nil }},
		{Name: "coordinator", Transcript: "last:20", Func: func(t *troupe.Turn) (string, error) {
			answer, err := t.Call("helper", t.Message())
			return fmt.Sprintf("%d messages before, %s", len(t.Transcript()), answer), err
		}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	ctx := context.Background()
	first, err := server.Call(ctx, "coordinator", "hello")
	fmt.Println(first.Text, err)
	second, err := server.Call(ctx, "coordinator", "hello again", troupe.Session(first.Session))
	fmt.Println(second.Text, err)

	// Output:
	// 0 messages before, echo hello <nil>
	// 2 messages before, echo hello again <nil>
}

// A run that waits for a person. The signal may be sent by another process, after a restart.
func ExampleServer_Signal() {
	server, err := troupe.Open(troupe.Config{Temporary: true, Agents: []troupe.Agent{
		{Name: "buyer", Func: func(t *troupe.Turn) (string, error) {
			decision, err := t.Wait("approval", time.Hour)
			return "bought, approved with: " + string(decision), err
		}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	ctx := context.Background()
	reply, err := server.Call(ctx, "buyer", "three chairs")
	var waiting *troupe.Waiting
	if errors.As(err, &waiting) {
		fmt.Println("waits for", waiting.Signal)
		if err := server.Signal(ctx, waiting.To, waiting.Signal, []byte("yes")); err != nil {
			fmt.Println(err)
		}
		reply, err = server.Await(ctx, waiting.Run)
	}
	fmt.Println(reply.Text, err)

	// Output:
	// waits for approval
	// bought, approved with: yes <nil>
}

// An agent keeps a value of its own in each session.
func ExampleState() {
	type basket struct{ Items []string }
	server, err := troupe.Open(troupe.Config{Temporary: true, Agents: []troupe.Agent{
		{Name: "basket", Func: func(t *troupe.Turn) (string, error) {
			b, err := troupe.State[basket](t)
			if err != nil {
				return "", err
			}
			b.Items = append(b.Items, t.Message())
			return fmt.Sprint(b.Items), troupe.SetState(t, b)
		}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	for _, user := range []string{"alice", "bob", "alice"} {
		reply, err := server.Call(context.Background(), "basket", "a chair", troupe.User(user), troupe.Session("shop"))
		fmt.Println(user, reply.Text, err)
	}

	// Output:
	// alice [a chair] <nil>
	// bob [a chair] <nil>
	// alice [a chair a chair] <nil>
}

// A refusal has a code for the program and a sentence for people.
func ExampleRefusal() {
	server, err := troupe.Open(troupe.Config{Temporary: true, Agents: []troupe.Agent{
		{Name: "library", Func: func(t *troupe.Turn) (string, error) {
			if t.Message() != "whales" {
				return "", troupe.Refuse(troupe.CodeRejected, "there is no book on %s", t.Message())
			}
			return "Moby-Dick", nil
		}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	for _, agent := range []string{"library", "archive"} {
		_, err = server.Call(context.Background(), agent, "eels")
		var refusal *troupe.Refusal
		if errors.As(err, &refusal) {
			fmt.Println(refusal.Code, "-", refusal.Detail)
		}
	}

	// Output:
	// call_rejected - there is no book on eels
	// agent_not_found - no agent is named "archive"
}

// Several asks at once. The agent continues without one of the answers.
func ExampleTurn_All() {
	server, err := troupe.Open(troupe.Config{Temporary: true, Agents: []troupe.Agent{
		{Name: "research", Func: func(t *troupe.Turn) (string, error) { return "two papers on " + t.Message(), nil }},
		{Name: "planner", Func: func(t *troupe.Turn) (string, error) {
			answers := t.All(
				troupe.Call("research", t.Message(), troupe.Timeout(20*time.Second)),
				troupe.Call("archive", t.Message()),
			)
			papers, err := answers[0].Text()
			if err != nil {
				return "", fmt.Errorf("without papers there is no plan: %w", err)
			}
			if err := answers[1].Err(); err != nil {
				t.Warn("nothing from the archive")
			}
			return "read " + papers, nil
		}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	reply, err := server.Call(context.Background(), "planner", "whales")
	fmt.Println(reply.Text, reply.Warnings, err)

	// Output:
	// read two papers on whales [nothing from the archive] <nil>
}

// A tool is a function. Its schema comes from the type of its arguments. The built-in model of this
// example follows the instructions in a message; another is configured in Config.Models.
func ExampleNewTool() {
	type place struct {
		City string `json:"city" jsonschema:"name of the city"`
	}
	weather := troupe.NewTool("weather.get", "Current weather of a city.",
		func(_ context.Context, p place) (string, error) { return "sunny in " + p.City, nil },
		troupe.Idempotent(), troupe.Timeout(10*time.Second))
	server, err := troupe.Open(troupe.Config{Temporary: true, Tools: []troupe.Tool{weather}, Agents: []troupe.Agent{
		{Name: "advisor", Tools: []string{"weather.get"}, Func: func(t *troupe.Turn) (string, error) {
			return t.Model(troupe.Prompt{Model: "scripted", Instructions: "Advise travellers."})
		}},
		{Name: "station", Func: func(t *troupe.Turn) (string, error) {
			b, err := t.Tool("weather.get", place{t.Message()})
			return string(b), err
		}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	ctx := context.Background()
	reply, err := server.Call(ctx, "advisor", `use weather.get {"city": "Oslo"}`)
	fmt.Println(reply.Text, err)
	reply, err = server.Call(ctx, "station", "Bergen")
	fmt.Println(reply.Text, err)

	// Output:
	// sunny in Oslo <nil>
	// sunny in Bergen <nil>
}

// A call of a tool waits for a person.
func ExampleServer_Decide() {
	type transfer struct {
		To     string `json:"to"`
		Amount int    `json:"amount"`
	}
	pay := troupe.NewTool("payments.transfer", "Pays an amount.",
		func(ctx context.Context, p transfer) (string, error) { return "paid", nil },
		troupe.Policy(troupe.RequireApproval), troupe.Summary("pays {{amount}} to {{to}}"))
	server, err := troupe.Open(troupe.Config{Temporary: true, Tools: []troupe.Tool{pay}, Agents: []troupe.Agent{
		{Name: "cashier", Func: func(t *troupe.Turn) (string, error) {
			b, err := t.Tool("payments.transfer", transfer{To: t.Message(), Amount: 5})
			return string(b), err
		}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	ctx := context.Background()
	for _, decide := range []troupe.Verdict{troupe.Approve, troupe.Reject} {
		_, err = server.Call(ctx, "cashier", "Ada")
		var waiting *troupe.Waiting
		if !errors.As(err, &waiting) {
			fmt.Println(err)
			return
		}
		approval := waiting.Approvals[0] // Server.Approvals lists those of all runs
		fmt.Println(approval.Tool, "-", approval.Summary)
		if _, err := server.Decide(ctx, approval.ID, decide, "asked Anna"); err != nil {
			fmt.Println(err)
		}
		reply, err := server.Await(ctx, waiting.Run)
		fmt.Println(reply.Text, err)
	}

	// Output:
	// payments.transfer - pays 5 to Ada
	// paid <nil>
	// payments.transfer - pays 5 to Ada
	//  approval_rejected: a person rejected the call: asked Anna
}

// The pieces of an answer are shown while the model writes it.
func ExampleServer_Stream() {
	server, err := troupe.Open(troupe.Config{Temporary: true, Agents: []troupe.Agent{
		{Name: "writer", Func: func(t *troupe.Turn) (string, error) { return t.Model(troupe.Prompt{Model: "scripted"}) }},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	ctx := context.Background()
	reply, err := server.Begin(ctx, "writer", "say It was a dark and stormy night.")
	if err != nil {
		fmt.Println(err)
		return
	}
	cursor := ""
	for event, err := range server.Stream(ctx, reply.Run) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if event.Type == troupe.EventDelta {
			fmt.Print(event.Text)
		}
		cursor = event.Cursor // After(cursor) continues here, also in another process
		if event.Type == troupe.EventDone {
			fmt.Println("\nend:", event.Text)
		}
	}
	for range server.Stream(ctx, reply.Run, troupe.After(cursor)) {
		fmt.Println("nothing is repeated")
	}

	// Output:
	// It was a dark and stormy night.
	// end: It was a dark and stormy night.
}
