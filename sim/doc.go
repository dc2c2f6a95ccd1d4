// SPDX-License-Identifier: Apache-2.0

// Package sim is a deterministic simulator: it runs a whole deployment in virtual time
// from one seed and checks the specs after each step.
//
// A Simulation holds nodes and their cells, log, disk, clocks and network. The cells,
// the log writer and the codecs are those of production: a cell is stepped with decoded
// messages of other cells, its entries are batched by store.Writer, and it boots from
// the rows that its disk kept. Models, tools, external agents and clients are
// simulated. They exchange encoded bytes with the nodes, as real ones do. The nodes
// handle these bytes with production code, including back-off and streams.
//
// Everything runs in one goroutine. Each choice that could go more than one way is
// drawn from an Entropy, for which 0 is always the benign choice. A run is thus a
// function of its choices: the same seed gives the same hash, a recorded list of
// choices replays the run, and a list with choices dropped or zeroed is a smaller run.
//
// A run has two phases. During the workload, clients arrive and faults are injected. In
// the recovery phase there are no faults, and every call MUST end:
//
//	workload ─▶ no more faults, links restored, nodes restarted ─▶ at rest ─▶ final checks
//
// Main parts:
//
//	simulation.go  construction, event loop, phases     plan.go          what a seed consists of
//	observation.go events, and what is compared after each step
//	entropy.go     random streams, record and replay    faults.go        fault kinds and their odds
//	node.go        processes, cells, effects            placement.go     leases, shard claims, restarts
//	claims.go      who serves which shards                table.go         leases and owners, as a database holds them
//	disk.go        the log on its way to the store      corruption.go    damaged rows
//	retention.go   cuts of the log, deleted sessions    namespaces.go    tenants, and what keeps them apart
//	exchange.go    calls to models and external agents  client.go        clients and their requests
//	conversation.go  several messages to one actor      approvals.go     declared tools, and people who decide
//	detached.go    calls whose outcomes come back
//	reminder_cancels.go reminders that a client cancels
//	poll_judge.go  outcomes that agents read
//	workflow.go    workflows of an orchestrator, each step of which is asked once
//	audit.go       checks at the end of a run           shrink.go        shorter runs that fail alike
//	*_judge.go     checks of each step, one noun a file
//	*_form(s).go   generated input, valid and invalid
//	page.go        a run as an HTML diagram             inevitability.go the choice that decided a failure
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package sim
