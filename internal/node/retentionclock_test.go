// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// retentionLog is a log that reports whether it has a text.
type retentionLog struct {
	mu    sync.Mutex
	text  bytes.Buffer
	lines chan struct{} // capacity 1: there is another line
}

func (l *retentionLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.lines <- struct{}{}:
	default:
	}
	return l.text.Write(p)
}

func (l *retentionLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// waitFor waits for a text.
func (l *retentionLog) waitFor(t *testing.T, text string) {
	t.Helper()
	for timeout := time.After(time.Minute); !strings.Contains(l.String(), text); {
		select {
		case <-l.lines:
		case <-timeout:
			t.Fatalf("%q is not in the log:\n%s", text, l)
		}
	}
}

// A start with a clock that is days ahead deletes nothing, and neither do later starts, although the
// wrong clock has made newer records. Once the clock is right, or the server has run for a day, it does.
func TestClockFarAheadDeletesNothing(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	n := openRetained(t, data, 0)
	n.ask(testBy, "s-1", "x")
	n.close()
	open := func(keep time.Duration) (*retainedNode, *retentionLog) {
		t.Helper()
		l := &retentionLog{lines: make(chan struct{}, 1)}
		return openRetainedLogging(t, data, keep, slog.New(slog.NewTextHandler(l, nil))), l
	}
	const ahead = 40 * 24 * time.Hour
	trusted := time.Now().Add(-ahead).UTC().Truncate(time.Second)
	if err := os.WriteFile(filepath.Join(data, clockFile), []byte(trusted.Format(time.RFC3339)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		n, log := open(time.Millisecond)
		log.waitFor(t, "nothing is deleted by age")
		n.retained.pass(t.Context(), n.engine.Now())
		if _, found := n.session(testBy, "s-1"); !found {
			t.Fatal("the session was deleted")
		}
		n.ask(testBy, "s-2", "x")
		n.close()
		if text, err := os.ReadFile(filepath.Join(data, clockFile)); err != nil || strings.TrimSpace(string(text)) != trusted.Format(time.RFC3339) {
			t.Errorf("the trusted time is %s, error %v", text, err)
		}
	}
	n, _ = open(time.Millisecond)
	n.retained.pass(t.Context(), n.engine.Now().Add(clockWait))
	if _, found := n.session(testBy, "s-1"); found {
		t.Error("after a day the session is kept")
	}
	n.ask(testBy, "s-3", "x")
	n.close()
	if err := os.WriteFile(filepath.Join(data, clockFile), []byte(time.Now().UTC().Format(time.RFC3339)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n, log := open(time.Millisecond)
	log.waitFor(t, "deleted a session")
	n.close()
}

// Without a trusted time the newest record counts.
func TestClockIsComparedWithTheNewestRecord(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	n := openRetained(t, data, 0)
	began := n.engine.Now()
	n.ask(testBy, "s-1", "x")
	n.close()
	n = openRetained(t, data, 0)
	defer n.close()
	if newest, err := n.store.Newest("n1"); err != nil || newest < began || newest > n.engine.Now() {
		t.Errorf("the newest record is of %v, error %v, want one since %v", newest, err, began)
	}
	for ahead, doubted := range map[time.Duration]bool{clockJumpMax / 2: false, clockJumpMax + time.Hour: true, 0: false, -30 * 24 * time.Hour: false} {
		_ = os.Remove(filepath.Join(data, clockFile))
		c := newRetentionClock(n.store, n.log, data, n.engine.Now().Add(ahead), slog.New(slog.DiscardHandler))
		if c.doubted != doubted || c.trusts(c.start.Add(time.Hour), slog.New(slog.DiscardHandler)) == doubted || !c.trusts(c.start.Add(clockWait), slog.New(slog.DiscardHandler)) {
			t.Errorf("%v ahead: doubted %v", ahead, c.doubted)
		}
	}
}
