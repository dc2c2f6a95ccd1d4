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
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// Schedules of agents. A node sends the message of a schedule at its time, as a client of its user would, with an
// idempotency key that is made of the time: the message is accepted once, over restarts. Times that pass while its
// run is open are left out, also after a restart of the node. Of the times that pass while no node runs, the last one
// has a message. A schedule that was made with an API key pauses when the key is no longer valid. If its session is
// deleted, the next message begins another one; see schedulesession.go.

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

	mu   sync.Mutex
	off  bool // another process sends the messages
	all  map[scheduleName]*scheduled
	keys []ingress.Key
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

	owner string            // of its agent; guarded by schedules.mu, as is by
	by    agents.Acceptance // of its agent

	said string // why the last message was not sent, as the log has it; used by run only

	mu     sync.Mutex // guards the rest
	next   time.Time
	last   command.Fired
	number int // of its session: n-1 earlier ones were deleted
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

// switchTo begins or ends to send messages. The newest record is from before it begins. A message that is under way when it
// ends is sent, perhaps by the next process too: it is accepted once.
func (s *schedules) switchTo(on bool, newest actor.Time) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = !on
	if on {
		s.newest = time.Unix(0, int64(newest))
		return
	}
	for key, one := range s.all {
		one.cancel()
		delete(s.all, key)
	}
}

// set replaces the schedules by those of a catalog. One that has not changed goes on.
func (s *schedules) set(catalog *agents.Catalog) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || s.off {
		return
	}
	s.keys = nil
	for _, item := range catalog.Keys {
		if key, err := ingress.DecodeKey(item.Value); err == nil { // else the node does not start
			s.keys = append(s.keys, key)
		}
	}
	current := map[scheduleName]bool{}
	for i := range catalog.Specs {
		spec := &catalog.Specs[i]
		for _, name := range slices.Sorted(maps.Keys(spec.Schedules)) {
			key := scheduleName{spec.ID, name}
			current[key] = true
			if was := s.all[key]; was != nil {
				if was.of == spec.Schedules[name] {
					was.owner, was.by = catalog.Owners[i], catalog.AcceptedBy[i]
					continue
				}
				was.cancel()
				delete(s.all, key)
			}
			one := &scheduled{scheduleName: key, of: spec.Schedules[name], since: time.Unix(0, int64(catalog.Changed[i])), owner: catalog.Owners[i], by: catalog.AcceptedBy[i], number: 1}
			if err := s.begin(one); err != nil {
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

func (s *schedules) begin(one *scheduled) (err error) {
	if one.cron, err = agents.ParseCron(one.of.Cron); err != nil {
		return err
	}
	if one.zone, err = time.LoadLocation(one.of.Zone); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	one.cancel = cancel
	s.all[one.scheduleName] = one
	s.wait.Go(func() {
		defer cancel()
		s.run(ctx, one)
	})
	return nil
}

// run sends the messages of a schedule until ctx ends.
func (s *schedules) run(ctx context.Context, one *scheduled) {
	last := s.clock.Now()
	exists := s.findSession(ctx, one)
	if was := s.findLastRun(ctx, one); !was.open.IsZero() { // the times since are left out
		one.note(command.Fired{At: timeOf(was.at), Run: was.open})
		s.awaitEnd(ctx, one.principal(), was.open)
		last = s.clock.Now()
	} else if missed := one.missed(last, s.newest, was.ended); !missed.IsZero() && (exists || one.number == 1) {
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
// the time of the next one, after delays that double. The log has it once, until a message is taken again.
func (s *schedules) fire(ctx context.Context, one *scheduled, at time.Time) {
	until := one.after(at)
	for delay := scheduleRetryMin; ; delay = min(2*delay, scheduleRetryMax) {
		if why := s.paused(one); why != "" {
			one.say(s.logger, at, why, why)
			return
		}
		fired, refusal := s.send(ctx, one, at)
		if ctx.Err() != nil {
			return
		}
		one.note(fired)
		busy := refusal != nil && (refusal.Reason == actor.Busy || refusal.Reason == actor.Unavailable)
		switch {
		case refusal.IsNotFound(actor.WhatDeleted) && s.nextSession(ctx, one):
			continue
		case busy:
			one.say(s.logger, at, "busy", fired.Failure+": it is sent again until the next time, and this is logged once")
		case fired.Failure != "":
			one.say(s.logger, at, at.UTC().Format(time.RFC3339), fired.Failure)
		default:
			one.said = ""
		}
		if !busy {
			return
		}
		wait := min(max(delay, refusal.RetryAfter), scheduleRetryMax)
		if !s.clock.Now().Add(wait).Before(until) {
			return
		}
		select {
		case <-s.clock.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// say logs why a message was not taken or its run has failed, unless the last reason was the same.
func (one *scheduled) say(log *slog.Logger, at time.Time, reason, text string) {
	if one.said != reason {
		log.Warn("the message of a schedule was not taken, or its run has failed", "agent", one.agent, "schedule", one.name, "at", at.UTC().Format(time.RFC3339), "error", text)
	}
	one.said = reason
}

// paused returns the reason why a schedule sends nothing, or "". A schedule that was made with an API key sends only
// while this key is valid, or another key of the same user that may call the agent. A schedule of an operator needs no key.
func (s *schedules) paused(one *scheduled) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pausedReason(one)
}

func (s *schedules) pausedReason(one *scheduled) string {
	if one.by.Key == "" || one.owner == agents.Operator {
		return ""
	}
	now := actor.Time(s.clock.Now().UnixNano())
	if slices.ContainsFunc(s.keys, func(k ingress.Key) bool {
		return !k.Expired(now) && (k.ID == one.by.Key || k.User != "" && k.User == one.by.User && mayCall(&k, one.agent))
	}) {
		return ""
	}
	return fmt.Sprintf("paused: key %s, with which agent %s was created, is revoked or has expired; create the agent again with a valid key, or delete it", one.by.Key, one.agent)
}

// mayCall reports whether a key sends messages to an agent.
func mayCall(k *ingress.Key, agent string) bool {
	return k.Allows(ingress.ScopeCall) && (len(k.Agents) == 0 || slices.Contains(k.Agents, agent))
}

// note sets what is shown of the last message.
func (one *scheduled) note(last command.Fired) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.last = last
}

// principal returns whom a schedule acts for.
func (one *scheduled) principal() actor.Principal {
	return actor.Principal{Tenant: actor.Namespace(one.of.User), User: one.of.By()}
}

// send sends a message once. The refusal is nil if the message was taken, also if its run has failed since.
func (s *schedules) send(ctx context.Context, one *scheduled, at time.Time) (command.Fired, *actor.Refusal) {
	by, text := one.principal(), one.of.Text
	call := actor.Call{ID: s.commands.NewCallID(), To: by.ID(one.agent, one.session()), Origin: actor.Schedule, Principal: by.User, Parts: actor.Text(text),
		Idempotency: actor.Idempotency{Principal: by.User, Route: scheduleRoute, Key: one.key() + at.UTC().Format(time.RFC3339), Body: actor.HashOf([]byte(text))}}
	fired := command.Fired{At: timeOf(at)}
	one.note(command.Fired{At: fired.At, Run: call.ID})
	answer, err := s.commands.Invoke(ctx, command.Invoke{By: by, Call: call}, nil)
	var refusal *actor.Refusal
	switch {
	case errors.As(err, &refusal):
	case err != nil:
		fired.Failure = err.Error()
		return fired, nil
	default:
		refusal = answer.Reply.Refusal
	}
	if refusal == nil {
		fired.Run = answer.Reply.Run
		return fired, nil
	}
	fired.Failure = refusal.Error()
	if answer.Durable {
		fired.Run = answer.Reply.Run
		return fired, nil
	}
	return fired, refusal
}

// missed returns the last time of the schedule for which no message was sent before the start; zero if there is none.
// It looks at the times since the schedule was stored. For times up to the end of the last run a message was sent, or
// left out because the run went on. A message may be sent again while its idempotency key is kept.
func (one *scheduled) missed(now, newest, ended time.Time) time.Time {
	from := one.since
	if ended.After(from) {
		from = ended
	}
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

// after returns the first time of the schedule after another time; zero if there is none. When the clocks go forward, a
// time of day that is skipped comes later by as much. When they go back, a time of day that occurs twice counts once.
// A schedule for each hour follows the hours that pass.
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
		shown, repeated := shownIn(at)
		switch {
		case shown != at && one.cron.OnDay(int(shown.Month()), shown.Day(), int(shown.Weekday())) && one.cron.At(shown.Hour(), shown.Minute()):
			return at
		case !one.cron.OnDay(int(at.Month()), at.Day(), int(at.Weekday())):
			next := time.Date(at.Year(), at.Month(), at.Day()+1, 0, 0, 0, 0, one.zone)
			if !next.After(at) { // the zone skips midnight
				next = at.Add(time.Hour)
			}
			at = next
		case repeated || !one.cron.At(at.Hour(), at.Minute()):
			at = at.Add(time.Minute)
		default:
			return at
		}
	}
	return time.Time{}
}

// shownIn returns what the clocks of a zone would show at a time if they had not been set forward within the last
// hour: what they have skipped. Otherwise it returns the time. It also reports whether the clocks have shown the same
// less than an hour ago, because they were set back by less.
func shownIn(at time.Time) (shown time.Time, repeated bool) {
	_, offset := at.Zone()
	_, before := at.Add(-time.Hour).Zone()
	by := time.Duration(offset-before) * time.Second
	switch was := at.Add(-by.Abs()); {
	case by > 0:
		if _, then := was.Zone(); then == before {
			return at.In(time.FixedZone("", before)), false
		}
	case by < 0 && by > -time.Hour:
		_, then := was.Zone()
		return at, then == before
	}
	return at, false
}

// list returns the schedules of a namespace, or of all, by agent and name.
func (s *schedules) list(tenant string, all bool) (out command.Schedules) {
	if s == nil {
		return out
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, one := range s.all {
		if !all && actor.Namespace(one.of.User) != tenant {
			continue
		}
		v := command.Schedule{Agent: key.agent, Name: key.name, Cron: one.of.Cron, Zone: one.of.Zone, Text: one.of.Text, User: one.of.By(), Session: one.session(), Paused: s.pausedReason(one)}
		one.mu.Lock()
		next := one.next
		v.Last = one.last
		one.mu.Unlock()
		if now := s.clock.Now(); v.Paused != "" {
			next = time.Time{}
		} else if !next.IsZero() && !next.After(now) { // its run goes on
			next = one.after(now)
		}
		v.Next = timeOf(next)
		out.All = append(out.All, v)
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
