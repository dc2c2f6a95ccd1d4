// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// The sessions of schedules, and the runs in them. A session that was deleted never comes back, also if it was the
// retention that has deleted it, so the next message begins another one: reports, reports-2, reports-3.

// scheduleSessionsMax is the maximum number of sessions of a schedule, of which all but the last one are deleted.
const scheduleSessionsMax = 1000

// session returns the name of the present session.
func (one *scheduled) session() string {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.number == 1 {
		return one.of.Session
	}
	suffix := fmt.Sprintf("-%d", one.number)
	return actor.FitText(one.of.Session, actor.NameBytesMax-len(suffix)) + suffix
}

// findSession sets the first session that is not deleted, and reports whether it exists.
func (s *schedules) findSession(ctx context.Context, one *scheduled) bool {
	for {
		end, err := command.Find(ctx, s.commands, one.principal(), command.SessionEndQuery{Session: one.session()})
		var refusal *actor.Refusal
		if !errors.As(err, &refusal) || !refusal.IsNotFound(actor.WhatDeleted) || !one.skipSession() {
			return err == nil && end.Exists
		}
	}
}

// nextSession leaves a session that is deleted, and reports whether there is another one.
func (s *schedules) nextSession(ctx context.Context, one *scheduled) bool {
	before := one.session()
	s.findSession(ctx, one)
	return one.session() != before
}

func (one *scheduled) skipSession() bool {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.number >= scheduleSessionsMax {
		return false
	}
	one.number++
	return true
}

// key is what the idempotency keys of all messages begin with, before the time.
func (one *scheduled) key() string { return one.agent + "/" + one.name + " " }

// openRun returns the newest open run of a message of the schedule, and the time of the message; zero if there is none.
func (s *schedules) openRun(ctx context.Context, one *scheduled) (actor.CallID, time.Time) {
	by := one.principal()
	page, err := command.Find(ctx, s.commands, by, command.RunsQuery{Filter: runs.Filter{Agent: one.agent, Session: one.session()}, Limit: command.RunsMax})
	for i := range page.Page.All {
		r := &page.Page.All[i]
		if r.Status.Ended() || !r.Parent.IsZero() {
			continue
		}
		var events command.Events
		if events, err = command.Find(ctx, s.commands, by, command.EventsQuery{Run: r.Run, Limit: 1}); err != nil || len(events.All) == 0 {
			continue
		}
		e, failed := runs.Decode(events.All[0].Body)
		text, ok := strings.CutPrefix(e.Request, one.key())
		if failed != nil || !ok || e.Origin != actor.Schedule.String() {
			continue
		}
		if at, failed := time.Parse(time.RFC3339, text); failed == nil {
			return r.Run, at
		}
	}
	if err != nil && ctx.Err() == nil {
		s.logger.Error("the open run of a schedule cannot be looked up", "agent", one.agent, "schedule", one.name, "error", err.Error())
	}
	return actor.CallID{}, time.Time{}
}

// awaitEnd waits for the end of a run.
func (s *schedules) awaitEnd(ctx context.Context, by actor.Principal, run actor.CallID) {
	updates, stop, err := s.commands.Follow(ctx, command.Follow{By: by, Run: run})
	if err == nil {
		defer stop()
	} // else the run is looked up from time to time
	for ctx.Err() == nil {
		found, err := command.Find(ctx, s.commands, by, command.RunQuery{Run: run})
		if err != nil {
			return // it is deleted with its session
		}
		if record := found.Current(); record.Status.Ended() {
			return
		}
		select {
		case <-updates:
		case <-s.clock.After(scheduleLook):
		case <-ctx.Done():
		}
	}
}
