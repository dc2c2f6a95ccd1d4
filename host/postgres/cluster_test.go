// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package postgres

import (
	"context"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/internal/postgrestest"
	"github.com/troupe-run/troupe/placement"
)

var quick = placement.Timing{TTL: 1200 * time.Millisecond, Margin: 100 * time.Millisecond, Beat: 250 * time.Millisecond}

// joined is a member whose loss is received and not the end of the process.
type joined struct {
	*Cluster
	lost chan string
}

func join(t *testing.T, url string) joined {
	t.Helper()
	j := joined{lost: make(chan string, 8)}
	var err error
	j.Cluster, err = Join(ClusterConfig{URL: url, Name: "team", Node: "n1", Address: "here", Timing: quick, Logs: 16, Lost: func(line string) { j.lost <- line }})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Begin(); err != nil {
		t.Fatal(err)
	}
	return j
}

// own waits until the member holds a number of logs.
func (j joined) own(t *testing.T, logs int) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		v, changed := j.View()
		if len(v.Held) == logs {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("holds %d logs, want %d", len(v.Held), logs)
		}
	}
}

// epoch returns the epoch of the first log.
func (j joined) epoch() int64 { return j.epochOf(0) }

func (j joined) leave(t *testing.T) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// A member that joins gets its share from the one that has all, and all when that one leaves, each log under a greater
// epoch than before.
func TestMembersShareLogs(t *testing.T) {
	url := postgrestest.Start(t).Database()
	a := join(t, url)
	a.own(t, 16)
	if !a.Serves() || a.epoch() != 1 {
		t.Errorf("serves %v under epoch %d", a.Serves(), a.epoch())
	}
	s, err := Open(url, "n1", Options{Cluster: a.Cluster})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(nil); err == nil || !strings.Contains(err.Error(), "writes no log") {
		t.Errorf("a member writes before it has adopted a log: %v", err)
	}
	first, err := s.Adopt(15, 1)
	if err != nil || first.Start != 1 {
		t.Fatalf("adopted %+v, %v", first, err)
	}
	if err := s.Apply(nil); err != nil {
		t.Error(err)
	}
	b := join(t, url)
	x, err := Members(url)
	all := x.Members
	if err != nil || x.Name != "team" || !x.Placed() || len(all) != 2 || all[0].Member != a.Name() || all[0].Logs != 16 || all[1].Logs != 0 || all[1].LeaseMS <= 0 {
		t.Errorf("members of %q: %+v, %v", x.Name, all, err)
	}
	for len(surplusOf(a)) < 8 {
		waitForChange(t, a)
	}
	s.Drop(15)
	for _, h := range surplusOf(a) {
		if err := a.Release(h.Log); err != nil {
			t.Fatal(err)
		}
	}
	a.own(t, 8)
	b.own(t, 8)
	if _, err := s.Adopt(15, 1); err == nil || !strings.Contains(err.Error(), "log 15 belongs to \""+b.Name()+"\" under epoch 2") {
		t.Errorf("a log of another member is adopted: %v", err)
	}
	if err := a.Release(15); err != nil { // of no effect
		t.Error(err)
	}
	if v, _ := b.View(); len(v.Members) != 2 || v.Owners[15].Member != b.Name() || v.Owners[0].Address != "here" {
		t.Errorf("the cluster as one sees it: %+v", v)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	a.leave(t)
	b.own(t, 16)
	if b.epoch() != 2 || a.Serves() || len(a.lost) != 0 {
		t.Errorf("epoch %d, the former one serves: %v, lost %d", b.epoch(), a.Serves(), len(a.lost))
	}
	b.leave(t)
}

func surplusOf(j joined) []placement.Held {
	v, _ := j.View()
	return v.Surplus
}

func waitForChange(t *testing.T, j joined) {
	t.Helper()
	_, changed := j.View()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing has changed")
	}
}

// A process of no cluster, or of another one, is refused even while nobody serves.
func TestStoreOfClusterIsRefused(t *testing.T) {
	url := postgrestest.Start(t).Database()
	alone, err := Open(url, "n1", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := alone.Close(); err != nil {
		t.Fatal(err)
	}
	a := join(t, url)
	if _, err := Open(url, "n1", Options{}); err == nil || !strings.Contains(err.Error(), `belongs to the cluster "team"`) {
		t.Errorf("got %v", err)
	}
	if _, err := Open(url, "", Options{ReadOnly: true, Idle: true}); err == nil || !strings.Contains(err.Error(), "is in use by "+a.Name()) {
		t.Errorf("got %v", err)
	}
	a.leave(t)
	if _, err := Open(url, "n1", Options{}); err == nil || !strings.Contains(err.Error(), "give --cluster team") {
		t.Errorf("got %v", err)
	}
	if s, err := Open(url, "", Options{ReadOnly: true, Idle: true}); err != nil {
		t.Error(err)
	} else if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, test := range []struct {
		config ClusterConfig
		want   string
	}{
		{ClusterConfig{URL: url, Name: "other", Node: "n1", Timing: quick}, `belongs to the cluster "team", not to "other"`},
		{ClusterConfig{URL: url, Name: "team", Node: "n2", Timing: quick}, "n2"},
		{ClusterConfig{URL: url, Node: "n1", Timing: quick}, "needs a name"},
		{ClusterConfig{URL: url, Name: "team", Node: "n1"}, "want at least two beats"},
	} {
		if _, err := Join(test.config); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v", test.want, err)
		}
	}
}

// An owner whose lease has run out is removed by the next one, with the locks that its connections hold. It
// is told, and its writes are refused.
func TestFrozenOwnerIsReplaced(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	a := join(t, url)
	a.own(t, 16)
	s, err := Open(url, "n1", Options{Cluster: a.Cluster})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Adopt(3, 1); err != nil {
		t.Fatal(err)
	}
	// A transaction whose client is gone in its middle: it has moved the head and does not end.
	held, err := pgx.ConnectConfig(t.Context(), s.config)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close(context.Background()) //nolint:errcheck // the server has closed it
	if _, err := held.Exec(t.Context(), "BEGIN; SELECT 1 FROM troupe.logs FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	a.table.timeout = time.Nanosecond // it reaches the database no more
	b := join(t, url)
	b.own(t, 16)
	if a.Serves() {
		t.Error("two members serve")
	}
	if err := s.Apply(nil); err == nil || !strings.Contains(err.Error(), "another process has taken the store") {
		t.Errorf("the former owner writes: %v", err)
	}
	a.table.timeout = time.Second
	if line := <-a.lost; !strings.Contains(line, "another member removed it") || !strings.Contains(line, "nothing acknowledged is lost") {
		t.Errorf("got %q", line)
	}
	b.leave(t)
	a.leave(t)
}

// While the database is away, no member serves beyond its lease, and no process ends. Afterwards the owner continues.
func TestClusterOutlivesOutage(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	a, b := join(t, url), joined{}
	a.own(t, 16)
	b = join(t, url)
	server.Kill(syscall.SIGQUIT)
	<-time.After(quick.TTL)
	if a.Serves() {
		t.Error("a member serves beyond its lease")
	}
	server.Run()
	a.Await(nil)
	if !a.Serves() || b.epoch() != 0 || a.epoch() != 1 {
		t.Errorf("after the outage: %v under epoch %d, %d", a.Serves(), a.epoch(), b.epoch())
	}
	select {
	case line := <-a.lost:
		t.Error(line)
	case line := <-b.lost:
		t.Error(line)
	default:
	}
	stopped := make(chan struct{})
	close(stopped)
	a.leave(t)
	a.Await(stopped) // does not wait
	b.own(t, 16)
	b.leave(t)
}

// Of members that are asked to leave at once, all but one learn it, also those that stand by.
func TestMemberIsAskedToLeave(t *testing.T) {
	url := postgrestest.Start(t).Database()
	a := join(t, url)
	a.own(t, 16)
	b, c := join(t, url), join(t, url)
	if err := Drain(url, "nobody"); err == nil || !strings.Contains(err.Error(), `no member is named "nobody"`) {
		t.Errorf("a member that does not exist: %v", err)
	}
	select {
	case <-a.Leaving():
		t.Error("was not asked")
	default:
	}
	asked := make(chan error, 3)
	for _, j := range []joined{a, b, c} { // at once
		go func() { asked <- Drain(url, j.Name()) }()
	}
	last := 0
	for range 3 {
		switch err := <-asked; {
		case err == nil:
		case strings.Contains(err.Error(), ErrLast.Error()):
			last++
		default:
			t.Error(err)
		}
	}
	if last != 1 {
		t.Errorf("%d of 3 members were refused, want 1", last)
	}
	if members, logs, epoch, lease := a.Stats(); members != 3 || logs != 16 || epoch != 16 || lease <= 0 || lease > quick.TTL {
		t.Errorf("%d members, %d logs, epoch %d, a lease of %v", members, logs, epoch, lease)
	}
	for _, j := range []joined{b, c} {
		select {
		case <-j.Leaving():
		case <-time.After(3 * quick.Beat): // it is the one that stays, or its next beat tells it
		}
	}
	x, err := Members(url)
	all := x.Members
	leaving := 0
	for _, m := range all {
		if m.Leaving {
			leaving++
		}
	}
	if err != nil || len(all) != 3 || leaving != 2 || all[0].Logs != 16 {
		t.Errorf("%+v, %v", all, err)
	}
	c.leave(t)
	b.leave(t)
	a.leave(t)
	d := join(t, url) // another process, and a later one of the same machine
	d.own(t, 16)
	select {
	case <-d.Leaving():
		t.Error("a new member was asked to leave")
	case <-time.After(3 * quick.Beat):
	}
	if err := Drain(url, d.Name()); err == nil || !strings.Contains(err.Error(), ErrLast.Error()) {
		t.Errorf("the only member: %v", err)
	}
	d.leave(t)
}

// A store says whether its commits wait for a standby.
func TestStoreKnowsWhetherCommitsWait(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s, err := Open(url, "n1", Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, standby := range []string{"", "other", ""} {
		server.Exec(url, "ALTER SYSTEM SET synchronous_standby_names = '"+standby+"'")
		server.Exec(url, "SELECT pg_reload_conf()")
		for s.Synchronous() != (standby != "") {
			if err := t.Context().Err(); err != nil {
				t.Fatal(err)
			}
			_ = s.Full()
			<-time.After(time.Millisecond)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Processes that start at once on an empty database make one store, and share its logs.
func TestMembersStartAtOnce(t *testing.T) {
	server := postgrestest.Start(t)
	for range 5 {
		url := server.Database()
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				x, err := Join(ClusterConfig{URL: url, Name: "team", Node: "n1", Address: "here", Timing: quick, Logs: 3, Lost: func(line string) { t.Error(line) }})
				if err == nil {
					err = x.Begin()
				}
				if err != nil {
					t.Error(err)
					return
				}
				owned := func() bool {
					v, _ := x.View()
					return !slices.ContainsFunc(v.Owners, func(o placement.Owner) bool { return o.Member == "" })
				}
				late := time.After(20 * time.Second)
				for !owned() {
					_, changed := x.View()
					if owned() {
						break
					}
					select {
					case <-changed:
					case <-late:
						t.Error("a log has no owner")
					}
				}
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}
