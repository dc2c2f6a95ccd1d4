// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/logs"
)

// clockFile is the file in a data folder with the latest time that the retention has trusted.
const clockFile = "CLOCK"

const (
	// clockJumpMax is the time by which the clock may be ahead of that time, or of the newest record, at a
	// start.
	clockJumpMax = 24 * time.Hour
	// clockWait is the time for which a node runs before it trusts a clock that is further ahead. A
	// server that was off for so long waits too.
	clockWait = 24 * time.Hour
)

// retentionClock keeps a wrong clock from deleting what is not old. It is of one start of a node.
type retentionClock struct {
	path  string
	start actor.Time

	mu      sync.Mutex
	doubted bool // the clock was far ahead at the start
}

// newRetentionClock compares the clock at a start with the time before it. Without a record nothing can
// be deleted.
func newRetentionClock(d storage, l *logs.Log, dir string, now actor.Time, logger *slog.Logger) *retentionClock {
	c := &retentionClock{path: filepath.Join(dir, clockFile), start: now}
	before, err := newestOf(d, l)
	if err != nil {
		logger.Warn("cannot read the time of the newest record", "error", err.Error())
	}
	if text, err := disk.ReadFile(c.path, 64); err == nil {
		if at, err := time.Parse(time.RFC3339, strings.TrimSpace(string(text))); err == nil {
			before = actor.Time(at.UnixNano()) // a wrong clock may have made newer records
		}
	} else if !os.IsNotExist(err) {
		logger.Warn("cannot read the time that the retention has trusted", "error", err.Error())
	}
	ahead := now.Sub(before)
	if c.doubted = before > 0 && ahead > clockJumpMax; c.doubted {
		logger.Warn("the clock is far ahead of the newest data: nothing is deleted by age until this server has run for "+clockWait.String()+
			"; if the clock is wrong, correct it and start again", "ahead", ahead.Round(time.Minute).String())
		c.save(before, logger)
	}
	return c
}

// trusts reports whether data may be deleted because of its age at a time, and notes that time.
func (c *retentionClock) trusts(now actor.Time, logger *slog.Logger) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.doubted && now.Sub(c.start) < clockWait {
		return false
	}
	c.doubted = false
	c.save(now, logger)
	return true
}

func (c *retentionClock) save(at actor.Time, logger *slog.Logger) {
	text := time.Unix(0, int64(at)).UTC().Format(time.RFC3339) + "\n"
	if err := disk.WriteFile(c.path, []byte(text)); err != nil {
		logger.Warn("cannot write the time that the retention has trusted", "error", err.Error())
	}
}
