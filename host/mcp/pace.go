// SPDX-License-Identifier: Apache-2.0

package mcp

import "time"

// pace spaces what a server causes by itself.
type pace struct{ last time.Time }

// left returns the time until the next occurrence is permitted, of which an interval has one at
// most.
func (p *pace) left(interval time.Duration) time.Duration {
	if p.last.IsZero() {
		return 0
	}
	return time.Until(p.last.Add(interval))
}

// admit reports whether there was no occurrence in the interval, and then notes one.
func (p *pace) admit(interval time.Duration) bool {
	if p.left(interval) > 0 {
		return false
	}
	p.last = time.Now()
	return true
}

// unaskedMax is the number of messages per second that a server may send by itself. Further ones
// are read later, so the server has to wait, and so do its answers behind them.
const unaskedMax = 1000

// flow bounds the messages that a server sends by itself.
type flow struct {
	begin time.Time // of the current second
	count int
}

// wait counts a message. Beyond unaskedMax it waits for the end of the second, or until done is closed.
func (f *flow) wait(done <-chan struct{}) {
	now := time.Now()
	if now.Sub(f.begin) >= time.Second {
		f.begin, f.count = now, 0
	}
	if f.count++; f.count <= unaskedMax {
		return
	}
	timer := time.NewTimer(f.begin.Add(time.Second).Sub(now))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}
