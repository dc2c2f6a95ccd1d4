// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Readers of one principal wait for each other, not those of another. Nothing is left of them.
func TestReadersWaitForTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns
		ann, bob := &caller{Principal: actor.Principal{User: "ann"}}, &caller{Principal: actor.Principal{User: "bob"}}
		var reading, read atomic.Int32
		end := make(chan struct{})
		for range 5 {
			go func() {
				done := all.take(ann)
				reading.Add(1)
				<-end
				reading.Add(-1)
				done()
				read.Add(1)
			}()
		}
		synctest.Wait()
		if n := reading.Load(); n != turnsEach {
			t.Errorf("%d read, want %d", n, turnsEach)
		}
		all.take(bob)()
		end <- struct{}{}
		synctest.Wait()
		if n := reading.Load(); n != turnsEach || read.Load() != 1 {
			t.Errorf("%d read after one is done, want %d", n, turnsEach)
		}
		close(end)
		synctest.Wait()
		if n := read.Load(); n != 5 || len(all.by) != 0 {
			t.Errorf("%d have read, want 5; %d principals are left", n, len(all.by))
		}
	})
}

// busyReads holds the reads of events of one user, and counts them.
type busyReads struct {
	command.Node
	user      string
	end       chan struct{}
	now, most atomic.Int32
}

func (n *busyReads) Lookup(ctx context.Context, l command.Lookup) (command.Result, error) {
	_, ofSession := l.Query.(command.SessionEventsQuery)
	_, ofRun := l.Query.(command.EventsQuery)
	if (ofSession || ofRun) && l.By.User == n.user {
		now := n.now.Add(1)
		for most := n.most.Load(); now > most && !n.most.CompareAndSwap(most, now); most = n.most.Load() {
		}
		defer n.now.Add(-1)
		<-n.end
	}
	return n.Node.Lookup(ctx, l)
}

// Many streams of a session, or requests that wait for events of a run, of one user wait for each
// other, and not those of another user. None is refused.
func TestReadersOfOneUserTakeTurns(t *testing.T) {
	for name, of := range map[string]func(run string) (path, accept string){
		"streams of a session": func(string) (path, accept string) { return "/v1/sessions/s1/events", ingress.EventStream },
		"long polls of a run":  func(run string) (path, accept string) { return "/v1/runs/" + run + "/events?wait_ms=60000", "*/*" },
	} {
		t.Run(name, func(t *testing.T) {
			d := startGateway(t)
			const opened = 12
			ann, bob := d.newUser(`"user":"ann","scopes":["call","read"]`), d.newUser(`"user":"bob","scopes":["call","read"]`)
			runs := map[user]string{}
			for _, u := range []user{ann, bob} {
				runs[u] = u.ask("helper", `{"content":"x","session_id":"s1"}`).Run
			}
			n := &busyReads{Node: d.server.node, user: "ann", end: make(chan struct{})}
			d.server.node = n
			answered := make(chan string, opened)
			path, accept := of(runs[ann])
			for range opened {
				go func() {
					r := invariant.Must(http.NewRequestWithContext(t.Context(), "GET", "http://"+d.address+path, http.NoBody))
					r.Header.Set("Authorization", "Bearer "+ann.key)
					r.Header.Set("Accept", accept)
					answer, err := d.client.Do(r)
					if err != nil {
						answered <- err.Error()
						return
					}
					answered <- answer.Status
					_ = answer.Body.Close()
				}()
			}
			d.openStream("GET", "/v1/sessions/s1/events", "", "Authorization", "Bearer "+bob.key).readUntil("run_done")
			for _, path := range []string{"/v1/runs/" + runs[bob] + "/events", "/v1/runs/" + runs[bob] + "/events?wait_ms=60000"} {
				if status, body := bob.do("GET", path, ""); status != 200 {
					t.Errorf("%s of another user: %d %s", path, status, body)
				}
			}
			close(n.end)
			for range opened {
				if status := <-answered; status != "200 OK" {
					t.Errorf("a reader: %s", status)
				}
			}
			if most := n.most.Load(); most > turnsEach {
				t.Errorf("%d reads at the same time, want at most %d", most, turnsEach)
			}
		})
	}
}
