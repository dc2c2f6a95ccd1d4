// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/internal/command"
)

// setClock is a clock of schedules that a test sets.
type setClock struct {
	mu      sync.Mutex
	now     time.Time
	waiting []chan time.Time
	waits   chan struct{} // capacity 1: somebody has begun to wait
}

func newSetClock(now time.Time) *setClock { return &setClock{now: now, waits: make(chan struct{}, 1)} }

func (c *setClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// After returns a channel that the next set closes: waits look at the clock again.
func (c *setClock) After(time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan time.Time)
	c.waiting = append(c.waiting, ch)
	select {
	case c.waits <- struct{}{}:
	default:
	}
	return ch
}

func (c *setClock) set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
	for _, ch := range c.waiting {
		close(ch)
	}
	c.waiting = nil
}

// scheduledNode is a node whose schedules have the clock of a test.
type scheduledNode struct {
	*Node
	t     *testing.T
	clock *setClock
}

func openScheduled(t *testing.T, data string, now time.Time) *scheduledNode {
	t.Helper()
	clock := newSetClock(now)
	n, err := Open(Config{Data: data, Name: "n1", Limits: dispatcher.DefaultLimits(), Outbound: outbound.Config{}, WriteBuffer: 1 << 20, clock: clock}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return &scheduledNode{n, t, clock}
}

func (n *scheduledNode) close() {
	n.t.Helper()
	if err := n.Close(context.Background()); err != nil {
		n.t.Fatal(err)
	}
}

func (n *scheduledNode) list(user string) []command.Schedule {
	n.t.Helper()
	found, err := command.Find(n.t.Context(), n.Node, actor.Principal{Tenant: actor.Namespace(user), User: user}, command.SchedulesQuery{})
	if err != nil {
		n.t.Fatal(err)
	}
	return found.All
}

// waitFor waits until the schedule of alice waits for a time: everything before is done.
func (n *scheduledNode) waitFor(next time.Time) command.Schedule {
	n.t.Helper()
	for timeout := time.After(time.Minute); ; {
		if all := n.list("alice"); len(all) == 1 && all[0].Next == timeOf(next) {
			return all[0]
		}
		select {
		case <-n.clock.waits:
		case <-timeout:
			n.t.Fatalf("want a schedule that waits for %v, got %+v", next, n.list("alice"))
		}
	}
}

// sent returns the number of messages in the session of the schedule.
func (n *scheduledNode) sent() (count int) {
	n.t.Helper()
	by := actor.Principal{Tenant: "alice", User: "alice"}
	found, err := command.Find(n.t.Context(), n.Node, by, command.MessagesQuery{Session: "beat", Agent: "helper", Limit: 100})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, m := range found.All {
		if m.Role == actor.RoleUser {
			if text := actor.TextOf(m.Parts); text != "Look." {
				n.t.Errorf("message %q", text)
			}
			count++
		}
	}
	return count
}

// A schedule sends its message once for each time, over restarts. Of the times that passed while no node ran, one
// has a message.
func TestScheduleOverRestarts(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	now := time.Now()
	first := now.Truncate(time.Minute).Add(30 * time.Minute)
	spec, err := agents.ReadTOML(fmt.Sprintf("name = \"helper\"\n[schedule.beat]\ncron = \"%d * * * *\"\ntext = \"Look.\"\nuser = \"alice\"\n", first.UTC().Minute()))
	if err != nil {
		t.Fatal(err)
	}
	n := openScheduled(t, data, now)
	if _, _, err := n.PutAgent(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if one := n.waitFor(first); one.Last.At != 0 || one.Session != "beat" || one.User != "alice" {
		t.Errorf("before its time: %+v", one)
	}
	n.clock.set(first)
	if one := n.waitFor(first.Add(time.Hour)); one.Last.At != timeOf(first) || one.Last.Run == (actor.CallID{}) || one.Last.Failure != "" {
		t.Errorf("after its time: %+v", one)
	}
	if got := n.sent(); got != 1 {
		t.Errorf("%d messages, want 1", got)
	}
	if all := n.list("bob"); len(all) != 0 {
		t.Errorf("bob sees %+v", all)
	}
	n.close()
	for _, c := range []struct {
		name string
		at   time.Duration
		want int
	}{
		{"before the next time", time.Minute, 1},
		{"after five times", 5*time.Hour + time.Minute, 2},
		{"again", 5*time.Hour + 2*time.Minute, 2},
		{"after days", 75*time.Hour + time.Minute, 3},
	} {
		n = openScheduled(t, data, first.Add(c.at))
		n.waitFor(first.Add(c.at.Truncate(time.Hour) + time.Hour))
		if got := n.sent(); got != c.want {
			t.Errorf("%s: %d messages, want %d", c.name, got, c.want)
		}
		if c.name != "after days" {
			n.close()
		}
	}
	if _, _, err := n.CallRegistry(t.Context(), agents.OpDelete, []byte(`{"agent_id":"helper"}`)); err != nil {
		t.Fatal(err)
	}
	if all := n.list("alice"); len(all) != 0 {
		t.Errorf("after the end of the agent: %+v", all)
	}
	n.close()
}

func TestTimesOfSchedules(t *testing.T) {
	for _, c := range []struct{ cron, zone, after, want string }{
		{"0 9 * * *", "UTC", "2026-03-02T08:59:59Z", "2026-03-02T09:00:00Z"},
		{"0 9 * * *", "UTC", "2026-03-02T09:00:00Z", "2026-03-03T09:00:00Z"},
		{"0 9 * * mon-fri", "Europe/Berlin", "2026-03-06T09:00:00Z", "2026-03-09T08:00:00Z"},
		{"0 9 * * mon-fri", "Europe/Berlin", "2026-03-27T09:00:00Z", "2026-03-30T07:00:00Z"}, // summer time
		{"30 2 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T01:30:00Z"},      // 02:30 does not exist: 03:30
		{"30 2 * * *", "Europe/Berlin", "2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T23:00:00Z", "2026-10-25T00:30:00Z"}, // 02:30 comes twice
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
		{"30 * * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"}, // each hour that passes
		{"30 2 * * *", "America/New_York", "2026-03-08T06:00:00Z", "2026-03-08T07:30:00Z"},
		{"0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z", "2018-11-04T03:00:00Z"}, // the day begins at 01:00
		{"*/30 * 4 11 *", "America/Sao_Paulo", "2018-11-03T12:00:00Z", "2018-11-04T03:00:00Z"},
		{"*/20 * * * *", "Asia/Kathmandu", "2026-01-01T00:00:00Z", "2026-01-01T00:15:00Z"},
		{"0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"0 * 29 2 *", "UTC", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"0 0 13 * fri", "UTC", "2026-03-01T00:00:00Z", "2026-03-06T00:00:00Z"}, // one of both days
		{"0 0 */2 * mon", "UTC", "2026-03-01T00:00:00Z", "2026-03-09T00:00:00Z"},
		{"59 23 31 12 *", "Pacific/Auckland", "2026-12-31T10:59:00Z", "2027-12-31T10:59:00Z"},
		{"0 12 * * 7", "UTC", "2026-03-02T00:00:00Z", "2026-03-08T12:00:00Z"},
	} {
		parse := func(text string) time.Time {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		cron, err := agents.ParseCron(c.cron)
		if err != nil {
			t.Fatal(err)
		}
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		one := &scheduled{cron: cron, zone: zone}
		if got := one.after(parse(c.after)); !got.Equal(parse(c.want)) {
			t.Errorf("%s in %s after %s: got %s, want %s", c.cron, c.zone, c.after, got.UTC().Format(time.RFC3339), c.want)
		}
		if got := one.before(parse(c.want), parse(c.after)); !got.Equal(parse(c.want)) {
			t.Errorf("%s in %s: the last time up to %s is %s", c.cron, c.zone, c.want, got.UTC().Format(time.RFC3339))
		}
	}
}
