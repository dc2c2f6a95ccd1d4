// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/troupe-run/troupe/actor"

// Approximate sizes in bytes of parts of a journal without their content.
const (
	journalOverhead = 1 << 10
	itemOverhead    = 64
	evictedOverhead = 80
	MessageOverhead = 64 // of a message of a transcript
	runOverhead     = 1 << 10
	askOverhead     = 512
)

// MemorySize returns the approximate memory of the journal in bytes.
func (j *Journal) MemorySize() int {
	n := journalOverhead + j.stateBytes + j.outcomeBytes + evictedOverhead*(len(j.Evicted)+len(j.Buried)) + j.Transcript.memorySize() + j.Mail.memorySize() + len(j.Reported.State) + len(j.Reported.Detail)
	for _, r := range j.Runs {
		n += r.memorySize()
	}
	return n
}

func (r *Run) memorySize() int {
	n := runOverhead + actor.SizeOf(r.Call.Parts) + itemsSize(r.StateUpdates)
	for i := range r.Steps {
		for k := range r.Steps[i].Asks {
			a := &r.Steps[i].Asks[k]
			n += askOverhead + actor.SizeOf(a.Ask.Parts)
			if a.Sent != nil {
				n += actor.SizeOf(a.Sent.Parts)
			}
			if a.Answer != nil {
				n += actor.SizeOf(a.Answer.Parts)
			}
		}
	}
	return n
}

// memorySize walks back over the pages that no snapshot has stored yet: those are the last.
func (t *Transcript) memorySize() int {
	n := MessageOverhead*(len(t.Pages)+len(t.Tail)) + t.tailBytes
	for i := len(t.Pages) - 1; i >= 0 && t.Pages[i].content != nil; i-- {
		n += t.Pages[i].size()
	}
	return n
}

func itemsSize(items []actor.StateItem) (n int) {
	for i := range items {
		n += itemOverhead + len(items[i].Name) + len(items[i].Value)
	}
	return n
}
