// SPDX-License-Identifier: Apache-2.0

// Package buggify has rare things happen often, at points that product code names, so that the simulator sees what follows.
//
// A point is a place where the code may do something that is always right and
// hardly ever happens: pass a limit that nobody reaches, look once more, forget
// what it can find again.
//
//	if act.idle() && now >= due || c.rare.On(buggify.PassivateNow) { … }
//
// In production there are no Points, and On is a comparison with nil.
package buggify

// Point is one place.
type Point uint8

// The points.
const (
	PassivateNow  Point = iota // an actor with nothing open leaves memory at once
	SnapshotNow                // a snapshot is written though little stands behind the last
	MailboxFull                // a mailbox has no room for one that comes
	AskAgainNow                // a call that is not answered is sent again, as if it were lost
	LoadMisses                 // what is read of an actor is not taken, and asked for again
	BatchOfOne                 // a batch takes what one step brought, and no more
	ProbeAgainNow              // a call that waits probes again

	points = int(ProbeAgainNow) + 1
)

var names = [points]string{"PassivateNow", "SnapshotNow", "MailboxFull", "AskAgainNow", "LoadMisses", "BatchOfOne", "ProbeAgainNow"}

// All lists the points.
func All() []Point {
	all := make([]Point, points)
	for i := range all {
		all[i] = Point(i)
	}
	return all
}

// String is the point's name.
func (p Point) String() string { return names[p] }

// Points says whether a point does the rare thing, each time it is come by. Nil,
// as in production, never does.
type Points func(Point) bool

// On asks.
func (p Points) On(at Point) bool { return p != nil && p(at) }
