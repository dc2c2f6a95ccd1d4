// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// setClock is a clock of schedules that a test sets.
type setClock struct {
	mu      sync.Mutex
	now     time.Time
	count   int           // of waits so far
	asked   time.Duration // of the last one
	waiting []setWait
	waits   chan struct{} // capacity 1: somebody has begun to wait
}

type setWait struct {
	until time.Time
	ends  chan time.Time
}

func newSetClock(now time.Time) *setClock { return &setClock{now: now, waits: make(chan struct{}, 1)} }

func (c *setClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// After returns a channel that is closed once the clock is set to that time.
func (c *setClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait := setWait{c.now.Add(d), make(chan time.Time)}
	c.waiting, c.asked = append(c.waiting, wait), d
	c.count++
	select {
	case c.waits <- struct{}{}:
	default:
	}
	return wait.ends
}

func (c *setClock) set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
	c.waiting = slices.DeleteFunc(c.waiting, func(w setWait) bool {
		due := !w.until.After(now)
		if due {
			close(w.ends)
		}
		return due
	})
}

// nth returns the duration of the nth wait once it has begun. It MUST be the last one so far.
func (c *setClock) nth(n int) time.Duration {
	for {
		c.mu.Lock()
		count, asked := c.count, c.asked
		c.mu.Unlock()
		if count >= n {
			return asked
		}
		<-c.waits
	}
}

// scheduledNode is a node whose schedules have the clock of a test.
type scheduledNode struct {
	*Node
	t     *testing.T
	clock *setClock
	log   *logLines
}

func openScheduled(t *testing.T, data string, now time.Time, set ...func(*Config)) *scheduledNode {
	t.Helper()
	clock, log := newSetClock(now), &logLines{}
	c := Config{Data: data, Name: "n1", Limits: dispatcher.DefaultLimits(), Outbound: outbound.Config{}, WriteBuffer: 1 << 20, clock: clock}
	for _, f := range set {
		f(&c)
	}
	n, err := Open(c, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return &scheduledNode{n, t, clock, log}
}

// logLines are the lines of a log.
type logLines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

// count returns the number of lines about messages of schedules.
func (l *logLines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), "the message of a schedule")
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
		if all := n.list("alice"); len(all) == 1 && n.next().Equal(next) {
			return all[0]
		}
		select {
		case <-n.clock.waits:
		case <-timeout:
			n.t.Fatalf("want a schedule that waits for %v, got %+v", next, n.list("alice"))
		}
	}
}

// next returns the time that the schedule waits for, or has waited for if its run goes on.
func (n *scheduledNode) next() time.Time {
	n.schedules.mu.Lock()
	defer n.schedules.mu.Unlock()
	one := n.schedules.all[scheduleName{"helper", "beat"}]
	if one == nil {
		return time.Time{}
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.next
}

var schedulingAlice = actor.Principal{Tenant: "alice", User: "alice"}

// sent returns the number of messages in the session of the schedule.
func (n *scheduledNode) sent() (count int) { return n.sentIn("beat") }

func (n *scheduledNode) sentIn(session string) (count int) {
	n.t.Helper()
	found, err := command.Find(n.t.Context(), n.Node, schedulingAlice, command.MessagesQuery{Session: session, Agent: "helper", Limit: 100})
	var refusal *actor.Refusal
	if err != nil && !errors.As(err, &refusal) {
		n.t.Fatal(err)
	}
	for _, m := range found.All {
		if m.Role == actor.RoleUser && m.Source != actor.FromOperator {
			count++
		}
	}
	return count
}

// putScheduled stores an agent with a schedule of each hour, and returns its first time after now.
func (n *scheduledNode) putScheduled(now time.Time, text string) time.Time {
	n.t.Helper()
	first := now.Truncate(time.Minute).Add(30 * time.Minute)
	spec, err := agents.ReadTOML(fmt.Sprintf("name = \"helper\"\ntools = [\"hold\"]\n[schedule.beat]\ncron = \"%d * * * *\"\ntext = %q\nuser = \"alice\"\n", first.UTC().Minute(), text))
	if err != nil {
		n.t.Fatal(err)
	}
	if _, _, err := n.PutAgent(n.t.Context(), spec); err != nil {
		n.t.Fatal(err)
	}
	n.waitFor(first)
	return first
}

// holding returns a tool that may be repeated, which announces its calls and ends once it is released.
func holding(t *testing.T) (set func(*Config), calls <-chan struct{}, release func()) {
	called, released := make(chan struct{}, 16), make(chan struct{})
	tool, err := tools.Local(tools.Declared{Name: "hold", Description: "Holds.", InputSchema: []byte(`{"type":"object"}`), Idempotent: true, TimeoutMS: 3_600_000}, func(ctx context.Context, _ []byte) tools.Result {
		called <- struct{}{}
		select {
		case <-released:
			return tools.JSON([]byte("{}"))
		case <-ctx.Done():
			return tools.Refused(actor.RefuseUnavailable(time.Second, "the node is stopping"))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.Tools = append(c.Tools, tool) }, called, func() { close(released) }
}

// Times that pass while the run of a message is open are left out, also over a restart of the node. The next time is
// never in the past.
func TestScheduleSkipsTimesOfOpenRun(t *testing.T) {
	data, now := filepath.Join(t.TempDir(), "data"), time.Now()
	hold, calls, release := holding(t)
	n := openScheduled(t, data, now, hold)
	first := n.putScheduled(now, "use hold {}")
	n.clock.set(first)
	<-calls
	n.clock.set(first.Add(2*time.Hour + time.Minute))
	if one := n.list("alice")[0]; one.Next != timeOf(first.Add(3*time.Hour)) || one.Last.Run.IsZero() {
		t.Errorf("while its run is open: %+v", one)
	}
	n.close()
	n = openScheduled(t, data, first.Add(5*time.Hour+time.Minute), hold)
	<-calls // the run goes on
	release()
	n.waitFor(first.Add(6 * time.Hour))
	if got := n.sent(); got != 1 {
		t.Errorf("%d messages after the start, want 1", got)
	}
	n.clock.set(first.Add(6 * time.Hour))
	n.waitFor(first.Add(7 * time.Hour))
	if got := n.sent(); got != 2 {
		t.Errorf("%d messages, want 2", got)
	}
	n.close()
}

// Times that came while the run of a message went on are left out too if the run ends before the node starts again.
func TestScheduleSkipsTimesOfEndedRun(t *testing.T) {
	for name, c := range map[string]struct {
		down time.Duration // of the node, half a minute after a time that came while the run went on
		want int           // messages after the start
	}{
		"no other time passed":         {20 * time.Second, 1},
		"a time passed without a node": {time.Minute, 2},
		"three did":                    {3 * time.Minute, 2},
	} {
		data := filepath.Join(t.TempDir(), "data")
		synctest.Test(t, func(t *testing.T) {
			hold, calls, release := holding(t)
			config := Config{Data: data, Name: "n1", Limits: dispatcher.DefaultLimits(), Outbound: outbound.Config{}, WriteBuffer: 1 << 20}
			hold(&config)
			open := func() *scheduledNode {
				n, err := Open(config, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				return &scheduledNode{Node: n, t: t}
			}
			n := open()
			spec, err := agents.ReadTOML("name = \"helper\"\ntools = [\"hold\"]\n[schedule.beat]\ncron = \"* * * * *\"\ntext = \"use hold {}\"\nuser = \"alice\"\n")
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := n.PutAgent(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			<-calls
			<-time.After(90 * time.Second)
			release()
			for last := n.list("alice")[0].Last.Run; ; {
				found, err := command.Find(t.Context(), n.Node, schedulingAlice, command.RunQuery{Run: last})
				if err != nil {
					t.Fatal(err)
				}
				if found.Record.Status.Ended() {
					break
				}
				<-time.After(time.Millisecond)
			}
			n.close()
			<-time.After(c.down)
			n = open()
			<-time.After(5 * time.Second)
			if got := n.sent(); got != c.want {
				t.Errorf("%s: %d messages, want %d", name, got, c.want)
			}
			n.close()
		})
	}
}

// A message that is refused for load is sent again after delays that double up to a minute, and the log has it once.
func TestScheduleBacksOff(t *testing.T) {
	now := time.Now()
	hold, calls, release := holding(t)
	n := openScheduled(t, filepath.Join(t.TempDir(), "data"), now, hold, func(c *Config) { c.Limits.MaxPendingPerActor = 1 })
	first := n.putScheduled(now, "say hello")
	var asked sync.WaitGroup
	for i := range 2 { // one runs, and one waits
		asked.Go(func() {
			call := actor.Call{ID: n.NewCallID(), To: schedulingAlice.ID("helper", "beat"), Principal: "alice", Parts: actor.Text("use hold {}")}
			if a, err := n.Invoke(context.Background(), command.Invoke{By: schedulingAlice, Call: call}, nil); err != nil || a.Reply.Refusal != nil {
				t.Error(err, a.Reply.Refusal)
			}
		})
		if i == 0 {
			<-calls // a cell that is being loaded would count both as waiting
		}
	}
	for page, err := command.Find(t.Context(), n.Node, schedulingAlice, command.RunsQuery{Limit: 9}); len(page.Page.All) < 2; page, err = command.Find(t.Context(), n.Node, schedulingAlice, command.RunsQuery{Limit: 9}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	at, least := first, scheduleRetryMin
	n.clock.nth(1) // for the first time
	for i := range 10 {
		n.clock.set(at)
		wait := n.clock.nth(i + 2)
		if wait < least || wait > scheduleRetryMax {
			t.Errorf("after %v it waits for %v, want at least %v", at.Sub(first), wait, least)
		}
		at, least = at.Add(wait), min(2*least, scheduleRetryMax)
	}
	if got := n.log.count(); got != 1 {
		t.Errorf("%d lines in the log, want 1", got)
	}
	release()
	asked.Wait()
	n.clock.set(at)
	n.waitFor(first.Add(time.Hour))
	if got := n.sent(); got != 3 {
		t.Errorf("%d messages, want 3", got)
	}
	n.close()
}

// A time whose message was refused until the end of the node is sent once after the next start, and not again after others.
// Until it is sent, the log and the list of each node say why not.
func TestRefusedTimeOverRestarts(t *testing.T) {
	data, now := filepath.Join(t.TempDir(), "data"), time.Now()
	hold, calls, release := holding(t)
	full := func(c *Config) { c.Limits.MaxPendingPerActor = 1 }
	n := openScheduled(t, data, now, hold, full)
	first := n.putScheduled(now, "say hello")
	for i := range 2 { // one runs, and one waits
		go func(n *Node) {
			call := actor.Call{ID: n.NewCallID(), To: schedulingAlice.ID("helper", "beat"), Principal: "alice", Parts: actor.Text("use hold {}")}
			_, _ = n.Invoke(context.Background(), command.Invoke{By: schedulingAlice, Call: call}, nil) // ends with the node
		}(n.Node)
		if i == 0 {
			<-calls
		}
	}
	for page, err := command.Find(t.Context(), n.Node, schedulingAlice, command.RunsQuery{Limit: 9}); len(page.Page.All) < 2; page, err = command.Find(t.Context(), n.Node, schedulingAlice, command.RunsQuery{Limit: 9}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	n.clock.nth(1) // for the first time
	for start := range 3 {
		n.clock.set(first.Add(time.Duration(start) * time.Minute))
		if start > 0 {
			<-calls
		}
		n.clock.nth(2 - min(start, 1)) // for the next attempt
		one := n.list("alice")[0]
		if one.Last.At != timeOf(first) || !strings.Contains(one.Last.Failure, "at most 1 allowed") || n.log.count() != 1 || n.sent() > 2 {
			t.Errorf("start %d: %d messages, %d lines, %+v", start, n.sent(), n.log.count(), one)
		}
		if start < 2 {
			n.close()
			n = openScheduled(t, data, first.Add(time.Duration(start)*time.Minute+30*time.Second), hold, full)
		}
	}
	release()
	for open := 2; open > 0; {
		page, err := command.Find(t.Context(), n.Node, schedulingAlice, command.RunsQuery{Limit: 9})
		if err != nil {
			t.Fatal(err)
		}
		open = len(slices.DeleteFunc(page.Page.All, func(r runs.Summary) bool { return r.Status.Ended() }))
	}
	n.clock.set(first.Add(5 * time.Minute))
	n.waitFor(first.Add(time.Hour))
	if got := n.sent(); got != 3 {
		t.Errorf("%d messages, want 3", got)
	}
	n.close()
	n = openScheduled(t, data, first.Add(10*time.Minute), hold, full)
	n.waitFor(first.Add(time.Hour))
	if got := n.sent(); got != 3 || n.log.count() != 0 {
		t.Errorf("after another start: %d messages, %d lines", got, n.log.count())
	}
	n.close()
}

// After the deletion of its session a schedule goes on in another one, also over restarts.
func TestScheduleBeginsAnotherSession(t *testing.T) {
	data, now := filepath.Join(t.TempDir(), "data"), time.Now()
	n := openScheduled(t, data, now)
	first := n.putScheduled(now, "Look.")
	for hour, want := range []string{"beat", "beat-2", "beat-3"} {
		at := first.Add(time.Duration(hour) * time.Hour)
		n.clock.set(at)
		if one := n.waitFor(at.Add(time.Hour)); one.Session != want || one.Last.Failure != "" || n.sentIn(want) != 1 {
			t.Errorf("want a message in %s, got %d: %+v", want, n.sentIn(want), one)
		}
		if err := n.Forget(t.Context(), command.Forget{By: schedulingAlice, Session: want}); err != nil {
			t.Fatal(err)
		}
	}
	n.close()
	n = openScheduled(t, data, first.Add(2*time.Hour+time.Minute))
	if one := n.waitFor(first.Add(3 * time.Hour)); one.Session != "beat-4" || n.sentIn("beat-4") != 0 { // the last message was sent
		t.Errorf("after the start: %+v", one)
	}
	n.close()
}

// A schedule that somebody has made with an API key pauses once that key and all others with which the user may call
// the agent are invalid.
func TestScheduleOfRevokedKeyPauses(t *testing.T) {
	data, now := filepath.Join(t.TempDir(), "data"), time.Now()
	n := openScheduled(t, data, now)
	registry := func(user, key, operation, body string) {
		t.Helper()
		call := actor.Call{ID: n.NewCallID(), To: agents.RegistryID, Operation: operation, Left: RegistryTimeout, Principal: user, Origin: actor.System, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(body)}}}
		if key != "" {
			call.SetAuthority(key, 0)
		}
		if a, err := n.engine.Ask(t.Context(), call); err != nil || a.Reply.Refusal != nil {
			t.Fatalf("%s: %v %v", body, err, a.Reply.Refusal)
		}
	}
	keys := []string{"0123456789abcdef", "fedcba9876543210"}
	for i, of := range []string{`"scopes":["agents"]`, `"scopes":["call"],"agents":["helper"]`, `"scopes":["read"]`, `"scopes":["agents"]`, `"scopes":["call"],"agents":["other"]`} {
		id := fmt.Sprintf("%016d", i)
		if i < len(keys) {
			id = keys[i]
		}
		registry(agents.Operator, "", agents.OpCreateKey, fmt.Sprintf(`{"key_id":%q,"name":"k%d","user":"alice","digest":"%064d",%s}`, id, i, i, of))
	}
	first := now.Truncate(time.Minute).Add(30 * time.Minute)
	registry("alice", keys[0], agents.OpPut, fmt.Sprintf(`{"name":"helper","schedule":{"beat":{"cron":"%d * * * *","text":"Look.","user":"alice"}}}`, first.UTC().Minute()))
	n.waitFor(first)
	registry(agents.Operator, "", agents.OpRevokeKey, fmt.Sprintf(`{"key_id":%q}`, keys[0]))
	n.clock.set(first) // alice has another key
	if one := n.waitFor(first.Add(time.Hour)); one.Paused != "" || n.sent() != 1 {
		t.Errorf("with another key: %d messages, %+v", n.sent(), one)
	}
	registry(agents.Operator, "", agents.OpRevokeKey, fmt.Sprintf(`{"key_id":%q}`, keys[1]))
	for hour := range 2 {
		n.clock.set(first.Add(time.Duration(hour+1) * time.Hour))
		one := n.waitFor(first.Add(time.Duration(hour+2) * time.Hour))
		if !strings.Contains(one.Paused, keys[0]) || one.Next != 0 || n.sent() != 1 || n.log.count() != 1 {
			t.Errorf("without a key: %d messages, %d lines, %+v", n.sent(), n.log.count(), one)
		}
	}
	n.close()
}

// The times that come while a schedule is paused count as those that pass while no node runs: the last of them is sent after a
// start with a valid key, once, and each start without one logs that it is not.
func TestPausedTimesOverRestarts(t *testing.T) {
	data, now := filepath.Join(t.TempDir(), "data"), time.Now()
	n := openScheduled(t, data, now)
	registry := func(user, key, operation, body string) {
		t.Helper()
		call := actor.Call{ID: n.NewCallID(), To: agents.RegistryID, Operation: operation, Left: RegistryTimeout, Principal: user, Origin: actor.System, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(body)}}}
		if key != "" {
			call.SetAuthority(key, 0)
		}
		if a, err := n.engine.Ask(t.Context(), call); err != nil || a.Reply.Refusal != nil {
			t.Fatalf("%s: %v %v", body, err, a.Reply.Refusal)
		}
	}
	create := func(id string) {
		t.Helper()
		registry(agents.Operator, "", agents.OpCreateKey, fmt.Sprintf(`{"key_id":%q,"name":"k","user":"alice","digest":"%s","scopes":["call","agents"]}`, id, strings.Repeat(id, 4)))
	}
	create("0123456789abcdef")
	first := now.Truncate(time.Minute).Add(30 * time.Minute)
	registry("alice", "0123456789abcdef", agents.OpPut, fmt.Sprintf(`{"name":"helper","schedule":{"beat":{"cron":"%d * * * *","text":"Look.","user":"alice"}}}`, first.UTC().Minute()))
	n.waitFor(first)
	registry(agents.Operator, "", agents.OpRevokeKey, `{"key_id":"0123456789abcdef"}`)
	for hour := range 2 { // the second one in another node
		n.clock.set(first.Add(time.Duration(hour) * time.Hour))
		if one := n.waitFor(first.Add(time.Duration(hour+1) * time.Hour)); one.Paused == "" || n.sent() != 0 || n.log.count() != 1 {
			t.Errorf("hour %d: %d messages, %d lines, %+v", hour, n.sent(), n.log.count(), one)
		}
		n.close()
		n = openScheduled(t, data, first.Add(time.Duration(hour)*time.Hour+time.Minute))
		n.waitFor(first.Add(time.Duration(hour+1) * time.Hour))
	}
	create("fedcba9876543210")
	for range 2 { // the last time, and not again
		n.close()
		n = openScheduled(t, data, first.Add(time.Hour+10*time.Minute))
		if one := n.waitFor(first.Add(2 * time.Hour)); one.Paused != "" || n.sent() != 1 || n.log.count() != 0 {
			t.Errorf("with a key: %d messages, %d lines, %+v", n.sent(), n.log.count(), one)
		}
	}
	n.close()
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
		// Lord Howe sets its clocks by half an hour: forward at 02:00 on 4 October, and back at 02:00 on 5 April.
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T14:00:00Z", "2026-10-03T15:45:00Z"}, // 02:15 does not exist: 02:45
		{"0 * * * *", "Australia/Lord_Howe", "2026-10-03T14:30:00Z", "2026-10-03T15:30:00Z"},  // nor does 02:00: 02:30
		{"0 * * * *", "Australia/Lord_Howe", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z"},
		{"45 * * * *", "Australia/Lord_Howe", "2026-04-04T14:00:00Z", "2026-04-04T14:45:00Z"}, // 01:45 comes twice within half an hour
		{"45 * * * *", "Australia/Lord_Howe", "2026-04-04T14:45:00Z", "2026-04-04T16:15:00Z"},
		{"45 1 * * *", "Australia/Lord_Howe", "2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"},
		{"30 */2 * * *", "Europe/Berlin", "2026-03-28T23:30:00Z", "2026-03-29T01:30:00Z"}, // 02:30 does not exist: 03:30
		{"30 * * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"},
		{"30 * * * *", "Europe/Berlin", "2026-03-29T01:30:00Z", "2026-03-29T02:30:00Z"},
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
