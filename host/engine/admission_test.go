// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
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
func (p *manualLog) Backlog() int                         { return p.backlog }

func (p *manualLog) sync() {
	for _, after := range p.waiting {
		after()
	}
	p.waiting = nil
}

func TestAdmissionRefusesWhileDiskLags(t *testing.T) {
	var a admission
	log := &manualLog{}
	now := actor.Time(time.Hour)
	check := func(title string, want actor.Reason) {
		t.Helper()
		now = now.Add(admissionInterval)
		switch got := a.check(now, log); {
		case want == 0 && got != nil:
			t.Errorf("%s: %v", title, got)
		case want != 0 && (got == nil || got.Reason != want || got.RetryAfter == 0):
			t.Errorf("%s: %v, want %v and when to come back", title, got, want)
		}
	}
	check("at first", 0)
	now = now.Add(diskLagMax / 2)
	check("a slow sync", 0)
	now = now.Add(diskLagMax / 2)
	check("a disk that is behind", actor.Busy)
	now = now.Add(time.Minute)
	check("still", actor.Busy)
	if len(log.waiting) != 1 {
		t.Errorf("%d commits only to look", len(log.waiting))
	}
	log.sync()
	check("when it has caught up", 0)
	now = now.Add(diskLagMax - 2*admissionInterval)
	check("what waits now began anew", 0)
	log.sync()
	log.backlog = backlogMax + 1
	check("many entries", actor.Busy)
	log.backlog, log.full = 0, errors.New("no space")
	check("a full disk", actor.Unavailable)
	log.full = nil
	check("as before", 0)
}
