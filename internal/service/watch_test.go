// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A folder is read once its files are quiet, and also if they never are.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		name    string
		changes int // one each 100 ms
		want    time.Duration
	}{
		{"one change", 1, watchQuiet},
		{"a file written in ten pieces", 10, 900*time.Millisecond + watchQuiet},
		{"a file written all the time", 1000, watchWaitMax},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				changed := make(chan struct{}, 1)
				start := time.Now()
				changed <- struct{}{}
				go func() {
					for range c.changes - 1 {
						select {
						case <-time.After(100 * time.Millisecond):
						case <-ctx.Done():
							return
						}
						select {
						case changed <- struct{}{}:
						default:
						}
					}
				}()
				if ok := settle(ctx, changed, watchQuiet, watchWaitMax); !ok || time.Since(start) != c.want {
					t.Errorf("got %v after %v, want true after %v", ok, time.Since(start), c.want)
				}
				cancel()
				synctest.Wait()
				for len(changed) > 0 {
					<-changed
				}
				if settle(ctx, changed, watchQuiet, watchWaitMax) {
					t.Error("got a change after the end")
				}
			})
		})
	}
}

func TestChangedFields(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{`{"a":1,"b":2}`, `{"a":1,"b":3}`, "b changed"},
		{`{"a":1,"z":2}`, `{"a":1,"b":3}`, "b, z changed"},
		{`{"limits":{"steps":1}}`, `{"limits":{"steps":2}}`, "limits changed"},
		{`{"a":1}`, `{"a":1}`, "changed"},
	} {
		if got := changedFields([]byte(c.before), []byte(c.after)); got != c.want {
			t.Errorf("%s to %s: got %q, want %q", c.before, c.after, got, c.want)
		}
	}
}

// A read that does not end is logged, and keeps Run from no end.
func TestWatchEndsDuringARead(t *testing.T) {
	dir := t.TempDir()
	log := new(bytes.Buffer)
	w, err := NewWatch(dir, "", &AgentFiles{}, nil, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	reading, release := make(chan struct{}), make(chan struct{})
	w.read = func(string) (*AgentFiles, error) {
		close(reading)
		<-release
		return &AgentFiles{}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	<-reading
	cancel()
	<-ended
	close(release)

	synctest.Test(t, func(t *testing.T) {
		w := &Watch{log: slog.New(slog.NewTextHandler(log, nil)), read: func(string) (*AgentFiles, error) {
			<-time.After(2 * readWarnAfter)
			return nil, errors.New("test error")
		}}
		if _, err := w.readFiles(t.Context()); err == nil || strings.Count(log.String(), "a read takes long") != 1 {
			t.Errorf("%v, log %s", err, log)
		}
	})
}
