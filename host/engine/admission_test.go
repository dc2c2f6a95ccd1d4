// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// manualLog is a log whose entries become durable when the test calls sync.
type manualLog struct {
	full    error
	backlog int
	waiting []func()
}

func (p *manualLog) Commit(_ []store.Entry, after func()) { p.waiting = append(p.waiting, after) }
func (p *manualLog) Full() error                          { return p.full }
func (p *manualLog) Exhausted() error                     { return nil }
func (p *manualLog) Backlog() int                         { return p.backlog }

func (p *manualLog) sync() {
	for _, after := range p.waiting {
		after()
	}
	p.waiting = nil
}

func TestAdmissionRefusesWhileDiskLags(t *testing.T) {
	a := admission{lagMax: diskLagMax}
	log := &manualLog{}
	now := actor.Time(time.Hour)
	check := func(title string, want actor.Reason) {
		t.Helper()
		now = now.Add(admissionInterval)
		switch got := a.check(now, log); {
		case want == 0 && got != nil:
			t.Errorf("%s: got %v, want no refusal", title, got)
		case want != 0 && (got == nil || got.Reason != want || got.RetryAfter == 0):
			t.Errorf("%s: got %v, want %v with RetryAfter", title, got, want)
		}
	}
	check("idle log", 0)
	now = now.Add(diskLagMax / 2)
	check("slow sync", 0)
	now = now.Add(diskLagMax / 2)
	check("disk lagging", actor.Busy)
	now = now.Add(time.Minute)
	check("disk still lagging", actor.Busy)
	if len(log.waiting) != 1 {
		t.Errorf("%d probe commits, want 1", len(log.waiting))
	}
	log.sync()
	check("disk caught up", 0)
	now = now.Add(diskLagMax - 2*admissionInterval)
	check("new probe pending", 0)
	log.sync()
	log.backlog = backlogMax + 1
	check("backlog too long", actor.Busy)
	log.backlog, log.full = 0, errors.New("no space")
	check("disk full", actor.Unavailable)
	log.full = nil
	check("disk has space again", 0)
}

// A disk without space is named by the field, so that clients can tell it; a store that is away passes
// sooner, and is not.
func TestStoreThatIsAwayIsNotFull(t *testing.T) {
	full, away := storageFull(fmt.Errorf("no space: %w", syscall.ENOSPC)), storageFull(errors.New("the database is away"))
	if full.Field != actor.StorageField || full.RetryAfter != 10*time.Second || full.Reason != actor.Unavailable {
		t.Errorf("without space: %+v", full)
	}
	if away.Field != "" || away.RetryAfter != storeAway || away.Reason != actor.Unavailable || away.Detail != "the database is away" {
		t.Errorf("away: %+v", away)
	}
	if storageFull(nil) != nil {
		t.Error("no error is a refusal")
	}
}

// A node measures its disk by the delay in its configuration, or by 2 s.
func TestNodeTakesDiskLagFromItsConfiguration(t *testing.T) {
	for configured, want := range map[time.Duration]time.Duration{0: 2 * time.Second, time.Minute: time.Minute} {
		n := startNode(t, t.TempDir(), func(c *Config) { c.DiskLagMax = configured })
		log := &manualLog{} // never syncs
		began := n.Now().Add(time.Hour)
		for _, after := range []time.Duration{0, admissionInterval, want} {
			if got := n.admission.check(began.Add(after), log); got != nil {
				t.Errorf("DiskLagMax %v, sync pending for %v: got %v, want no refusal", configured, after, got)
			}
		}
		if got := n.admission.check(began.Add(want+admissionInterval), log); got == nil || got.Reason != actor.Busy {
			t.Errorf("DiskLagMax %v, sync pending for more than %v: got %v, want %v", configured, want, got, actor.Busy)
		}
	}
}
