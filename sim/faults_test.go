// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
)

// A fault can be injected on its own and violates no spec. It is counted with its effect,
// with half of it, and never without it. make inert checks this of each fault, and in more
// seeds; this test takes every tenth one.
func TestFaultAlone(t *testing.T) {
	for i, f := range Faults() {
		if i%10 != 0 {
			continue
		}
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			c := CountDoses(f, 20, true)
			if p := c.Problem(); p != "" {
				t.Errorf("%s; counts %v in seeds %v", p, c.Counts, c.Seeds)
			}
		})
	}
}

// A gated effect may start a model request after its cell has crashed. If no later
// incarnation awaits the request, it is abandoned when its time is over.
func TestOrphanedExchangesAreAbandoned(t *testing.T) {
	w := New(Options{Faultless: true})
	defer w.Close()
	if v := w.runLoop(func() bool { return w.now > Origin }); v != nil {
		t.Fatal(v)
	}
	n := w.nodes[0]
	c := n.cells[0]
	newExchange := func(index uint16) *exchange {
		g := &gatedEffect{cell: c, effect: runtime.Effect{ID: actor.EffectID{Run: w.newCallID(), Index: index}, Attempt: 1}}
		return n.newExchange(g, 3*time.Second, &actor.Call{})
	}
	before := newExchange(0)
	c.stop()
	n.orphanExchanges(c.index)
	after, awaited := newExchange(1), newExchange(2)
	n.awaitExchange(&runtime.Effect{ID: awaited.id, Attempt: awaited.attempt})
	start := w.now
	w.runLoop(func() bool { return w.now > start.Add(5*time.Second) })
	if !before.done || !after.done || awaited.done {
		t.Errorf("abandoned: started before the crash %t, started after it %t, awaited %t; want true, true, false", before.done, after.done, awaited.done)
	}
}

// A stream reader detects a gap, a repeated event, an event of an unknown run, and
// an event after the end.
func TestStreamReaderDetectsBadStreams(t *testing.T) {
	for name, test := range map[string]struct {
		frames []frameSpec
		spec   string
	}{
		"in order":       {[]frameSpec{{1, "run_paused", ""}, {2, "run_failed", ""}}, ""},
		"gap":            {[]frameSpec{{1, "run_paused", ""}, {3, "run_paused", ""}}, specs.StreamIsDense},
		"repeated event": {[]frameSpec{{1, "run_paused", ""}, {1, "run_paused", ""}}, specs.StreamIsDense},
		"after the end":  {[]frameSpec{{1, "run_failed", ""}, {2, "run_failed", ""}}, specs.StreamIsDense},
		"wrong id":       {[]frameSpec{{1, "run_paused", "7"}}, specs.StreamIsDense},
		"wrong name":     {[]frameSpec{{1, "run_resumed", ""}}, specs.StreamIsDense},
		"unknown run":    {[]frameSpec{{-1, "run_paused", ""}}, specs.StreamIsDense},
		"changed event":  {[]frameSpec{{1, "run_paused", ""}, {-2, "", ""}, {1, "run_failed", ""}}, specs.StreamIsDense},
	} {
		t.Run(name, func(t *testing.T) {
			w := New(Options{Faultless: true})
			defer w.Close()
			r := &streamReader{w: w, run: w.newCallID()}
			r.progress = []runProgress{{run: r.run}}
			w.openReaders++
			for _, f := range test.frames {
				f.deliver(r)
			}
			got := ""
			if w.violation != nil {
				got = w.violation.Spec
			}
			if got != test.spec {
				t.Errorf("got violation %v, want %q", w.violation, test.spec)
			}
		})
	}
}

// frameSpec describes a frame: the number of its event, its name and its id. An empty id
// means the number. Number -1 is an event of another run. Number -2 is no frame: it
// rewinds the reader to the start.
type frameSpec struct {
	seq      int
	name, id string
}

func (f frameSpec) deliver(r *streamReader) {
	e := runs.Event{Run: r.run, Seq: uint64(max(f.seq, 1)), At: Origin, Type: runs.RunPaused, Name: "held"}
	switch {
	case f.seq == -2:
		r.rewind(resumePoint{seqs: []uint64{0}})
		return
	case f.seq == -1:
		e.Run = r.w.newCallID()
	}
	if f.name == "run_failed" {
		e.Type, e.Name, e.Refusal = runs.RunFailed, "", actor.Refuse(actor.Rejected, "no")
	}
	if f.id == "" {
		f.id = strconv.Itoa(f.seq)
	}
	r.receiveFrame(runs.Frame{Name: f.name, ID: f.id, Data: string(runs.Encode(e))})
}
