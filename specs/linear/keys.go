// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// What is done under an idempotency key. The machine is a cell that is written
// once: which run, and in time how it ended.
type (
	keyReply struct {
		run     actor.CallID
		outcome string
	}
	keyEffect struct{ run actor.CallID }
)

type keyState struct {
	run     actor.CallID
	outcome string // "": not known yet
}

// String says what is known of the key.
func (s keyState) String() string {
	if s.run.IsZero() {
		return "no run"
	}
	return s.run.String() + " " + s.outcome
}

var keysModel = &model{spec: LinearKeys, init: keyState{},
	step: func(state, did any) (any, bool) {
		s := state.(keyState)
		switch did := did.(type) {
		case keyReply:
			if !s.run.IsZero() && s.run != did.run || s.outcome != "" && s.outcome != did.outcome {
				return s, false
			}
			return keyState(did), true
		case keyEffect:
			if !s.run.IsZero() && s.run != did.run {
				return s, false
			}
			return keyState{did.run, s.outcome}, true
		}
		return s, true
	},
	describe: func(did any) string {
		switch did := did.(type) {
		case keyReply:
			return fmt.Sprintf("is told of run %s: %s", did.run, did.outcome)
		case keyEffect:
			return fmt.Sprintf("run %s acts", did.run)
		}
		return "asks"
	},
	// Who was told nothing has shown nothing.
	reduce: func(ops []*Op) (lean []*Op) {
		for _, o := range ops {
			if o.returned() {
				lean = append(lean, o)
			}
		}
		return lean
	},
}

// Asks begins an ask under a key.
func (j *Judge) Asks(now actor.Time, key, who string) *Op {
	return j.begin(&j.keys, "key "+key, who, now, nil)
}

// Told ends it: with the run that did the work, and its outcome in a word.
func (j *Judge) Told(now actor.Time, o *Op, run actor.CallID, outcome string) {
	j.end(o, now, keyReply{run, outcome})
}

// Acts says that a run does something outside that was asked for under a key.
func (j *Judge) Acts(now actor.Time, key string, run actor.CallID) {
	j.record(&j.keys, "key "+key, "run "+run.Short(), now, keyEffect{run})
}
