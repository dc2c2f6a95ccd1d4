// SPDX-License-Identifier: Apache-2.0

package actor

import "time"

// The bounds of the delay before a refused request is sent again.
const (
	RetryAfterMin = time.Second
	RetryAfterMax = time.Minute
)

// Jitter shortens a retry delay by up to a quarter, so that clients refused together do
// not return together. The argument random is any random word.
func Jitter(d Duration, random uint64) Duration {
	return d - Duration(random%uint64(max(d/4, 0)+1))
}

// Turnover estimates retry delays for a full resource, such as a table of open requests.
// It takes a sample at each refusal and costs nothing otherwise. The refused requests
// that have not been replaced by a completion form the queue; its rate is that of the
// completions.
type Turnover struct {
	at       Time     // last sample with a completion; 0: no sample
	done     uint64   // completions at that sample
	interval Duration // moving average of the time between two completions; 0: unknown
	refused  uint64   // length of the queue
	last     Time     // last refusal
}

const (
	turnoverWeight     = 3       // weight of earlier intervals in the average, in units of the newest
	turnoverRefusedMax = 1 << 20 // bound of the queue
)

// RetryAfter counts a refusal and returns its retry delay, varied by Jitter and at most
// RetryAfterMax. Without a sample the delay is RetryAfterMin, which is also the minimum
// before the variation. The argument done is the number of completions so far.
func (t *Turnover) RetryAfter(now Time, done, random uint64) Duration {
	elapsed, completed := max(now.Sub(t.at), 0), done-t.done
	switch {
	case t.at == 0 || completed > 0 && now.Sub(t.last) > RetryAfterMax: // the resource may have been idle
		*t = Turnover{at: now, done: done}
	case completed > 0:
		sample := elapsed / Duration(min(completed, uint64(elapsed)+1))
		if t.interval > 0 {
			sample = (turnoverWeight*t.interval + sample) / (turnoverWeight + 1)
		}
		t.at, t.done, t.interval = now, done, sample
		t.refused -= min(t.refused, completed)
	}
	t.refused, t.last = min(t.refused+1, turnoverRefusedMax), now
	interval := min(max(t.interval, now.Sub(t.at)), RetryAfterMax) // one that lasts longer than the average counts in its place
	return Jitter(min(max(Duration(t.refused)*interval, RetryAfterMin), RetryAfterMax), random)
}
