// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/internal/postgrestest"
)

// successor returns positions as another process has them that takes a log.
func successor(t *testing.T, s *Store, url string, server *postgrestest.Server, log int, owner string) *Positions {
	t.Helper()
	server.Exec(url, fmt.Sprintf("UPDATE troupe.logs SET owner = '%s', epoch = epoch + 1 WHERE log = %d", owner, log))
	p := &Positions{store: s, kind: "webhook", log: int16(log), owner: owner}
	if err := s.positions.QueryRow(t.Context(), "SELECT epoch FROM troupe.logs WHERE log = $1", log).Scan(&p.epoch); err != nil {
		t.Fatal(err)
	}
	return p
}

// A process that has lost a log writes no position of it any more, neither at once, nor once its successor has read it,
// nor after it got the log back, nor with a write that was under way.
func TestFormerOwnerWritesNoPosition(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{logs: 2})
	has := func(p *Positions, want string) {
		t.Helper()
		if value, ok, err := p.Read("ops"); err != nil || string(value) != want || ok != (want != "") {
			t.Errorf("position %q, %v, %v, want %q", value, ok, err, want)
		}
	}
	write := func(p *Positions, value string, refused bool) {
		t.Helper()
		if err := p.Write("ops", []byte(value)); errors.Is(err, logs.ErrNotOwner) != refused || err != nil && !refused {
			t.Errorf("write of %s: %v, want refused %v", value, err, refused)
		}
	}
	a, other := s.Positions("webhook", 0), s.Positions("webhook", 1)
	has(a, "")
	write(a, "a1", false)
	write(other, "of another log", false)
	b := successor(t, s, url, server, 0, "b")
	write(a, "a2", true)
	if _, _, err := a.Read("new"); !errors.Is(err, logs.ErrNotOwner) {
		t.Errorf("read of a former owner: %v", err)
	}
	if err := a.Remove("ops"); err != nil {
		t.Error(err)
	}
	has(b, "a1")
	write(a, "a3", true)
	write(b, "b1", false)

	// A write that has passed the owner is under way when the log gets another owner, which reads the position.
	ctx := t.Context()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background()) //nolint:errcheck // of a test
	tx, err := c.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "UPDATE troupe.positions SET value = 'b2' WHERE name = 'ops' AND log = 0 AND epoch <= $1", b.epoch); err != nil {
		t.Fatal(err)
	}
	again := successor(t, s, url, server, 0, s.owner)
	read := make(chan struct{})
	go func() {
		defer close(read)
		has(again, "b2")
	}()
	until(t, "the read waits for the write", func() bool {
		var waits bool
		_ = s.positions.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE troupe.positions%')").Scan(&waits)
		return waits
	})
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	<-read
	// A write that was given up arrives after a later one.
	write(again, "a4", false)
	write(again, "a5", false)
	again.last.Add(-2)
	if err := again.Write("ops", []byte("a4 again")); !errors.Is(err, logs.ErrNotOwner) {
		t.Errorf("an older write: %v", err)
	}
	again.last.Add(1)
	has(again, "a5")
	// The same process as at first, and yet not with the position that it had then.
	write(a, "a6", true)
	// The row of the log is as it was, as a transaction that began earlier sees it: the epoch of the position decides.
	server.Exec(url, fmt.Sprintf("UPDATE troupe.logs SET owner = 'b', epoch = %d WHERE log = 0", b.epoch))
	write(b, "b3", true)
	server.Exec(url, fmt.Sprintf("UPDATE troupe.logs SET owner = '%s', epoch = %d WHERE log = 0", s.owner, again.epoch))
	write(again, "a7", false)
	has(again, "a7")
	has(other, "of another log")
}

// While the database is away or frozen, a write fails within a bounded time, and later ones succeed.
func TestPositionsOfDatabaseThatIsAway(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{})
	p := s.Positions("webhook", 0)
	if err := p.Write("ops", []byte("1")); err != nil {
		t.Fatal(err)
	}
	fails := func(what string, times int) {
		t.Helper()
		for range times {
			began := time.Now()
			err := p.Write("ops", []byte("2"))
			if took := time.Since(began); err == nil || errors.Is(err, logs.ErrNotOwner) || took > 2*positionTimeout {
				t.Errorf("%s: %v after %s", what, err, took)
			}
			if _, _, err := p.Read("ops"); err == nil || errors.Is(err, logs.ErrNotOwner) {
				t.Errorf("%s: read: %v", what, err)
			}
			if _, err := p.Names(); err == nil || !strings.Contains(err.Error(), "webhook") {
				t.Errorf("%s: names: %v", what, err)
			}
		}
	}
	// A lock on the row stands for a server that does not answer.
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "BEGIN; LOCK TABLE troupe.positions"); err != nil {
		t.Fatal(err)
	}
	fails("frozen", 1)
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "it is written", func() bool { return p.Write("ops", []byte("3")) == nil })
	server.Kill(syscall.SIGQUIT)
	fails("away", 3)
	server.Run()
	until(t, "it is written", func() bool { return p.Write("ops", []byte("4")) == nil })
	if value, ok, err := p.Read("ops"); err != nil || !ok || string(value) != "4" {
		t.Errorf("position %q, %v, %v", value, ok, err)
	}
}
