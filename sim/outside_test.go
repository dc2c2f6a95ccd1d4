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
func TestEachFaultByHand(t *testing.T) {
	for _, f := range Faults() {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			odds := []Odds{{f, max(faultTable[f].most, per/4)}}
			for _, need := range needs[f] {
				odds = append(odds, Odds{need, max(faultTable[need].most, per/4)})
			}
			for seed := uint64(1); seed < 120; seed++ {
				r := RunSeed(Options{Seed: seed, Faultless: true, Odds: odds})
				if r.Broken != nil {
					t.Fatalf("seed %d: %v", seed, r.Broken)
				}
				known := 0
				for _, o := range odds {
					known += r.Stats.Faults[o.Fault]
				}
				if r.Stats.FaultsAll() != known {
					t.Fatalf("seed %d: %d faults, %d of them set by hand", seed, r.Stats.FaultsAll(), known)
				}
				if r.Stats.Faults[f] > 0 {
					return
				}
			}
			t.Error("never seen")
		})
	}
}

// needs are the faults without which another has nothing to befall.
var needs = map[Fault][]Fault{
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
func TestWhatACellLeavesBehindIsGivenUp(t *testing.T) {
	w := New(Options{Faultless: true})
	defer w.Close()
	if v := w.until(func() bool { return w.now > Origin }); v != nil {
		t.Fatal(v)
	}
	n := w.nodes[0]
	c := n.cells[0]
	asks := func(index uint16) *exchange {
		h := &held{c: c, effect: runtime.Effect{ID: actor.EffectID{Run: w.newCallID(), Index: index}, Attempt: 1}}
		return n.newExchange(h, 3*time.Second, &actor.Call{})
	}
	before := asks(0)
	c.end()
	n.orphanExchanges(c.index)
	behind, awaited := asks(1), asks(2)
	n.awaitExchange(&runtime.Effect{ID: awaited.id, Attempt: awaited.attempt})
	begun := w.now
	w.until(func() bool { return w.now > begun.Add(5*time.Second) })
	if !before.over || !behind.over || awaited.over {
		t.Errorf("given up are: what was under way when it fell %t, what began later %t, what is awaited %t", before.over, behind.over, awaited.over)
	}
}

// A listener tells a gap, an event that comes twice, one of a run that it has not
// heard of, and one behind the end.
func TestListenersAreNotDeceived(t *testing.T) {
	for name, test := range map[string]struct {
		frames []heardFrame
		spec   string
	}{
		"in order":         {[]heardFrame{{1, "run_paused", ""}, {2, "run_failed", ""}}, ""},
		"a gap":            {[]heardFrame{{1, "run_paused", ""}, {3, "run_paused", ""}}, specs.StreamIsDense},
		"twice":            {[]heardFrame{{1, "run_paused", ""}, {1, "run_paused", ""}}, specs.StreamIsDense},
		"behind the end":   {[]heardFrame{{1, "run_failed", ""}, {2, "run_failed", ""}}, specs.StreamIsDense},
		"another's id":     {[]heardFrame{{1, "run_paused", "7"}}, specs.StreamIsDense},
		"another's name":   {[]heardFrame{{1, "run_resumed", ""}}, specs.StreamIsDense},
		"of another run":   {[]heardFrame{{-1, "run_paused", ""}}, specs.StreamIsDense},
		"changed meantime": {[]heardFrame{{1, "run_paused", ""}, {-2, "", ""}, {1, "run_failed", ""}}, specs.StreamIsDense},
	} {
		t.Run(name, func(t *testing.T) {
			w := New(Options{Faultless: true})
			defer w.Close()
			l := &listener{w: w, run: w.newCallID()}
			l.read = []reading{{run: l.run}}
			w.listening++
			for _, f := range test.frames {
				f.tell(l)
			}
			got := ""
			if w.broken != nil {
				got = w.broken.Spec
			}
			if got != test.spec {
				t.Errorf("%v, want %q", w.broken, test.spec)
			}
		})
	}
}

// heardFrame is an event of that number, in a frame of that name, with that id;
// "" is its own. -1: of another run; -2: the listener goes back to the beginning.
type heardFrame struct {
	seq      int
	name, id string
}

func (f heardFrame) tell(l *listener) {
	e := runs.Event{Run: l.run, Seq: uint64(max(f.seq, 1)), At: Origin, Type: runs.RunPaused, Name: "held"}
	switch {
	case f.seq == -2:
		l.goBack(mark{seqs: []uint64{0}})
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
	l.hear(runs.Frame{Name: f.name, ID: f.id, Data: string(runs.Encode(e))})
}
