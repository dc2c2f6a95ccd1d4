// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
	_ "time/tzdata" // schedules have time zones also where the machine has none

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/command"
)

// Schedules of agents. A node sends the message of a schedule at its time, as a client of its user would, with an
// idempotency key that is made of the time: the message is accepted once, over restarts. Times that pass while its
// run goes on are left out. Of those that pass while no node runs, the last one has a message.

const (
	scheduleRoute    = "schedule"
	scheduleRetryMin = time.Second    // after a message that was refused for load
	scheduleRetryMax = time.Minute    // likewise
	scheduleLook     = time.Minute    // after which the clock is read again: it may have been set
	scheduleKeyKept  = 23 * time.Hour // after which the idempotency key of a message may be forgotten
	scheduleBack     = 2 * time.Hour  // by which a clock that is set back repeats no time
	scheduleYears    = 28 * 366       // days, within which each calendar has come
)

// scheduleClock is the clock of schedules.
type scheduleClock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

type wallClock struct{}

func (wallClock) Now() time.Time                         { return time.Now() }
func (wallClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// schedules send the messages of the schedules of all agents.
type schedules struct {
	commands *Commands
	clock    scheduleClock
	newest   time.Time // of the records before the start
	logger   *slog.Logger

	ctx  context.Context
	stop context.CancelFunc
	wait sync.WaitGroup

	mu  sync.Mutex
	all map[scheduleName]*scheduled
}

type scheduleName struct{ agent, name string }

// scheduled is one schedule that is under way.
type scheduled struct {
	scheduleName
	of     agents.Schedule
	cron   agents.Cron
	zone   *time.Location
	since  time.Time // when it was stored
	cancel context.CancelFunc

	mu   sync.Mutex // guards the rest
	next time.Time
	last command.Fired
}

func newSchedules(c *Commands, clock scheduleClock, newest actor.Time, logger *slog.Logger) *schedules {
	s := &schedules{commands: c, clock: clock, newest: time.Unix(0, int64(newest)), logger: logger, all: map[scheduleName]*scheduled{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// close ends all schedules. Messages that were sent stay.
func (s *schedules) close() {
	if s == nil {
		return
	}
	s.stop()
	s.wait.Wait()
}

// set replaces the schedules by those of a catalog. One that has not changed goes on.
func (s *schedules) set(catalog *agents.Catalog) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	current := map[scheduleName]bool{}
	for i := range catalog.Specs {
		spec := &catalog.Specs[i]
		for _, name := range slices.Sorted(maps.Keys(spec.Schedules)) {
			key := scheduleName{spec.ID, name}
			current[key] = true
			if was := s.all[key]; was != nil {
				if was.of == spec.Schedules[name] {
					continue
				}
				was.cancel()
				delete(s.all, key)
			}
			if err := s.begin(key, spec.Schedules[name], time.Unix(0, int64(catalog.Changed[i]))); err != nil {
				s.logger.Error("a schedule is left out", "agent", key.agent, "schedule", key.name, "error", err.Error())
			}
		}
	}
	for key, one := range s.all {
		if !current[key] {
			one.cancel()
			delete(s.all, key)
		}
	}
}

func (s *schedules) begin(key scheduleName, of agents.Schedule, since time.Time) (err error) {
	one := &scheduled{scheduleName: key, of: of, since: since}
	if one.cron, err = agents.ParseCron(of.Cron); err != nil {
		return err
	}
	if one.zone, err = time.LoadLocation(of.Zone); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	one.cancel = cancel
	s.all[key] = one
	s.wait.Go(func() {
		defer cancel()
		s.run(ctx, one)
	})
	return nil
}

// run sends the messages of a schedule until ctx ends.
func (s *schedules) run(ctx context.Context, one *scheduled) {
	last := s.clock.Now()
	if missed := one.missed(last, s.newest); !missed.IsZero() {
		s.fire(ctx, one, missed)
		last = missed
	}
	for ctx.Err() == nil {
		now := s.clock.Now()
		after := now
		if last.After(now) && last.Sub(now) < scheduleBack {
			after = last
		}
		at := one.after(after)
		one.mu.Lock()
		one.next = at
		one.mu.Unlock()
		if !s.until(ctx, at) {
			return
		}
		if late := one.before(s.clock.Now(), at); late.After(at) { // the process was stopped
			at = late
		}
		s.fire(ctx, one, at)
		last = at
	}
}

// until waits for a time of the clock, and reports false if ctx ends first.
func (s *schedules) until(ctx context.Context, at time.Time) bool {
	for {
		left := at.Sub(s.clock.Now())
		if left <= 0 {
			return ctx.Err() == nil
		}
		select {
		case <-s.clock.After(min(left, scheduleLook)):
		case <-ctx.Done():
			return false
		}
	}
}

// fire sends a message, and returns when its run has ended. A message that is refused for load is sent again until
// the time of the next one.
func (s *schedules) fire(ctx context.Context, one *scheduled, at time.Time) {
	until := one.after(at)
	for {
		fired, wait := s.send(ctx, one, at)
		if ctx.Err() != nil {
			return
		}
		one.note(fired)
		if wait == 0 || !s.clock.Now().Add(wait).Before(until) {
			if fired.Failure != "" {
				s.logger.Warn("the message of a schedule was not taken, or its run has failed", "agent", one.agent, "schedule", one.name, "at", at.UTC().Format(time.RFC3339), "error", fired.Failure)
			}
			return
		}
		select {
		case <-s.clock.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// note sets what is shown of the last message.
func (one *scheduled) note(last command.Fired) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.last = last
}

// send sends a message once. The time is that after which it may be sent again; 0 if it must not be.
func (s *schedules) send(ctx context.Context, one *scheduled, at time.Time) (command.Fired, time.Duration) {
	by := actor.Principal{Tenant: actor.Namespace(one.of.User), User: one.of.By()}
	text := one.of.Text
	call := actor.Call{ID: s.commands.NewCallID(), To: by.ID(one.agent, one.of.Session), Origin: actor.Schedule, Principal: by.User, Parts: actor.Text(text),
		Idempotency: actor.Idempotency{Principal: by.User, Route: scheduleRoute, Key: fmt.Sprintf("%s/%s %s", one.agent, one.name, at.UTC().Format(time.RFC3339)), Body: actor.HashOf([]byte(text))}}
	fired := command.Fired{At: timeOf(at)}
	one.note(command.Fired{At: fired.At, Run: call.ID})
	answer, err := s.commands.Invoke(ctx, command.Invoke{By: by, Call: call}, nil)
	var refusal *actor.Refusal
	switch {
	case errors.As(err, &refusal):
	case err != nil:
		fired.Failure = err.Error()
		return fired, 0
	default:
		refusal = answer.Reply.Refusal
	}
	if refusal == nil {
		fired.Run = answer.Reply.Run
		return fired, 0
	}
	fired.Failure = refusal.Error()
	if answer.Durable {
		fired.Run = answer.Reply.Run
	} else if refusal.Reason == actor.Busy || refusal.Reason == actor.Unavailable {
		return fired, min(max(refusal.RetryAfter, scheduleRetryMin), scheduleRetryMax)
	}
	return fired, 0
}

// missed returns the last time that has passed since the schedule was stored and for which no message was sent
// before the start; zero if there is none. What was sent within the time of its key may be sent again.
func (one *scheduled) missed(now, newest time.Time) time.Time {
	from := one.since
	if now.Sub(newest) > scheduleKeyKept && newest.After(from) {
		from = newest
	} else if kept := now.Add(-scheduleKeyKept); newest.After(from) && kept.After(from) {
		from = kept
	}
	return one.before(now, from)
}

// before returns the last time up to now that is after from; zero if there is none.
func (one *scheduled) before(now, from time.Time) (last time.Time) {
	begin := now
	for span := time.Hour; ; span *= 4 { // few steps, also for a schedule of each minute
		if begin = now.Add(-span); begin.Before(from) || span > scheduleYears*24*time.Hour {
			begin = from
		}
		for at := one.after(begin); !at.IsZero() && !at.After(now); at = one.after(at) {
			last = at
		}
		if !last.IsZero() || !begin.After(from) {
			return last
		}
	}
}

// after returns the first time after another one; zero if there is none. A time of the day that the zone skips comes as
// much later, and one that the zone has twice comes once. Times of each hour follow the hours that pass.
func (one *scheduled) after(t time.Time) time.Time {
	local := t.In(one.zone)
	if one.cron.EachHour() {
		return one.afterEachHour(local)
	}
	year, month, day := local.Date()
	for d := range scheduleYears {
		date := time.Date(year, month, day+d, 12, 0, 0, 0, time.UTC) // of the calendar alone
		if !one.cron.OnDay(int(date.Month()), date.Day(), int(date.Weekday())) {
			continue
		}
		for minute := range 24 * 60 {
			if !one.cron.At(minute/60, minute%60) {
				continue
			}
			if at := inZone(date.Add(time.Duration(minute-12*60)*time.Minute), one.zone); at.After(t) {
				return at
			}
		}
	}
	return time.Time{}
}

// inZone returns the time at which the clocks of a zone show what those of UTC show at a time: the first one if they do
// twice; if they never do, as much after the skipped hour.
func inZone(shown time.Time, zone *time.Location) time.Time {
	at := func(near time.Time) time.Time {
		_, offset := near.In(zone).Zone()
		return shown.Add(-time.Duration(offset) * time.Second).In(zone)
	}
	before, after := at(shown.Add(-24*time.Hour)), at(shown.Add(24*time.Hour))
	shows := func(t time.Time) bool { return t.Format(time.DateTime) == shown.UTC().Format(time.DateTime) }
	if !shows(before) && shows(after) {
		return after
	}
	return before
}

func (one *scheduled) afterEachHour(local time.Time) time.Time {
	at := local.Truncate(time.Minute).Add(time.Minute)
	for end := at.Add(scheduleYears * 24 * time.Hour); at.Before(end); {
		switch {
		case !one.cron.OnDay(int(at.Month()), at.Day(), int(at.Weekday())):
			next := time.Date(at.Year(), at.Month(), at.Day()+1, 0, 0, 0, 0, one.zone)
			if !next.After(at) { // the zone skips midnight
				next = at.Add(time.Hour)
			}
			at = next
		case !one.cron.At(at.Hour(), at.Minute()):
			at = at.Add(time.Minute)
		default:
			return at
		}
	}
	return time.Time{}
}

// list returns the schedules of a namespace, by agent and name.
func (s *schedules) list(tenant string) (out command.Schedules) {
	if s == nil {
		return out
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, one := range s.all {
		if actor.Namespace(one.of.User) != tenant {
			continue
		}
		one.mu.Lock()
		out.All = append(out.All, command.Schedule{Agent: key.agent, Name: key.name, Cron: one.of.Cron, Zone: one.of.Zone, Text: one.of.Text, User: one.of.By(), Session: one.of.Session,
			Next: timeOf(one.next), Last: one.last})
		one.mu.Unlock()
	}
	slices.SortFunc(out.All, func(a, b command.Schedule) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Name, b.Name))
	})
	if out.More = len(out.All) > command.SchedulesMax; out.More {
		out.All = out.All[:command.SchedulesMax]
	}
	return out
}

func timeOf(t time.Time) actor.Time {
	if t.IsZero() {
		return 0
	}
	return actor.Time(t.UnixNano())
}
