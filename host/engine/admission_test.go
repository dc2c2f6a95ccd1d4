// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// manualLog is a log that is durable when it is told to be.
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
	var r admission
	log := &manualLog{}
	now := actor.Time(time.Hour)
	is := func(title string, want actor.Reason) {
		t.Helper()
		now = now.Add(admissionInterval)
		switch got := r.check(now, log); {
		case want == 0 && got != nil:
			t.Errorf("%s: %v", title, got)
		case want != 0 && (got == nil || got.Reason != want || got.RetryAfter == 0):
			t.Errorf("%s: %v, want %v and when to come back", title, got, want)
		}
	}
	is("at first", 0)
	now = now.Add(diskLagMax / 2)
	is("a slow sync", 0)
	now = now.Add(diskLagMax / 2)
	is("a disk that is behind", actor.Busy)
	now = now.Add(time.Minute)
	is("still", actor.Busy)
	if len(log.waiting) != 1 {
		t.Errorf("%d commits only to look", len(log.waiting))
	}
	log.sync()
	is("when it has caught up", 0)
	now = now.Add(diskLagMax - 2*admissionInterval)
	is("what waits now began anew", 0)
	log.sync()
	log.backlog = backlogMax + 1
	is("many entries", actor.Busy)
	log.backlog, log.full = 0, errors.New("no space")
	is("a full disk", actor.Unavailable)
	log.full = nil
	is("as before", 0)
}
