// SPDX-License-Identifier: Apache-2.0

// Package sim is a world grown from a seed: scheduler, clock, network, disk, models, tools, people, faults; asks specs after each step.
//
// A World holds nodes, a node cells, and the cells are those of production:
// they are stepped with bytes that another cell encoded, appended to a log that
// store.Writer batches, booted from what the disk kept. All of it happens in one
// goroutine, and whatever could happen in more than one way is asked of a
// Chooser, for which 0 is always the benign answer. So a run is a function of
// its choices: the same seed gives the same hash, a choice log replays, and a
// log with some choices dropped or zeroed is a smaller run.
//
// Behind the nodes stand servers of models and external agents, before them people
// who ask and who read streams. Between those and a node there are bytes, and
// what the node makes of them is production's too: exchanges, back-off, streams.
//
//	workload ─▶ faults off, healed, restarted ─▶ quiet ─▶ every call has ended?
package sim
