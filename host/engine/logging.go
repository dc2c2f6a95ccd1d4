// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"log/slog"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// The event kinds that are counted, and those that are logged at each level.
var (
	countedKinds = history.SetOf(history.Refuse)
	infoKinds    = history.SetOf(history.Admit, history.Reply, history.Refuse)
	debugKinds   = history.SetOf(history.Activate, history.Deactivate, history.Expire, history.Hold, history.Resume, history.Cancel)
)

// eventKinds returns the kinds of events that a cell publishes; 0 means all
// kinds. A change of the log level applies from the next incarnation.
func (e *Engine) eventKinds() history.Set {
	switch {
	case e.tracing.enabled():
		return 0
	case e.log.Enabled(e.ctx, slog.LevelDebug):
		return countedKinds | infoKinds | debugKinds
	case e.log.Enabled(e.ctx, slog.LevelInfo):
		return countedKinds | infoKinds
	}
	return countedKinds
}

// logEvent logs the events of runs that matter to an operator. It never logs
// content, apart from the sentences of refusals.
func (e *Engine) logEvent(ev *history.Event, entries []store.Entry) {
	var message string
	level := slog.LevelInfo
	switch ev.Kind {
	case history.Admit:
		message = "accepted"
	case history.Reply:
		message = "ended"
	case history.Refuse:
		message = "refused"
	case history.Activate, history.Deactivate, history.Expire, history.Hold, history.Resume, history.Cancel:
		message, level = ev.Kind.String(), slog.LevelDebug
	default:
		return
	}
	if e.log.Enabled(e.ctx, level) {
		all := eventAttrs(ev)
		if ev.Kind == history.Reply {
			all = append(all, slog.Int64("ms", max(ev.At.Sub(ev.Call.Time()), 0).Milliseconds()))
			if tokens := tokensOf(entries, ev.Call); tokens > 0 {
				all = append(all, slog.Int64("tokens", tokens))
			}
		}
		e.log.LogAttrs(e.ctx, level, message, all...)
	}
}

// tokensOf returns the tokens of a run that ends, with those of the runs below it.
func tokensOf(entries []store.Entry, run actor.CallID) int64 {
	for i := range entries {
		if r, ok := entries[i].Record.(store.Ended); ok && r.Call == run {
			return r.Reply.Tree.Total
		}
	}
	return 0
}

const parkedMessage = "run parked: it waits for `troupe runs retry RUN`, or ends with `troupe runs cancel RUN`"

// logNotices logs what a step makes known to operators, and counts unknown outcomes: approvals that wait or have
// expired, outcomes that are unknown, and runs that are parked or resumed. The end of a run has a line of its own.
func (c *cell) logNotices(entries []store.Entry) {
	log := c.engine.log
	for i := range entries {
		e := &entries[i]
		switch r := e.Record.(type) {
		case store.Ended:
			continue
		case store.Parked:
			if r.Detail == "" {
				log.Info("parked run resumed", "actor", e.Actor.String(), "run", r.Run.String())
			} else {
				c.engine.logParked(e.Actor, r)
			}
		}
		for _, ev := range e.NotedEvents() {
			attrs := []any{"actor", e.Actor.String(), "run", ev.Run.String()}
			switch {
			case ev.Type == runs.ApprovalCreated:
				log.Info("an approval waits: `troupe approvals list --user '*'` shows it", append(attrs, "kind", ev.Kind, "tool", ev.Name, "approval", ev.Approval, "until", runs.FormatTime(ev.Until))...)
			case ev.Type == runs.ApprovalExpired:
				log.Warn("an approval has expired without a decision", append(attrs, "kind", ev.Kind, "tool", ev.Name, "approval", ev.Approval)...)
			case ev.Refusal != nil && ev.Refusal.Reason == actor.Unknown:
				c.tally.unknown.Add(1)
				if ev.Type != runs.RunPaused {
					log.Warn("it is unknown whether a call was performed", append(attrs, "name", ev.Name)...)
				}
			}
		}
	}
}

func (e *Engine) logParked(id actor.ID, r store.Parked) {
	detail, _, _ := strings.Cut(r.Detail, "\n") // further lines have arguments of calls, which are not for a log
	e.log.Warn(parkedMessage, "actor", id.String(), "run", r.Run.String(), "detail", detail)
}

func eventAttrs(ev *history.Event) []slog.Attr {
	all := []slog.Attr{slog.String("actor", ev.Actor.String()), slog.Int("cell", int(ev.From.Cell))}
	if !ev.Call.IsZero() {
		all = append(all, slog.String("call", ev.Call.String()))
	}
	if !ev.Root.IsZero() {
		all = append(all, slog.String("run", ev.Root.String()))
	}
	if ev.Kind == history.Admit {
		if len(ev.Chain) > 0 {
			all = append(all, slog.String("chain", actor.PathString(ev.Chain)), slog.Int("depth", len(ev.Chain)))
		}
		all = append(all, slog.Int64("left_ms", ev.Left.Milliseconds()))
	}
	if ev.Status != 0 {
		all = append(all, slog.String("status", ev.Status.String()))
	}
	if ev.Reason != 0 {
		all = append(all, slog.String("code", ev.Reason.Info().Type), slog.String("reason", ev.Reason.String()))
		if ev.Detail != "" {
			all = append(all, slog.String("detail", ev.Detail))
		}
	}
	if ev.Why != "" {
		all = append(all, slog.String("why", ev.Why))
	}
	return all
}
