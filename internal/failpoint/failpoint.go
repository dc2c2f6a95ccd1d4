// SPDX-License-Identifier: Apache-2.0

// Package failpoint lets the simulator force rare but correct behaviour at named points in product code.
//
// A failpoint is a place where the code may take a path that is always correct
// and rarely taken: treat a queue as full, retry early, or drop state that can
// be loaded again.
//
//	if act.idle() && now >= due || c.rare.On(failpoint.PassivateNow) { … }
//
// In production Points is nil, and On costs one comparison.
package failpoint

// Point names one failpoint.
type Point uint8

// The failpoints.
const (
	PassivateNow  Point = iota // passivate an actor as soon as it is idle
	SnapshotNow                // write a snapshot although few entries follow the last one
	MailboxFull                // refuse a message as if the mailbox were full
	AskAgainNow                // resend an unanswered call as if it had been lost
	LoadMisses                 // discard a loaded actor and load it again
	BatchOfOne                 // close a batch after the entries of one step
	ProbeAgainNow              // send another probe for a waiting call
	QueueNow                   // let a message wait in the mailbox of an idle actor
	SendNow                    // send a message to an actor of the cell through the driver

	points = int(SendNow) + 1
)

var names = [points]string{"PassivateNow", "SnapshotNow", "MailboxFull", "AskAgainNow", "LoadMisses", "BatchOfOne", "ProbeAgainNow", "QueueNow", "SendNow"}

// All returns all failpoints.
func All() []Point {
	all := make([]Point, points)
	for i := range all {
		all[i] = Point(i)
	}
	return all
}

// String returns the name of the failpoint.
func (p Point) String() string { return names[p] }

// Points reports whether a failpoint is active, each time it is evaluated. A
// nil Points, as in production, never activates one.
type Points func(Point) bool

// On reports whether the failpoint at is active for this evaluation.
func (p Points) On(at Point) bool { return p != nil && p(at) }
