// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// env is what all actors of a cell share in a step: what they are given, and what they give out.
// It knows no actor.
type env struct {
	self        actor.Address
	cells       int // of the node; 0 means 1
	now         actor.Time
	limits      dispatcher.Limits
	definitions definitions
	callable    *tools.Agents // current definitions for the targets of calls
	tools       *tools.Registry
	spending    Spending
	failpoints  failpoint.Points
	eventKinds  history.Set
	rng         uint64     // state of the id generator
	lastStamp   actor.Time // last stamp given to a call
	published   published  // not yet an effect
	ready       Ready
}

// published is the number of the last logged event of a run. Entries of a run that follow
// each other in a step share one effect.
type published struct {
	event store.RunEvent
	gated bool
}

func newEnv(cfg Config) env {
	return env{self: cfg.Self, cells: cfg.Cells, limits: dispatcher.DefaultLimits(), definitions: newDefinitions(), tools: cfg.Tools, spending: cfg.Spending,
		failpoints: cfg.Failpoints, eventKinds: cfg.EventKinds, rng: cfg.Seed}
}

func (v *env) addEffect(e Effect) {
	v.flushPublished()
	v.ready.Effects = append(v.ready.Effects, e)
}

// flushPublished adds the effect that publishes the latest logged events.
func (v *env) flushPublished() {
	if p := v.published; p.event.Seq > 0 {
		v.published = published{}
		v.ready.Effects = append(v.ready.Effects, Effect{Gated: p.gated, Op: Publish{Event: p.event}})
	}
}

func (v *env) emit(e history.Event) {
	if v.emits(e.Kind) {
		e.At, e.From = v.now, v.self
		v.ready.Events = append(v.ready.Events, e)
	}
}

// emits reports whether history events of kind k are emitted. Callers on the hot
// path call emits before they build an event.
func (v *env) emits(k history.Kind) bool { return v.eventKinds == 0 || v.eventKinds.Has(k) }

// newCallID returns a new call id, made of the time and two random words.
func (v *env) newCallID() actor.CallID { return actor.NewCallID(v.now, v.random(), v.random()) }

// random returns the next word of the cell's random stream (splitmix64).
func (v *env) random() uint64 {
	v.rng += 0x9e3779b97f4a7c15
	z := v.rng
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
