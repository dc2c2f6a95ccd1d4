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

// lastRun is the last run of a message of a schedule of which there is a record.
type lastRun struct {
	open  actor.CallID // zero if none is open
	at    time.Time    // of the message of the open run
	ended time.Time    // end of the newest run that has ended; zero if no run has
}

// findLastRun returns the newest open run of a message of the schedule, and the end of the newest one that has ended.
func (s *schedules) findLastRun(ctx context.Context, one *scheduled) (last lastRun) {
	by := one.principal()
	page, err := command.Find(ctx, s.commands, by, command.RunsQuery{Filter: runs.Filter{Agent: one.agent, Session: one.session()}, Limit: command.RunsMax})
	for i := range page.Page.All {
		r := &page.Page.All[i]
		if !r.Parent.IsZero() || r.Status.Ended() && !last.ended.IsZero() {
			continue
		}
		at, failed := s.messageTime(ctx, one, r.Run)
		switch {
		case failed != nil && !errors.As(failed, new(command.EventsDropped)):
			err = failed
		case at.IsZero():
		case r.Status.Ended():
			last.ended = time.Unix(0, int64(r.Ended))
		default:
			last.open, last.at = r.Run, at
			return last
		}
	}
	if err != nil && ctx.Err() == nil {
		s.logger.Error("the last run of a schedule cannot be looked up", "agent", one.agent, "schedule", one.name, "error", err.Error())
	}
	return last
}

// messageTime returns the time of the message of a schedule that has begun a run; zero if something else has.
func (s *schedules) messageTime(ctx context.Context, one *scheduled, run actor.CallID) (at time.Time, err error) {
	events, err := command.Find(ctx, s.commands, one.principal(), command.EventsQuery{Run: run, Limit: 1})
	if err != nil || len(events.All) == 0 {
		return at, err
	}
	e, failed := runs.Decode(events.All[0].Body)
	text, ok := strings.CutPrefix(e.Request, one.key())
	if failed != nil || !ok || e.Origin != actor.Schedule.String() {
		return at, nil
	}
	if at, failed = time.Parse(time.RFC3339, text); failed != nil {
		return time.Time{}, nil
	}
	return at, nil
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
