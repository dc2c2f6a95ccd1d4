// SPDX-License-Identifier: Apache-2.0

// Package load generates load for a node and measures throughput, latency, refusals
// and the time to refuse.
//
//	Target ──▶ Caller, Caller …   cells in this process, or a gateway over HTTP
//	ClosedLoop  a fixed number of callers, each with one call at a time
//	OpenLoop    a fixed rate of arrivals, independent of the answers
//	Result      the measurements of one loop
//	Suite       all loops of `make load`, and the floors that must hold
//
// A closed loop sends nothing while the server pauses, so its latencies omit the
// worst case (coordinated omission). In an open loop each arrival has an intended
// send time. Its latency counts from then even if the loop was late. A pause thus
// shows in the latency of every call that arrived during it.
//
// The generator shares the processors with the node, in the same process or on the
// same machine. It is kept cheap: requests are encoded in advance, and an arrival
// costs one atomic operation. An arrival without a free caller within LatenessMax is
// not sent. It is counted as unsent, together with the late arrivals that follow it.
//
// The callers, the queue of retries and the attempts of each call are bounded.
package load
