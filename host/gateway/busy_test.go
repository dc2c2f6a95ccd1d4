// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/command"
)

// readCountingNode counts reads of the store. Each such read waits for the
// disk.
type readCountingNode struct {
	command.Node
	reads atomic.Int32
}

func (n *readCountingNode) Lookup(ctx context.Context, c command.Lookup) (command.Result, error) {
	if c.Query != (command.AgentsQuery{}) { // a query for the agents reads memory, not the store
		n.reads.Add(1)
	}
	return n.Node.Lookup(ctx, c)
}

// A Busy refusal names the limit and the retry delay without reading the store.
// A refusal names a run only if it ended a run that is stored.
func TestBusyRefusalDoesNotReadStore(t *testing.T) {
	for _, durability := range []actor.Durability{actor.Journaled, actor.Volatile} {
		agent := func(name string, turn func(*agents.Turn) (string, error)) actor.Definition {
			d := agents.Define(name, "1", "", agents.Blocking(agents.Func(turn)))
			d.Durability = durability
			return d
		}
		d := startGateway(t, agent("slow", func(t *agents.Turn) (string, error) { return "", t.Sleep(time.Hour) }),
			agent("unwilling", func(*agents.Turn) (string, error) { return "", actor.Refuse(actor.Rejected, "no") }))
		node := &readCountingNode{Node: d.server.node}
		d.server.node = node
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range dispatcher.MaxPendingPerActor + 1 {
			all.Go(func() {
				r, _ := http.NewRequestWithContext(ctx, "POST", "http://"+d.address+"/v1/agents/slow/messages", strings.NewReader(`{"content":"x","session_id":"s"}`))
				r.Header.Set("Content-Type", "application/json")
				if response, err := d.client.Do(r); err == nil {
					_ = response.Body.Close()
				}
			})
		}
		// Requests wait and time out until the mailbox is full.
		for status := 0; status != http.StatusTooManyRequests; {
			one, stop := context.WithTimeout(ctx, 100*time.Millisecond)
			r, _ := http.NewRequestWithContext(one, "POST", "http://"+d.address+"/v1/agents/slow/messages", strings.NewReader(`{"content":"x","session_id":"s"}`))
			r.Header.Set("Content-Type", "application/json")
			if response, err := d.client.Do(r); err == nil {
				status = response.StatusCode
				_ = response.Body.Close()
			}
			stop()
		}
		before := node.reads.Load()
		status, headers, body := d.do("POST", "/v1/agents/slow/messages", `{"content":"x","session_id":"s"}`)
		if status != http.StatusTooManyRequests || headers.Get("Retry-After") == "" || !strings.Contains(body, `"scope":"callee"`) || strings.Contains(body, "run_id") {
			t.Errorf("%v: %d %v %s", durability, status, headers, body)
		}
		var p struct {
			RetryAfter int `json:"retry_after"`
		}
		if err := json.Unmarshal([]byte(body), &p); err != nil || p.RetryAfter < 1 || p.RetryAfter > 60 || strconv.Itoa(p.RetryAfter) != headers.Get("Retry-After") {
			t.Errorf("%v: got Retry-After %q and %s %v, want the same 1 to 60", durability, headers.Get("Retry-After"), body, err)
		}
		if reads := node.reads.Load() - before; reads > 0 {
			t.Errorf("%v: the store was read %d times, want 0", durability, reads)
		}
		if status, _, body := d.do("POST", "/v1/agents/unwilling/messages", `{"content":"x"}`); status != http.StatusForbidden || strings.Contains(body, "run_id") != (durability == actor.Journaled) {
			t.Errorf("%v: %d %s", durability, status, body)
		}
		leave()
		all.Wait()
	}
}
