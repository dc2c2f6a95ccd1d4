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
