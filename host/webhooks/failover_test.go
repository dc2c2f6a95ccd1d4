// SPDX-License-Identifier: Apache-2.0

package webhooks_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/host/webhooks"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// table has positions of one log, which only its owner writes, and which may be away.
type table struct {
	mu      sync.Mutex
	owner   string
	away    bool
	rows    map[string]string
	written []time.Time
	tries   int
	refused int
}

// member is a process that reads and writes the table.
type member struct {
	*table
	name string
}

func (m member) allow() error {
	switch {
	case m.away:
		return errors.New("the database is away")
	case m.owner != m.name:
		m.refused++
		return logs.ErrNotOwner
	}
	return nil
}

func (m member) Read(name string) ([]byte, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	value, ok := m.rows[name]
	return []byte(value), ok, m.allow()
}

func (m member) Write(name string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tries++
	if err := m.allow(); err != nil {
		return err
	}
	m.rows[name] = string(value)
	m.written = append(m.written, time.Now())
	return nil
}

func (m member) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.rows, name)
	return m.allow()
}

func (m member) Names() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.rows)), m.allow()
}

func (m member) Place(name string) string { return "the row " + name }

func (t *table) set(owner string, away bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owner, t.away = owner, away
}

func newTable() *table { return &table{owner: "a", rows: map[string]string{}} }

// hook counts the deliveries that it takes, by id.
type hook struct {
	mu     sync.Mutex
	taken  map[string]int
	refuse func(id string) bool // nil: nothing is refused
}

func (h *hook) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	status, id := http.StatusOK, r.Header.Get("webhook-id")
	if h.refuse != nil && h.refuse(id) {
		status = http.StatusServiceUnavailable
	} else {
		h.taken[id]++
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}, nil
}

func (h *hook) set(refuse func(id string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = refuse
}

func (h *hook) counts() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.taken)
}

// once reports deliveries that were not made once.
func (h *hook) once(t *testing.T, ids []string) {
	t.Helper()
	counts := h.counts()
	for _, id := range ids {
		if counts[id] != 1 {
			t.Errorf("%s was delivered %d times", id, counts[id])
		}
	}
	if len(counts) != len(ids) {
		t.Errorf("%d deliveries, want %d", len(counts), len(ids))
	}
}

func newHook() *hook { return &hook{taken: map[string]int{}} }

// adopt opens the webhooks of a log at its end.
func adopt(t *testing.T, s *source, p logs.Positions, h *hook, log io.Writer, rooms webhooks.Rooms) *webhooks.Webhooks {
	t.Helper()
	s.mu.Lock()
	s.end = uint64(len(s.all))
	s.mu.Unlock()
	egress, err := upstream.NewEgress(upstream.AllowLoopback())
	if err != nil {
		t.Fatal(err)
	}
	w, err := webhooks.Open(webhooks.Options{Webhooks: []webhooks.Config{{Name: "ops", URL: "http://127.0.0.1:1/", SecretEnv: "SECRET"}}, Positions: p, Transport: h, Egress: egress,
		Env: func(string) (string, bool) { return secret, true }, Logger: slog.New(slog.NewTextHandler(log, nil)), Rooms: rooms}, s)
	if err != nil {
		t.Fatal(err)
	}
	w.Start()
	return w
}

// A log moves between processes again and again, while its receiver is away too. Each notice is delivered once: a
// process that gets the log back does not continue where it was itself.
func TestLogMovesBetweenProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, all, h := &source{}, newTable(), newHook()
		var ids []string
		add := func(n int) {
			for range n {
				ids = append(ids, s.add(byte(len(ids)%7), runs.NoticeRunFailed))
			}
		}
		for i := range 6 {
			name := []string{"a", "b", "c"}[i%3]
			all.set(name, false)
			add(5) // while no process has the log; the first is new, and begins behind them
			if i == 0 {
				ids = nil
			}
			w := adopt(t, s, member{all, name}, h, io.Discard, nil)
			add(20)
			<-time.After(time.Minute)
			stuck := s.add(1, runs.NoticeRunFailed)
			ids = append(ids, stuck)
			h.set(func(id string) bool { return id == stuck })
			add(20)
			<-time.After(time.Minute)
			w.Close()
			h.set(nil)
		}
		w := adopt(t, s, member{all, "c"}, h, io.Discard, nil)
		<-time.After(10 * time.Minute)
		w.Close()
		h.once(t, ids)
	})
}

// A process that has lost its log without a notice stops with its first write, delivers nothing afterwards and leaves
// the position of its successor alone.
func TestFormerOwnerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, all, former, h := &source{}, newTable(), newHook(), newHook()
		log := &bytes.Buffer{}
		a := adopt(t, s, member{all, "a"}, former, log, nil)
		s.add(1, runs.NoticeRunFailed)
		<-time.After(time.Minute)
		all.set("b", false)
		b := adopt(t, s, member{all, "b"}, h, io.Discard, nil)
		ids := []string{s.add(2, runs.NoticeRunFailed)} // both deliver it, and then the write of a is refused
		<-time.After(time.Minute)
		for i := range 100 {
			ids = append(ids, s.add(byte(i), runs.NoticeRunFailed))
		}
		<-time.After(time.Minute)
		synctest.Wait()
		h.once(t, ids)
		if got := former.counts(); len(got) != 2 {
			t.Errorf("the former owner made %d deliveries, want 2", len(got))
		}
		if n := strings.Count(log.String(), "another process has the log"); n != 1 || all.refused != 1 {
			t.Errorf("%d lines for %d refused writes, want 1: %s", n, all.refused, log)
		}
		began := time.Now()
		a.Close()
		if took := time.Since(began); took > 0 {
			t.Errorf("the former owner closed after %s", took)
		}
		b.Close()
		if got := all.rows["ops"]; got != fmt.Sprintf(`{"batch":%d}`, len(s.all)) {
			t.Errorf("position %s", got)
		}
	})
}

// While the database is away, deliveries go on, the position is tried now and then with one line in the log, and it is
// written once the database is back: nothing is repeated afterwards.
func TestPositionsAreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, all, h := &source{}, newTable(), newHook()
		log := &bytes.Buffer{}
		w := adopt(t, s, member{all, "a"}, h, log, nil)
		var ids []string
		all.set("a", true)
		synctest.Wait()
		before := all.tries
		for i := range 300 {
			ids = append(ids, s.add(byte(i), runs.NoticeRunFailed))
			<-time.After(200 * time.Millisecond)
		}
		synctest.Wait()
		h.once(t, ids)
		if tries := all.tries - before; tries < 10 || tries > 35 {
			t.Errorf("%d writes were tried in a minute, want one every two seconds", tries)
		}
		if n := strings.Count(log.String(), "cannot be written"); n != 1 {
			t.Errorf("%d lines, want 1: %s", n, log)
		}
		all.set("a", false)
		<-time.After(10 * time.Second)
		synctest.Wait()
		if got := all.rows["ops"]; got != `{"batch":300}` || !strings.Contains(log.String(), "is written again") {
			t.Errorf("position %s, log %s", got, log)
		}
		ids = append(ids, s.add(1, runs.NoticeRunFailed))
		<-time.After(10 * time.Second)
		w.Close()
		w = adopt(t, s, member{all, "a"}, h, log, nil)
		<-time.After(time.Minute)
		w.Close()
		h.once(t, ids)
	})
}

// The position of a webhook is written five times a second at most for all logs of a process, and each log has its
// turn.
func TestLogsTakeTurnsToWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, seconds = 16, 60
		h, rooms := newHook(), webhooks.Rooms{}
		var sources []*source
		var tables []*table
		var open []*webhooks.Webhooks
		for range count {
			s, all := &source{}, newTable()
			sources, tables = append(sources, s), append(tables, all)
			open = append(open, adopt(t, s, member{all, "a"}, h, io.Discard, rooms))
			synctest.Wait()
			all.written = nil
		}
		for i := range seconds * 10 {
			for _, s := range sources {
				s.add(byte(i), runs.NoticeRunFailed)
			}
			<-time.After(100 * time.Millisecond)
		}
		synctest.Wait()
		sum := 0
		for i, all := range tables {
			sum += len(all.written)
			last := time.Now()
			for _, at := range slices.Backward(all.written) {
				if gap := last.Sub(at); gap > 4*time.Second {
					t.Errorf("log %d was not written for %s", i, gap)
				}
				last = at
			}
		}
		if sum < seconds || sum > seconds*5+count {
			t.Errorf("%d writes in %d s", sum, seconds)
		}
		for _, w := range open {
			w.Close()
		}
	})
}

// A log that leaves a process takes its open deliveries with it: they do not keep the other logs from theirs.
func TestLogThatLeavesMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck, rooms := newHook(), webhooks.Rooms{}
		stuck.set(func(string) bool { return true })
		for i := range 2 {
			s := &source{}
			w := adopt(t, s, member{newTable(), "a"}, stuck, io.Discard, rooms)
			for range webhooks.Window {
				s.add(byte(i), runs.NoticeRunFailed)
			}
			<-time.After(time.Minute)
			w.Close()
		}
		s, h := &source{}, newHook()
		w := adopt(t, s, member{newTable(), "a"}, h, io.Discard, rooms)
		ids := []string{s.add(1, runs.NoticeRunFailed)}
		<-time.After(time.Minute)
		w.Close()
		h.once(t, ids)
	})
}
