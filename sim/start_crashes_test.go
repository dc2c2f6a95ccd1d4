// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/troupe-run/troupe/store"
)

var recoveryRuns = flag.Int("recovery-runs", 0, "number of seeds in which a node crashes at every disk operation of a start; 0 means a few, with fewer second crashes")

// Every stride-th crash is followed by a crash at each operation of the next start.
const (
	shortRecoveries             = 1
	recoveryStride, shortStride = 4, 20
	startOperationsMin          = 10 // minimum number of operations of the start of a seed; others are skipped
)

// TestRecoveryCrashedAtEveryOperation crashes a node before each disk operation of a
// start, and before each operation of the start after that. Every time all specs MUST
// hold, every call MUST end, and the store MUST be intact.
func TestRecoveryCrashedAtEveryOperation(t *testing.T) {
	seeds, stride, variants := *recoveryRuns, recoveryStride, 2 // crashes that lose the tail of the log, and crashes that do not
	if seeds == 0 {
		seeds, stride, variants = shortRecoveries, shortStride, 1
	}
	var tasks []startCrashTask
	for seed := uint64(0); len(tasks) < seeds; seed++ {
		task, base := startCrashTask{seed: seed}, startCrashes{}
		if v := task.run(&base); v != nil {
			t.Fatalf("seed %d: %v", seed, v)
		}
		if len(base.starts) > 0 && len(base.starts[0]) >= startOperationsMin {
			tasks = append(tasks, task)
		}
	}
	failed, kinds := 0, map[string]int{}
	perform := func(tasks []startCrashTask) (all []startCrashes) {
		all = make([]startCrashes, len(tasks))
		RunSeeds(0, len(tasks), func(i uint64) Result {
			v := tasks[i].run(&all[i])
			return Result{Seed: i, Violation: v}
		}, func(r Result) bool {
			if r.Violation != nil {
				failed++
				t.Errorf("%+v: %v", tasks[r.Seed], r.Violation)
			}
			return failed < 5
		})
		return all
	}
	next := func(tasks []startCrashTask, done []startCrashes, stride int) (all []startCrashTask) {
		for i, s := range done {
			if i%stride != 0 || len(s.starts) <= len(tasks[i].before) {
				continue
			}
			for at, operation := range s.starts[len(tasks[i].before)] {
				kinds[operation]++
				for _, losesTail := range []bool{at%2 == 0, at%2 == 1}[:variants] {
					task := tasks[i]
					task.before, task.losesTail = append(slices.Clone(task.before), at+1), losesTail
					all = append(all, task)
				}
			}
		}
		return all
	}
	first := next(tasks, perform(tasks), 1)
	firstDone := perform(first)
	second := next(first, firstDone, stride)
	perform(second)
	t.Logf("%d seeds: crashes before %d operations of starts, and before %d operations of the starts after %d of them (%v); %d losses",
		seeds, len(first)/variants, len(second)/variants, (len(first)+stride-1)/stride, kinds, failed)
	for _, kind := range []string{"read the anchor", "verify the log", "read the registry", "read", "write", "sync", "commit"} {
		if kinds[kind] == 0 {
			t.Errorf("no crash before the operation %q", kind)
		}
	}
}

// startCrashTask is a run with crashes of a starting node.
type startCrashTask struct {
	seed      uint64
	before    []int
	losesTail bool
}

// run runs the task. The workload ends soon after the last start.
func (task startCrashTask) run(s *startCrashes) *Violation {
	*s = startCrashes{step: 40 + int(task.seed*37%200), before: task.before, losesTail: task.losesTail}
	oversized := []Odds{{ModelGiant, 0}, {AgentGiant, 0}, {ToolGiant, 0}} // these take most of the time
	w := New(Options{Seed: task.seed, Unhashed: true, Odds: oversized, startCrashes: s})
	defer w.Close()
	w.runGuarded(func() { w.runLoop(func() bool { return w.done || s.done() }) })
	if !w.recovering {
		w.plan.Calls = 1 // no more clients
	}
	if v := w.Run(); v != nil {
		return v
	}
	for _, n := range w.nodes {
		if end, err := w.store.verifyAll(n.id, n.log.mark); err != nil || end != n.log.mark {
			return &Violation{Spec: ChainHolds, Detail: fmt.Sprintf("log of %s: batch %d, want %d: %v", n.id, end.Batch, n.log.mark.Batch, err)}
		}
	}
	if w.store.kv == nil {
		return nil
	}
	if x, err := store.Examine(w.store.kv, w.nodes[0].log.ends(), nil, nil); err != nil || x.Wrong > 0 {
		return &Violation{Spec: StoreHolds, Detail: fmt.Sprintf("%v: %+v", err, x.Findings)}
	}
	return nil
}
