// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/troupe-run/troupe/actor"
)

// SpanID is the identifier of a span of a trace. It follows from what the span is about, so a span that is sent again
// after a restart is the same.
type SpanID [8]byte

// SpanOf returns the span of a run, until it is interrupted for the first time.
func SpanOf(run actor.CallID) SpanID { return SpanID(run[8:]) }

// SpanAfter returns the span of a run from an event on that continues it.
func SpanAfter(run actor.CallID, seq uint64) SpanID { return spanID('r', run, seq, 0) }

// SpanOfAsk returns the span of a request of a run to a tool or a model.
func SpanOfAsk(run actor.CallID, step uint32, index uint16) SpanID {
	return spanID('a', run, uint64(step), index)
}

func spanID(kind byte, run actor.CallID, n uint64, index uint16) SpanID {
	b := append(append(make([]byte, 0, 32), kind), run[:]...)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(b, n), index)
	sum := sha256.Sum256(b)
	return SpanID(sum[:8])
}

// Interrupts reports whether the run waits from the event on for something that may take days: a decision, a signal,
// a run below it that waits, or its operator.
func (e *Event) Interrupts() bool { return e.Type == RunPaused || e.Type == WaitOpened }

// Continues reports whether the event ends such a wait.
func (e *Event) Continues() bool {
	return e.Type == RunResumed || e.Type == SignalReceived || e.Type == WaitExpired
}
