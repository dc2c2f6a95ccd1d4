// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

var (
	firstRun  = actor.CallID{1}
	secondRun = actor.CallID{2}
	register  = actor.NewID("kim", "s0")
	n1        = Owner{actor.Address{Node: "n1"}, 1}
	n2        = Owner{actor.Address{Node: "n2", Cell: 1}, 2}
)

const checkTimeout = 10 * time.Second

// Porcupine returns partial linearizations in random order. The explanation must not depend on
// that order.
func TestExplanationIsDeterministic(t *testing.T) {
	explain := func() string {
		j := New()
		j.EndSwap(1, j.BeginSwap(1, register, "a", "1"), "")
		b, c := j.BeginSwap(2, register, "b", "2"), j.BeginSwap(2, register, "c", "3")
		j.EndSwap(3, b, "1")
		j.EndSwap(3, c, "1")
		return j.Check(checkTimeout).Illegal.Detail
	}
	want := explain()
	for range 50 {
		if got := explain(); got != want {
			t.Fatalf("%s\n%s", want, got)
		}
	}
}

// scenario records operations in the order in which they happen.
type scenario func(j *Checker)

func TestModelsRejectIllegalHistories(t *testing.T) {
	tests := []struct {
		name   string
		record scenario
		spec   string // empty if the history is legal
	}{
		{"request and repeat", func(j *Checker) {
			a, b := j.BeginRequest(1, "k", "a"), j.BeginRequest(2, "k", "b")
			j.RecordEffect(3, "k", firstRun)
			j.EndRequest(4, b, firstRun, "done")
			j.EndRequest(5, a, firstRun, "done")
		}, ""},
		{"request without response", func(j *Checker) {
			j.BeginRequest(1, "k", "a")
			j.EndRequest(2, j.BeginRequest(2, "k", "b"), secondRun, "done")
		}, ""},
		{"two keys", func(j *Checker) {
			j.EndRequest(1, j.BeginRequest(1, "k", "a"), firstRun, "done")
			j.EndRequest(2, j.BeginRequest(2, "l", "b"), secondRun, "done")
		}, ""},
		{"two runs under one key", func(j *Checker) {
			j.EndRequest(1, j.BeginRequest(1, "k", "a"), firstRun, "done")
			j.EndRequest(2, j.BeginRequest(2, "k", "b"), secondRun, "done")
		}, LinearKeys},
		{"two outcomes of one run", func(j *Checker) {
			a, b := j.BeginRequest(1, "k", "a"), j.BeginRequest(1, "k", "b")
			j.EndRequest(2, a, firstRun, "done")
			j.EndRequest(2, b, firstRun, "refused")
		}, LinearKeys},
		{"effects of two runs, no response", func(j *Checker) {
			j.BeginRequest(1, "k", "a")
			j.RecordEffect(2, "k", firstRun)
			j.RecordEffect(3, "k", secondRun)
		}, LinearKeys},

		{"change of owner", func(j *Checker) {
			j.RecordClaim(1, "g", n1)
			w := j.BeginWrite(2, "g", "n1")
			j.RecordTurn(3, "g", n1)
			late := j.BeginWrite(4, "g", "n1")
			j.EndWrite(4, w, 1, true)
			j.RecordClaim(5, "g", n2)
			j.EndWrite(6, late, 1, false)
			j.RecordTurn(6, "g", n2)
		}, ""},
		{"write returns after the next claim", func(j *Checker) {
			j.RecordClaim(1, "g", n1)
			w := j.BeginWrite(2, "g", "n1")
			j.RecordClaim(3, "g", n2)
			j.EndWrite(4, w, 1, true)
		}, ""},
		{"write begins after the next claim", func(j *Checker) {
			j.RecordClaim(1, "g", n1)
			j.RecordClaim(3, "g", n2)
			j.EndWrite(5, j.BeginWrite(4, "g", "n1"), 1, true)
		}, LinearOwners},
		{"write before its claim", func(j *Checker) {
			j.EndWrite(1, j.BeginWrite(0, "g", "n1"), 1, true)
			j.RecordClaim(1, "g", n1)
		}, LinearOwners},
		{"write before its claim, then one in time", func(j *Checker) {
			j.EndWrite(1, j.BeginWrite(0, "g", "n1"), 1, true)
			j.RecordClaim(2, "g", n1)
			j.EndWrite(4, j.BeginWrite(3, "g", "n1"), 1, true)
		}, LinearOwners},
		{"write in time, then one after the next claim", func(j *Checker) {
			j.RecordClaim(1, "g", n1)
			j.EndWrite(3, j.BeginWrite(2, "g", "n1"), 1, true)
			j.RecordClaim(4, "g", n2)
			j.EndWrite(6, j.BeginWrite(5, "g", "n1"), 1, true)
		}, LinearOwners},
		{"write refused to the owner", func(j *Checker) {
			j.RecordClaim(1, "g", n1)
			j.EndWrite(3, j.BeginWrite(2, "g", "n1"), 1, false)
		}, LinearOwners},
		{"turn after the next claim", func(j *Checker) {
			j.RecordClaim(1, "g", n1)
			j.RecordClaim(2, "g", n2)
			j.RecordTurn(3, "g", n1)
		}, LinearOwners},
		{"turn at a cell that is not the owner", func(j *Checker) {
			j.RecordClaim(1, "g", n1)
			j.RecordTurn(2, "g", Owner{actor.Address{Node: "n1", Cell: 7}, 1})
		}, LinearOwners},
		{"turn after release", func(j *Checker) {
			j.RecordClaim(1, "g", n1)
			j.RecordRelease(2, "g", "n1")
			j.RecordTurn(3, "g", n1)
		}, LinearOwners},
		{"reused epoch", func(j *Checker) {
			j.RecordClaim(1, "g", n2)
			j.RecordClaim(2, "g", n1)
		}, LinearOwners},

		{"three swaps", func(j *Checker) {
			a, b := j.BeginSwap(1, register, "a", "1"), j.BeginSwap(1, register, "b", "2")
			j.EndSwap(2, a, "2")
			j.EndSwap(3, b, "")
			j.EndSwap(4, j.BeginSwap(4, register, "c", "3"), "1")
		}, ""},
		{"swap without response, observed", func(j *Checker) {
			j.BeginSwap(1, register, "a", "1")
			j.EndSwap(3, j.BeginSwap(2, register, "b", "2"), "1")
		}, ""},
		{"swap without response, not observed", func(j *Checker) {
			j.BeginSwap(1, register, "a", "1")
			j.EndSwap(3, j.BeginSwap(2, register, "b", "2"), "")
			j.EndSwap(5, j.BeginSwap(4, register, "c", "3"), "2")
		}, ""},
		{"lost value", func(j *Checker) {
			j.EndSwap(1, j.BeginSwap(1, register, "a", "1"), "")
			j.EndSwap(2, j.BeginSwap(2, register, "b", "2"), "")
		}, LinearKept},
		{"value observed twice", func(j *Checker) {
			j.EndSwap(1, j.BeginSwap(1, register, "a", "1"), "")
			b, c := j.BeginSwap(2, register, "b", "2"), j.BeginSwap(2, register, "c", "3")
			j.EndSwap(3, b, "1")
			j.EndSwap(3, c, "1")
		}, LinearKept},
		{"overwritten value observed", func(j *Checker) {
			j.EndSwap(1, j.BeginSwap(1, register, "a", "1"), "")
			j.EndSwap(2, j.BeginSwap(2, register, "b", "2"), "1")
			j.EndSwap(3, j.BeginSwap(3, register, "c", "3"), "1")
		}, LinearKept},
		{"value that was never stored", func(j *Checker) {
			j.EndSwap(1, j.BeginSwap(1, register, "a", "1"), "9")
		}, LinearKept},
	}
	for _, test := range tests {
		j := New()
		test.record(j)
		v := j.Check(checkTimeout)
		switch {
		case v.Undecided > 0:
			t.Errorf("%s: undecided", test.name)
		case v.Illegal == nil && test.spec != "":
			t.Errorf("%s: legal, want %s", test.name, test.spec)
		case v.Illegal == nil:
		case v.Illegal.Spec != test.spec:
			t.Errorf("%s: got %s, %s; want %q", test.name, v.Illegal.Spec, v.Illegal.Detail, test.spec)
		default:
			var page bytes.Buffer
			if err := v.Illegal.WritePage(&page); err != nil || !strings.Contains(page.String(), "<html") {
				t.Errorf("%s: no page: %v", test.name, err)
			}
			if !strings.Contains(v.Illegal.Detail, "cannot continue with") {
				t.Errorf("%s: %s", test.name, v.Illegal.Detail)
			}
		}
	}
}

// Every history and every operation that returned is counted.
func TestVerdictCountsOperations(t *testing.T) {
	j := New()
	j.BeginRequest(1, "k", "a")
	j.EndRequest(2, j.BeginRequest(2, "k", "b"), firstRun, "done")
	j.RecordClaim(3, "g", n1)
	j.EndSwap(4, j.BeginSwap(4, register, "a", "1"), "")
	if v := j.Check(checkTimeout); v.Histories != 3 || v.Ops != 3 || v.Illegal != nil || v.Undecided != 0 {
		t.Errorf("%+v", v)
	}
}

// A history that is not decided within the limit is neither legal nor illegal.
func TestTimeoutIsUndecided(t *testing.T) {
	j := New()
	var ops []*Op
	for i := range 40 { // All operations overlap and no value fits: every order has to be tried.
		ops = append(ops, j.BeginSwap(1, register, "c", fmt.Sprint(i)))
		j.BeginSwap(1, register, "d", fmt.Sprint("d", i))
	}
	for i, o := range ops {
		j.EndSwap(2, o, fmt.Sprint("d", (i*7)%40))
	}
	j.EndSwap(3, j.BeginSwap(3, register, "e", "last"), "unknown")
	if v := j.Check(time.Millisecond); v.Undecided != 1 || v.Illegal != nil {
		t.Errorf("%+v, want one undecided history", v)
	}
}

// Histories are drawn from a correct machine and some are corrupted. The reduced history must
// have the same verdict as the full one.
func TestReductionPreservesVerdict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := New()
		b := &j.owners
		if rapid.Bool().Draw(t, "kept") {
			b = &j.swaps
			drawSwaps(t, j)
		} else {
			drawOwners(t, j)
		}
		for _, s := range b.order {
			m := b.porcupine()
			full, reduced := verdict(m, s.ops), verdict(m, b.reduce(s.ops))
			if full != reduced {
				t.Fatalf("the full history of %d operations is %s, the reduced one of %d is %s", len(s.ops), full, len(b.reduce(s.ops)), reduced)
			}
		}
	})
}

func drawSwaps(t *rapid.T, j *Checker) {
	var pending []*Op
	state := ""
	results := map[*Op]string{}
	for i := range rapid.IntRange(1, 10).Draw(t, "steps") {
		switch k := rapid.IntRange(0, 3).Draw(t, "what"); {
		case k < 2 || len(pending) == 0:
			pending = append(pending, j.BeginSwap(actor.Time(i), register, "c", fmt.Sprint(i)))
		default:
			at := rapid.IntRange(0, len(pending)-1).Draw(t, "which")
			o := pending[at]
			if _, done := results[o]; !done {
				results[o], state = state, o.operation.(pendingSwap).value
			}
			if k == 3 {
				pending = append(pending[:at], pending[at+1:]...)
				found := results[o]
				if rapid.IntRange(0, 5).Draw(t, "spoil") == 5 {
					found = fmt.Sprint(rapid.IntRange(0, i).Draw(t, "wrong"))
				}
				j.EndSwap(actor.Time(i), o, found)
			}
		}
	}
}

func drawOwners(t *rapid.T, j *Checker) {
	owner, epoch := Owner{}, actor.Epoch(0)
	type write struct {
		op    *Op
		epoch actor.Epoch
	}
	var pending []write
	for i := range rapid.IntRange(1, 24).Draw(t, "steps") {
		now := actor.Time(i)
		switch k := rapid.IntRange(0, 6).Draw(t, "what"); {
		case k == 0 || owner.Epoch == 0:
			epoch++
			owner = Owner{n1.Cell, epoch}
			j.RecordClaim(now, "g", owner)
		case k == 1:
			owner = Owner{}
			j.RecordRelease(now, "g", "n1")
		case k == 2:
			o := owner
			if rapid.IntRange(0, 5).Draw(t, "spoil") == 5 {
				o.Epoch = actor.Epoch(rapid.IntRange(1, int(epoch)).Draw(t, "wrong"))
			}
			j.RecordTurn(now, "g", o)
		case k < 5 || len(pending) == 0:
			w := write{j.BeginWrite(now, "g", "n1"), owner.Epoch}
			if rapid.IntRange(0, 5).Draw(t, "spoil") == 5 {
				w.epoch = actor.Epoch(rapid.IntRange(1, int(epoch)+1).Draw(t, "wrong"))
			}
			pending = append(pending, w)
		default:
			at := rapid.IntRange(0, len(pending)-1).Draw(t, "which")
			w := pending[at]
			pending = append(pending[:at], pending[at+1:]...)
			ok := w.epoch == owner.Epoch
			if rapid.IntRange(0, 7).Draw(t, "spoil") == 7 {
				ok = !ok
			}
			j.EndWrite(now, w.op, w.epoch, ok)
		}
	}
}

func verdict(m porcupine.Model, ops []*Op) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(m, operations(ops), checkTimeout)
}
