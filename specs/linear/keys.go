// SPDX-License-Identifier: Apache-2.0

package linear

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// Operations under an idempotency key. The sequential machine is a write-once register: the run
// of the key and, once it is known, its outcome.
type (
	keyReply struct {
		run     actor.CallID
		outcome string
	}
	keyEffect struct{ run actor.CallID }
)

type keyState struct {
	run     actor.CallID
	outcome string // empty if not known yet
}

// String returns the known run and outcome of the key.
func (s keyState) String() string {
	if s.run.IsZero() {
		return "no run"
	}
	return s.run.String() + " " + s.outcome
}

var keysModel = &model{spec: LinearKeys, init: keyState{},
	step: func(state, op any) (any, bool) {
		s := state.(keyState)
		switch op := op.(type) {
		case keyReply:
			if !s.run.IsZero() && s.run != op.run || s.outcome != "" && s.outcome != op.outcome {
				return s, false
			}
			return keyState(op), true
		case keyEffect:
			if !s.run.IsZero() && s.run != op.run {
				return s, false
			}
			return keyState{op.run, s.outcome}, true
		}
		return s, true
	},
	describe: func(op any) string {
		switch op := op.(type) {
		case keyReply:
			return fmt.Sprintf("returns run %s: %s", op.run, op.outcome)
		case keyEffect:
			return fmt.Sprintf("run %s performs an effect", op.run)
		}
		return "request"
	},
	premise: func(ops []*Op) int {
		replies := 0
		for _, o := range ops {
			if _, ok := o.operation.(keyReply); ok {
				replies++
			}
		}
		return max(0, replies-1)
	},
	// A request without a response reveals nothing about the key.
	reduce: func(ops []*Op) (reduced []*Op) {
		for _, o := range ops {
			if o.returned() {
				reduced = append(reduced, o)
			}
		}
		return reduced
	},
}

// BeginRequest records that a client sends a request under a key.
func (j *Checker) BeginRequest(now actor.Time, key, process string) *Op {
	return j.begin(&j.keys, "key "+key, process, now, nil)
}

// EndRequest records the response to a request: the run that did the work and its outcome in
// one word.
func (j *Checker) EndRequest(now actor.Time, o *Op, run actor.CallID, outcome string) {
	j.end(o, now, keyReply{run, outcome})
}

// RecordEffect records that a run requested under a key performs an external effect.
func (j *Checker) RecordEffect(now actor.Time, key string, run actor.CallID) {
	j.record(&j.keys, "key "+key, "run "+run.Short(), now, keyEffect{run})
}
