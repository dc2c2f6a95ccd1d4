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
