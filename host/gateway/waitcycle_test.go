// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// callPeerTogether returns a turn that waits until both agents run, then calls
// the other agent. Each call thus arrives while the turn of its callee is
// waiting. When called itself, the agent answers at once. A refused call is an answer,
// or fails the turn.
func callPeerTogether(other string, both *sync.WaitGroup, fails bool) agents.Func {
	return func(t *agents.Turn) (string, error) {
		if t.Message() != "go" {
			return "pong from " + t.Self().Agent, nil
		}
		arrive := func(ctx context.Context) ([]byte, error) {
			both.Done()
			met := make(chan struct{})
			go func() { both.Wait(); close(met) }()
			select {
			case <-met:
				return []byte("{}"), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if _, err := t.Do("arrive", arrive); err != nil {
			return "", err
		}
		text, err := t.Call(other, "ping")
		if refusal := new(actor.Refusal); errors.As(err, &refusal) && refusal.RetryAfter > 0 && !fails {
			return refusal.Reason.String() + " " + actor.PathString(refusal.Chain), nil
		}
		return text, err
	}
}

// Two agents call each other at the same moment, for two independent clients.
// One call is answered, and the other is refused as a wait cycle. No timeout is
// involved: the shortest timeout is 30 s.
func TestMutualCallsBreakWaitCycle(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	d := startGateway(t,
		agents.Define("left", "1", "Calls right.", agents.Blocking(callPeerTogether("right", &both, false))),
		agents.Define("right", "1", "Calls left.", agents.Blocking(callPeerTogether("left", &both, false))))
	started := time.Now()
	var answers [2]messageResponse
	var clients sync.WaitGroup
	for i, name := range []string{"left", "right"} {
		clients.Go(func() {
			if status := d.doJSON(&answers[i], "POST", "/v1/agents/"+name+"/messages", `{"content":"go","session":"s"}`); status != 200 || answers[i].Status != "succeeded" {
				t.Errorf("%s: %d %+v", name, status, answers[i])
			}
		})
	}
	clients.Wait()
	t.Logf("both ended after %v", time.Since(started))
	refused := 0
	for i, name := range []string{"left", "right"} {
		other := []string{"right", "left"}[i]
		switch answers[i].Content {
		case "pong from " + other:
		case "WaitCycle " + other + "/s -> " + name + "/s":
			refused++
		default:
			t.Errorf("the client of %s got %q", name, answers[i].Content)
		}
	}
	if refused != 1 {
		t.Errorf("got %d wait cycle refusals, want 1: %+v", refused, answers)
	}
}

// The client of a run that fails as part of a wait cycle learns when to retry.
func TestWaitCycleHasRetryAfter(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	d := startGateway(t,
		agents.Define("left", "1", "Calls right.", agents.Blocking(callPeerTogether("right", &both, true))),
		agents.Define("right", "1", "Calls left.", agents.Blocking(callPeerTogether("left", &both, true))))
	var answers [2]string
	var clients sync.WaitGroup
	for i, name := range []string{"left", "right"} {
		clients.Go(func() {
			status, headers, body := d.do("POST", "/v1/agents/"+name+"/messages", `{"content":"go","session":"s"}`)
			answers[i] = fmt.Sprintf("%d %s %s", status, headers.Get("Retry-After"), body)
		})
	}
	clients.Wait()
	refused := 0
	for _, answer := range answers {
		if strings.HasPrefix(answer, "409 1 ") && strings.Contains(answer, `"code":"call_wait_cycle"`) && strings.Contains(answer, `"retry_after":1,`) {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("got %q, want one refusal with its delay", answers)
	}
}
