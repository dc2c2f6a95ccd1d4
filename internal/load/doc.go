// SPDX-License-Identifier: Apache-2.0

// Package load puts a node under load and says how it bears it: how much it gets
// done, how long that takes, what it refuses and how soon.
//
//	Target ──▶ Caller, Caller …      whom is asked: cells in this process, or a door over HTTP
//	Closed    so many callers, each of whom asks again once it has its answer
//	Open      so many arrivals a second, whatever becomes of them
//	Result    what was seen
//	Programme all that `make load` measures, and the floors that must hold
//
// A closed loop waits with a server that waits, and so never sees the worst. In an
// open loop an arrival has an instant at which it was to be sent, and its time
// counts from there, also if the loop was late; so what a pause hides from one
// caller it shows in the times of all that arrived meanwhile.
//
// The load is made in the process, or at least on the machine, that bears it, and
// takes its share of the processors. It is kept cheap: requests are made before
// they are needed, arrivals cost one atomic operation, and those that no caller is
// free for are counted as not sent, all at once, once they are over Patience late.
//
// What is bounded: callers, arrivals that wait to be tried again, the tries of each.
package load
