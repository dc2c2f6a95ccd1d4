// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/postgrestest"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

func mustOpen(t *testing.T, url string, o Options) *Store {
	t.Helper()
	s, err := Open(url, "n1", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// message is the n-th entry of an actor.
func message(id actor.ID, n uint64) store.Entry {
	return store.Entry{Actor: id, Shard: dispatcher.ShardOf(id), N: n, Record: store.Buried{Call: actor.NewCallID(actor.Time(n), 1, n), At: actor.Time(n), Until: actor.Time(n + 1)}}
}

// acked counts the entries of actors that were reported as durable.
type acked struct {
	mu sync.Mutex
	n  map[actor.ID]uint64
}

func (a *acked) note(id actor.ID, n uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n[id] = max(a.n[id], n); a.n == nil {
		panic("no map")
	}
}

func (a *acked) sum() (sum uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.n {
		sum += n
	}
	return sum
}

// write commits entries of several actors until stop is closed. Each actor waits for its last entry.
func write(s *Store, acks *acked, writers int) (stop func()) {
	l := NewLog(s)
	done := make(chan struct{})
	var wait sync.WaitGroup
	for i := range writers {
		id := actor.NewID("writer", fmt.Sprint(i))
		wait.Go(func() {
			for n := uint64(1); ; n++ {
				select {
				case <-done:
					return
				default:
				}
				durable := make(chan struct{})
				l.Commit([]store.Entry{message(id, n)}, func() { acks.note(id, n); close(durable) })
				<-durable
			}
		})
	}
	return func() {
		close(done)
		wait.Wait()
		if err := l.Close(); err != nil {
			panic(err)
		}
	}
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// check compares what was acknowledged with what a later process reads, and verifies the chain.
func (a *acked) check(t *testing.T, url string) {
	t.Helper()
	s := mustOpen(t, url, Options{})
	for id, n := range a.n {
		saved, err := s.Load(id)
		if err != nil || len(saved.Entries) == 0 {
			t.Fatalf("%s: %d entries, error %v", id, len(saved.Entries), err)
		}
		for i := range saved.Entries {
			if saved.Entries[i].N != uint64(i)+1 {
				t.Fatalf("%s: entry %d at place %d", id, saved.Entries[i].N, i+1)
			}
		}
		if got := uint64(len(saved.Entries)); got < n {
			t.Errorf("%s has %d entries, %d were acknowledged", id, got, n)
		}
	}
	if _, err := s.VerifyAll(); err != nil {
		t.Errorf("chains: %v", err)
	}
	examined, err := Examine(url, nil)
	if err == nil || !errors.As(err, new(InUseError)) {
		t.Errorf("examined %+v beside a process that writes, error %v", examined, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if examined, err := Examine(url, nil); err != nil || examined.Wrong > 0 {
		t.Errorf("examined %+v, error %v", examined, err)
	}
}

// The database is killed while batches are on their way, and is away for a while. Nothing that was
// acknowledged is lost, nothing is stored twice, new work is refused meanwhile, and the same process
// continues. Batches whose answer was lost are settled.
func TestDatabaseIsKilledUnderLoad(t *testing.T) {
	for _, logs := range []int{1, 16} {
		t.Run(fmt.Sprint(logs), func(t *testing.T) { testKills(t, logs) })
	}
}

func testKills(t *testing.T, logs int) {
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{logs: logs})
	acks := acked{n: map[actor.ID]uint64{}}
	stop := write(s, &acks, 16)
	for round := range 5 {
		before := acks.sum()
		until(t, "entries are acknowledged", func() bool { return acks.sum() > before+300 })
		signal := syscall.SIGQUIT // at once
		if round%2 == 1 {
			signal = syscall.SIGINT // in order
		}
		server.Kill(signal)
		until(t, "new work is refused", func() bool { return s.Full() != nil })
		if err := s.Full(); errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "accepts no writes") {
			t.Errorf("refusal: %v", err)
		}
		server.Run()
		until(t, "the store accepts work again", func() bool { return s.Full() == nil })
	}
	stop()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	acks.check(t, url)
}

// A connection that dies while a batch is sent leaves a transaction behind that holds the lock of the
// log. The next connection ends it.
func TestConnectionsAreCutUnderLoad(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{})
	acks := acked{n: map[actor.ID]uint64{}}
	stop := write(s, &acks, 16)
	for range 30 {
		before := acks.sum()
		until(t, "entries are acknowledged", func() bool { return acks.sum() > before+50 })
		server.Exec(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'troupe %'")
	}
	stop()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	acks.check(t, url)
}

// A second process is refused while the first one has its connection. If it takes the log all the same,
// the first one can write no more: the row of the log decides.
func TestSecondProcessIsFenced(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{})
	if _, err := Open(url, "n1", Options{}); !errors.As(err, new(InUseError)) {
		t.Errorf("second process: %v", err)
	}
	id := actor.NewID("writer", "a")
	b := batch(t, s, message(id, 1))
	if err := s.Append(&b); err != nil {
		t.Fatal(err)
	}
	server.Exec(url, "UPDATE troupe.logs SET owner = 'another', epoch = epoch + 1")
	next := batchAfter(t, b.Mark(), message(id, 2))
	if err := s.Append(&next); !errors.As(err, new(store.Fenced)) {
		t.Errorf("append under an old epoch: %v", err)
	}
	if err := s.Apply([]store.Row{{Key: []byte("x"), Value: []byte("y")}}); err == nil {
		t.Error("rows were applied under an old epoch")
	}
	if _, ok, err := s.Get([]byte("x")); ok || err != nil {
		t.Errorf("row: %v, %v", ok, err)
	}
}

func batch(t *testing.T, s *Store, entries ...store.Entry) store.Batch {
	t.Helper()
	return batchAfter(t, s.End(), entries...)
}

func batchAfter(t *testing.T, end store.Mark, entries ...store.Entry) store.Batch {
	t.Helper()
	w := store.NewWriter(store.WriterConfig{Node: "n1", From: end})
	w.Append(entries)
	b, ok := w.Next()
	if !ok {
		t.Fatal("no batch")
	}
	return b
}

// A batch whose commit happened, but whose answer was lost, is settled as stored; one that did not
// arrive is stored once by the repeat.
func TestLostAnswerIsSettled(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{})
	id := actor.NewID("writer", "a")
	b := batch(t, s, message(id, 1))
	before := s.logs[0].head
	if err := s.Append(&b); err != nil {
		t.Fatal(err)
	}
	s.logs[0].head = before // as if the answer had been lost
	if stored, err := s.Settle(&b); !stored || err != nil {
		t.Fatalf("stored batch: %v, %v", stored, err)
	}
	next := batchAfter(t, b.Mark(), message(id, 2))
	_ = s.conn.Close(context.Background())
	if stored, err := s.Settle(&next); stored || err != nil {
		t.Fatalf("batch that was not sent: %v, %v", stored, err)
	}
	if err := store.Resume(s, &next); err != nil {
		t.Fatal(err)
	}
	if saved, err := s.Load(id); err != nil || len(saved.Entries) != 2 {
		t.Errorf("%d entries, error %v", len(saved.Entries), err)
	}
}

// transactionAfter returns a transaction of two logs of a store with two, and its next numbers.
func transactionAfter(t *testing.T, s *Store, entries ...store.Entry) *store.Transaction {
	t.Helper()
	ends := []store.LogEnd{}
	for _, l := range s.logs {
		ends = append(ends, store.LogEnd{Node: l.node, Anchor: store.Anchor{End: l.head}})
	}
	w := store.NewWriters(store.WriterConfig{}, ends)
	for _, e := range entries {
		w.Append([]store.Entry{e})
	}
	all, ok := w.Take()
	if !ok || len(all.Batches) != len(entries) {
		t.Fatalf("%v, %+v", ok, all)
	}
	w.Seal(all)
	return all
}

// A transaction of several logs is stored whole or not at all: if another process has one of its logs, or one
// head is elsewhere, nothing of it is.
func TestTransactionOfSeveralLogs(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{logs: 2})
	entry := func(shard uint16, n uint64) store.Entry {
		e := message(actor.NewID("writer", fmt.Sprint(shard)), n)
		e.Shard = shard
		return e
	}
	stored := func(want int) {
		t.Helper()
		for _, shard := range []uint16{0, 1} {
			if saved, err := s.Load(entry(shard, 1).Actor); err != nil || len(saved.Entries) != want {
				t.Fatalf("shard %d has %d entries, error %v, want %d", shard, len(saved.Entries), err, want)
			}
		}
	}
	first := transactionAfter(t, s, entry(0, 1), entry(1, 1))
	before := []store.Mark{s.logs[0].head, s.logs[1].head}
	if err := s.AppendAll(first); err != nil {
		t.Fatal(err)
	}
	stored(1)
	s.logs[0].head, s.logs[1].head = before[0], before[1] // as if the answer had been lost
	if settled, err := s.SettleAll(first); !settled || err != nil {
		t.Fatalf("stored transaction: %v, %v", settled, err)
	}
	// The same again, as a repeat without a settlement would be, is refused.
	if err := s.AppendAll(first); err == nil || errors.As(err, new(store.Unknown)) {
		t.Errorf("a repeat: %v", err)
	}
	stored(1)
	next := transactionAfter(t, s, entry(0, 2), entry(1, 2))
	if settled, err := s.SettleAll(next); settled || err != nil {
		t.Fatalf("transaction that was not sent: %v, %v", settled, err)
	}
	server.Exec(url, "UPDATE troupe.logs SET batch = 2, hash = '\\x"+strings.Repeat("00", 32)+"' WHERE log = 1")
	if _, err := s.SettleAll(next); err == nil || !strings.Contains(err.Error(), "log 1 of the database ends at batch 2") {
		t.Errorf("settled with a head that moved by hand: %v", err)
	}
	if err := s.AppendAll(next); err == nil || !strings.Contains(err.Error(), "does not continue the database") {
		t.Errorf("appended to a head that moved by hand: %v", err)
	}
	stored(1)
	server.Exec(url, "UPDATE troupe.logs SET batch = 1, owner = 'another', epoch = epoch + 1 WHERE log = 1")
	var fenced store.Fenced
	if err := s.AppendAll(next); !errors.As(err, &fenced) || len(fenced.Shards) != 1 || fenced.Shards[0].Shard != 1 {
		t.Errorf("appended to the log of another: %v", err)
	}
	if err := s.Apply([]store.Row{{Key: []byte("x"), Value: []byte("y")}}); err == nil {
		t.Error("rows were applied although another process has a log")
	}
	stored(1)
}

// A database that lost acknowledged work, or was restored from a backup, is refused.
func TestRewoundDatabaseIsRefused(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{})
	id := actor.NewID("writer", "a")
	b := batch(t, s, message(id, 1))
	if err := s.Append(&b); err != nil {
		t.Fatal(err)
	}
	server.Exec(url, "UPDATE troupe.logs SET batch = 0, pos = 0, hash = ''")
	next := batchAfter(t, b.Mark(), message(id, 2))
	if err := s.Append(&next); err == nil || !strings.Contains(err.Error(), "does not continue") {
		t.Errorf("append: %v", err)
	}
}

// Each start that would not be safe, or cannot work, says what to change.
func TestRefusedDatabases(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	mustOpen(t, url, Options{logs: 1}).Close() //nolint:errcheck // makes the tables
	other := server.Database()
	all, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	repair := fmt.Sprintf("UPDATE troupe.schema SET version = %d; INSERT INTO troupe.store (node, logs, format, secret) VALUES ('n1', 1, '', '') ON CONFLICT DO NOTHING", len(all))
	for what, c := range map[string]struct {
		url, node, want string
		prepare         func()
	}{
		"no URL":             {url: "postgres://%zz", want: "is not a database URL"},
		"no server":          {url: "postgres://troupe@127.0.0.1:1/x", want: "no database answers"},
		"no database":        {url: server.URL("absent"), want: "createdb"},
		"other node":         {url: url, node: "n2", want: `belongs to node "n1"`},
		"asynchronous":       {url: url + "?options=-csynchronous_commit%3Doff", want: "synchronous_commit"},
		"read-only":          {url: url + "?options=-cdefault_transaction_read_only%3Don", want: "default_transaction_read_only"},
		"newer schema":       {url: url, want: "schema version 99", prepare: func() { server.Exec(url, "UPDATE troupe.schema SET version = 99") }},
		"another format":     {url: url, want: "has format", prepare: func() { server.Exec(url, "UPDATE troupe.store SET format = '1'") }},
		"more logs":          {url: url, want: "has 65 logs, this program reads stores with 1 to 64", prepare: func() { server.Exec(url, "UPDATE troupe.store SET logs = 65") }},
		"logs without heads": {url: url, want: "has 1 rows, want one for each of the 16 logs", prepare: func() { server.Exec(url, "UPDATE troupe.store SET logs = 16") }},
		"part of a store":    {url: url, want: "an import was not completed", prepare: func() { server.Exec(url, "DELETE FROM troupe.store") }},
		"no right to create": {url: strings.Replace(other, "troupe@", "guest@", 1), want: "may not do this", prepare: func() { server.Exec(other, "CREATE ROLE guest LOGIN") }},
	} {
		if c.prepare != nil {
			c.prepare()
		}
		node := actor.NodeID("n1")
		if c.node != "" {
			node = actor.NodeID(c.node)
		}
		s, err := Open(c.url, node, Options{})
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
		server.Exec(url, repair)
		server.Exec(url, "UPDATE troupe.store SET logs = 1, format = $1", string(store.FormatRow().Value))
	}
}

// A connection that the server ends while there is no work is replaced, with its lock. Rows that somebody
// wrote into a table do not stop the log.
func TestIdleConnectionIsReplaced(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	server.Exec(url, "ALTER DATABASE d1 SET idle_session_timeout = 1000")
	s := mustOpen(t, url, Options{})
	server.Exec(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'troupe %'")
	until(t, "the lock is held again", func() bool {
		_ = s.Full()
		c, err := pgx.Connect(context.Background(), url)
		if err != nil {
			return false
		}
		defer c.Close(context.Background()) //nolint:errcheck // it only asked
		var free bool
		return c.QueryRow(context.Background(), "SELECT pg_try_advisory_lock($1)", int64(writerLock)).Scan(&free) == nil && !free
	})
	run := actor.NewCallID(5, 1, 1)
	server.Exec(url, "INSERT INTO troupe.event_rows VALUES ($1, 1, now(), 'by hand', '{}')", run.String())
	id := actor.NewID("writer", "a")
	e := message(id, 1)
	e.Events = []store.RunEvent{{Run: run, Seq: 1, Body: []byte(`{}`)}}
	b := batch(t, s, e)
	err := s.Append(&b)
	for lost := (store.Unknown{}); errors.As(err, &lost); { // the server has ended the connection meanwhile
		err = store.Resume(s, &b)
	}
	if err != nil {
		t.Error(err)
	}
}

// A scan of several pages shows the state at its beginning, whatever is written meanwhile.
func TestScanShowsOneState(t *testing.T) {
	s := mustOpen(t, postgrestest.Start(t).Database(), Options{})
	const count = 200
	key := func(i int) []byte { return fmt.Appendf(nil, "z/%03d", i) }
	var rows []store.Row
	for i := range count {
		rows = append(rows, store.Row{Key: key(i), Value: []byte("old")})
	}
	if err := s.Apply(rows); err != nil {
		t.Fatal(err)
	}
	for name, scan := range map[string]func(from, to []byte, each func(key, value []byte) bool) error{"forwards": s.Scan, "backwards": s.ScanBack} {
		n := 0
		err := scan([]byte("z/"), []byte("z0"), func(k, value []byte) bool {
			if n++; n == 1 {
				if err := s.Apply([]store.Row{{Key: key(3), Value: []byte("new")}, {Key: key(count - 3), Value: []byte("new")}, {Key: key(100), Delete: true}}); err != nil {
					t.Error(err)
				}
			}
			if string(value) != "old" {
				t.Errorf("%s: %s is %s", name, k, value)
			}
			return true
		})
		if err != nil || n != count {
			t.Errorf("%s: %d rows, error %v", name, n, err)
		}
		if err := s.Apply(rows); err != nil { // as before
			t.Fatal(err)
		}
	}
}

// No password of a URL is in an error or a log line.
func TestPasswordsAreNotShown(t *testing.T) {
	for _, url := range []string{"postgres://u:s3cret@127.0.0.1:1/x", "postgres://u@127.0.0.1:1/x?password=s3cret", "postgres://u:s3cret@%zz/x",
		"postgres://u@127.0.0.1:1/x?sslpassword=s3cret", "postgres://u@127.0.0.1:1/x?connect_timeout=s3cret", "postgres://u@127.0.0.1:1/x?user=u;password=s3cret", "host=127.0.0.1 port=1 password=s3cret"} {
		if _, err := Open(url, "n1", Options{}); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v", err)
		}
	}
}

// A reader beside the running server sees a state of one moment, and takes nothing.
func TestReadOnlyBesideTheWriter(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{})
	id := actor.NewID("writer", "a")
	b := batch(t, s, message(id, 1))
	if err := s.Append(&b); err != nil {
		t.Fatal(err)
	}
	r := mustOpen(t, url, Options{ReadOnly: true})
	if saved, err := r.Load(id); err != nil || len(saved.Entries) != 1 {
		t.Errorf("%d entries, error %v", len(saved.Entries), err)
	}
	next := batchAfter(t, b.Mark(), message(id, 2))
	if err := s.Append(&next); err != nil {
		t.Errorf("the writer was disturbed: %v", err)
	}
}

// What a client asks while the database is away is refused as unavailable. What a cell loads is there
// once the database is back.
func TestQueriesAreRefusedWhileAway(t *testing.T) {
	server := postgrestest.Start(t)
	s := mustOpen(t, server.Database(), Options{})
	id := actor.NewID("writer", "a")
	b := batch(t, s, message(id, 1))
	if err := s.Append(&b); err != nil {
		t.Fatal(err)
	}
	server.Kill(syscall.SIGQUIT)
	until(t, "a store without work notices the outage", func() bool { return s.Full() != nil })
	server.Run()
	until(t, "a store without work notices its end", func() bool { return s.Full() == nil })

	server.Kill(syscall.SIGQUIT)
	if _, err := s.Queries().Load(id); !errors.As(err, new(store.Unavailable)) {
		t.Errorf("query: %v", err)
	}
	loaded := make(chan error, 1)
	go func() {
		saved, err := s.Load(id)
		if err == nil && len(saved.Entries) != 1 {
			err = fmt.Errorf("%d entries", len(saved.Entries))
		}
		loaded <- err
	}()
	until(t, "a read that waits tells of the outage", func() bool { return s.down.Load() != nil })
	server.Run()
	if err := <-loaded; err != nil {
		t.Errorf("load: %v", err)
	}
}

// A connection whose client froze in the middle of a transaction holds the row of the log, and no time-out
// of the server ends it. The next connection does.
func TestHalfSentTransactionIsEnded(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{})
	ctx := context.Background()
	frozen, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close(ctx) //nolint:errcheck // the server has ended it
	if _, err := frozen.Exec(ctx, "SET application_name = 'troupe n1'; BEGIN; SELECT 1 FROM troupe.logs FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	s.pid = int32(frozen.PgConn().PID())
	_ = s.conn.Close(ctx)
	b := batch(t, s, message(actor.NewID("writer", "a"), 1))
	stored := make(chan error, 1)
	go func() { stored <- s.Append(&b) }()
	select {
	case err := <-stored:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the batch waits for a connection whose client is gone")
		_ = frozen.Close(ctx)
		<-stored
	}
}

// A deleted session is gone for readers and in the tables with its entry, before it is erased, also after a
// restart.
func TestDeletedSessionIsGoneAtOnce(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{})
	id, run := actor.NewID("writer", "s-1"), actor.NewCallID(5, 1, 1)
	accepted := store.Entry{Actor: id, N: 1, Record: store.Accepted{At: 5, Call: actor.Call{ID: run, Root: run, To: id, Operation: actor.HandleMessageFull,
		Kind: actor.Waiting, Lane: actor.Normal, Left: 1000, Attempt: 1, Origin: actor.Human, Parts: actor.Text("secret")}}}
	ended := store.Entry{Actor: id, N: 2, Record: store.Ended{Call: run, At: 6, Until: 7, Reply: actor.Reply{Call: run, Run: run, Status: actor.Succeeded, Parts: actor.Text("done")}}}
	end := store.Mark{}
	write := func(s *Store, entries ...store.Entry) {
		t.Helper()
		b := batchAfter(t, end, entries...)
		if err := s.Append(&b); err != nil {
			t.Fatal(err)
		}
		end = b.Mark()
	}
	listed := func(s *Store) (n, rows int) {
		t.Helper()
		page, err := s.Runs(id.Tenant, runs.Filter{Calls: true}, actor.CallID{}, 10)
		if err == nil {
			err = s.gets.QueryRow(context.Background(), "SELECT (SELECT count(*) FROM troupe.runs) + (SELECT count(*) FROM troupe.sessions)").Scan(&rows)
		}
		if err != nil {
			t.Fatal(err)
		}
		return len(page.All), rows
	}
	write(s, accepted)
	write(s, ended)
	if n, rows := listed(s); n != 1 || rows != 2 {
		t.Errorf("%d runs and %d rows before the deletion", n, rows)
	}
	write(s, store.ForgottenEntry(id.Tenant, "s-1", 0, 0, 8))
	if n, rows := listed(s); n != 0 || rows != 0 {
		t.Errorf("%d runs and %d rows after it", n, rows)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := mustOpen(t, url, Options{})
	if n, rows := listed(again); n != 0 || rows != 0 {
		t.Errorf("%d runs and %d rows after a restart", n, rows)
	}
}
