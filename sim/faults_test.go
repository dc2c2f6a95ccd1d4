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

// Each fault comes about by itself, and breaks nothing.
func TestEachFaultAlone(t *testing.T) {
	for _, f := range Faults() {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			odds := []Odds{{f, max(faultTable[f].most, oddsScale/4)}}
			for _, need := range prerequisites[f] {
				odds = append(odds, Odds{need, max(faultTable[need].most, oddsScale/4)})
			}
			for seed := uint64(1); seed < 120; seed++ {
				r := RunSeed(Options{Seed: seed, Faultless: true, Odds: odds})
				if r.Violation != nil {
					t.Fatalf("seed %d: %v", seed, r.Violation)
				}
				known := 0
				for _, o := range odds {
					known += r.Stats.Faults[o.Fault]
				}
				if r.Stats.TotalFaults() != known {
					t.Fatalf("seed %d: %d faults, %d of them set by hand", seed, r.Stats.TotalFaults(), known)
				}
				if r.Stats.Faults[f] > 0 {
					return
				}
			}
			t.Error("never seen")
		})
	}
}

// prerequisites are the faults without which another has nothing to befall.
var prerequisites = map[Fault][]Fault{
	ClientStaleCursor: {ClientDisconnect}, // for who comes back
	DiskLostTail:      {NodeCrash},
	DiskTornWrite:     {NodeCrash},
	DiskBitFlip:       {NodeCrash},
	DiskMisdirected:   {NodeCrash},
	DiskStale:         {NodeCrash},
	DiskLostWrite:     {NodeCrash},
	DiskTornAnchor:    {NodeCrash},
	NodeNewerData:     {NodeCrash},
	NodeOlderData:     {NodeCrash},
	ClockBehind:       {NodeCrash},
	LoadPoison:        {AgentPanic}, // by which name a panic of an agent is counted
}

// What a cell wanted of a model is begun behind its log, when the cell may have
// fallen: if nobody awaits it then, it is given up when its time is over.
func TestOrphanedExchangesAreAbandoned(t *testing.T) {
	w := New(Options{Faultless: true})
	defer w.Close()
	if v := w.runLoop(func() bool { return w.now > Origin }); v != nil {
		t.Fatal(v)
	}
	n := w.nodes[0]
	c := n.cells[0]
	asks := func(index uint16) *exchange {
		h := &gatedEffect{cell: c, effect: runtime.Effect{ID: actor.EffectID{Run: w.newCallID(), Index: index}, Attempt: 1}}
		return n.newExchange(h, 3*time.Second, &actor.Call{})
	}
	before := asks(0)
	c.stop()
	n.orphanExchanges(c.index)
	behind, awaited := asks(1), asks(2)
	n.awaitExchange(&runtime.Effect{ID: awaited.id, Attempt: awaited.attempt})
	begun := w.now
	w.runLoop(func() bool { return w.now > begun.Add(5*time.Second) })
	if !before.done || !behind.done || awaited.done {
		t.Errorf("given up are: what was under way when it fell %t, what began later %t, what is awaited %t", before.done, behind.done, awaited.done)
	}
}

// A listener tells a gap, an event that comes twice, one of a run that it has not
// heard of, and one behind the end.
func TestStreamReaderDetectsBadStreams(t *testing.T) {
	for name, test := range map[string]struct {
		frames []frameSpec
		spec   string
	}{
		"in order":         {[]frameSpec{{1, "run_paused", ""}, {2, "run_failed", ""}}, ""},
		"a gap":            {[]frameSpec{{1, "run_paused", ""}, {3, "run_paused", ""}}, specs.StreamIsDense},
		"twice":            {[]frameSpec{{1, "run_paused", ""}, {1, "run_paused", ""}}, specs.StreamIsDense},
		"behind the end":   {[]frameSpec{{1, "run_failed", ""}, {2, "run_failed", ""}}, specs.StreamIsDense},
		"another's id":     {[]frameSpec{{1, "run_paused", "7"}}, specs.StreamIsDense},
		"another's name":   {[]frameSpec{{1, "run_resumed", ""}}, specs.StreamIsDense},
		"of another run":   {[]frameSpec{{-1, "run_paused", ""}}, specs.StreamIsDense},
		"changed meantime": {[]frameSpec{{1, "run_paused", ""}, {-2, "", ""}, {1, "run_failed", ""}}, specs.StreamIsDense},
	} {
		t.Run(name, func(t *testing.T) {
			w := New(Options{Faultless: true})
			defer w.Close()
			l := &streamReader{w: w, run: w.newCallID()}
			l.progress = []runProgress{{run: l.run}}
			w.openReaders++
			for _, f := range test.frames {
				f.deliver(l)
			}
			got := ""
			if w.violation != nil {
				got = w.violation.Spec
			}
			if got != test.spec {
				t.Errorf("%v, want %q", w.violation, test.spec)
			}
		})
	}
}

// frameSpec is an event of that number, in a frame of that name, with that id;
// "" is its own. -1: of another run; -2: the listener goes back to the beginning.
type frameSpec struct {
	seq      int
	name, id string
}

func (f frameSpec) deliver(l *streamReader) {
	e := runs.Event{Run: l.run, Seq: uint64(max(f.seq, 1)), At: Origin, Type: runs.RunPaused, Name: "held"}
	switch {
	case f.seq == -2:
		l.rewind(resumePoint{seqs: []uint64{0}})
		return
	case f.seq == -1:
		e.Run = l.w.newCallID()
	}
	if f.name == "run_failed" {
		e.Type, e.Name, e.Refusal = runs.RunFailed, "", actor.Refuse(actor.Rejected, "no")
	}
	if f.id == "" {
		f.id = strconv.Itoa(f.seq)
	}
	l.receiveFrame(runs.Frame{Name: f.name, ID: f.id, Data: string(runs.Encode(e))})
}
