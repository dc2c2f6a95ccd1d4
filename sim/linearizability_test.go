// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/specs/linear"
)

// A register that loses values violates linearizability, and the failure directory
// contains a picture of the history.
func TestLostRegisterValueIsNotLinearizable(t *testing.T) {
	o := Options{lossyRegister: true, NoResampling: true, shrink: budget{steps: 8000}}
	var r Result
	for o.Seed = 1; r.Violation == nil && o.Seed < 20; o.Seed++ {
		r = RunSeed(o)
	}
	o.Seed = r.Seed
	if r.Violation == nil || r.Violation.Spec != linear.LinearKept || !strings.Contains(r.Violation.Detail, "kim/") {
		t.Fatalf("violation: got %v, want LinearKept of agent kim", r.Violation)
	}
	dir := t.TempDir()
	small, err := SaveFailure(dir, o, r)
	if err != nil || small.Violation == nil || small.Violation.Spec != linear.LinearKept || small.Stats.Steps > r.Stats.Steps {
		t.Errorf("shrinking %d steps: got %d steps with violation %v, error %v", r.Stats.Steps, small.Stats.Steps, small.Violation, err)
	}
	page, err := os.ReadFile(filepath.Join(dir, historyFile))
	if err != nil || !bytes.Contains(page, []byte("found")) && !bytes.Contains(page, []byte("finds")) {
		t.Errorf("no picture of the history: error %v, %d bytes", err, len(page))
	}
}

// Runs record histories of all three kinds, and all of them are decided.
func TestRunRecordsAllHistoryKinds(t *testing.T) {
	swaps, keyed := 0, 0
	for seed := range uint64(3) {
		w := New(Options{Seed: seed})
		if v := w.Run(); v != nil {
			t.Error(v)
		}
		if w.Stats.JudgedOps < 200 || w.Stats.JudgedHistories < 10 || w.Stats.Undecided > 0 {
			t.Errorf("seed %d: got %d operations in %d histories, %d undecided; want at least 200, 10, none", seed, w.Stats.JudgedOps, w.Stats.JudgedHistories, w.Stats.Undecided)
		}
		for _, c := range w.clients {
			if c.to.Agent == swapRegisterName && c.swap == nil {
				swaps++
			}
		}
		keyed += len(w.keyOfCall)
		w.Close()
	}
	if swaps < 5 || keyed < 60 {
		t.Errorf("got %d completed swaps and %d keyed requests, want at least 5 and 60", swaps, keyed)
	}
}

// A history that could not be checked in time counts as missing, for any number of
// seeds.
func TestUndecidedHistoriesAreReported(t *testing.T) {
	var s Summary
	s.Add(Result{})
	if got := s.Undecided(); len(got) > 0 {
		t.Errorf("no undecided history: got %v, want nothing", got)
	}
	s.Add(Result{Stats: Stats{Undecided: 1}})
	if got := s.Undecided(); len(got) != 1 || !strings.Contains(got[0], "verdict") {
		t.Errorf("one undecided history: got %v, want one line on a verdict", got)
	}
}
