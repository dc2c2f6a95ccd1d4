// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// callPeerTogether waits until both have come, then asks the other; asked itself, it
// answers at once. So each call comes while its callee's turn waits for the other.
func callPeerTogether(other string, both *sync.WaitGroup) agents.Func {
	return func(t *agents.Turn) (string, error) {
		if t.Message() != "go" {
			return "pong from " + t.Self().Agent, nil
		}
		come := func(ctx context.Context) ([]byte, error) {
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
		if _, err := t.Do("come", come); err != nil {
			return "", err
		}
		text, err := t.Call(other, "ping")
		if refusal := new(actor.Refusal); errors.As(err, &refusal) {
			return refusal.Reason.String() + " " + actor.PathString(refusal.Chain), nil
		}
		return text, err
	}
}

// Two agents ask each other at the same moment, for two clients who know nothing
// of each other. Both end: one is answered, the other learns of the ring. No
// time-out is involved: the clocks here are 30 s and more, and nobody's runs out.
func TestMutualCallsBreakWaitCycle(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	d := startGateway(t,
		agents.Define("left", "1", "Asks right.", agents.Blocking(callPeerTogether("right", &both))),
		agents.Define("right", "1", "Asks left.", agents.Blocking(callPeerTogether("left", &both))))
	begun := time.Now()
	var said [2]messageResponse
	var clients sync.WaitGroup
	for i, name := range []string{"left", "right"} {
		clients.Go(func() {
			if status := d.doJSON(&said[i], "POST", "/v1/agents/"+name+"/messages", `{"content":"go","session":"s"}`); status != 200 || said[i].Status != "succeeded" {
				t.Errorf("%s: %d %+v", name, status, said[i])
			}
		})
	}
	clients.Wait()
	t.Logf("both ended after %v", time.Since(begun))
	refused := 0
	for i, name := range []string{"left", "right"} {
		other := []string{"right", "left"}[i]
		switch said[i].Content {
		case "pong from " + other:
		case "WaitCycle " + other + "/s -> " + name + "/s":
			refused++
		default:
			t.Errorf("the client of %s was told %q", name, said[i].Content)
		}
	}
	if refused != 1 {
		t.Errorf("%d were refused for the ring, want one: %+v", refused, said)
	}
}
