// SPDX-License-Identifier: Apache-2.0

// Package runtime implements a cell, the single-threaded state machine that runs a
// share of a node's actors.
//
// # Step and Ready
//
// Step takes the current time and one Input and returns a Ready: entries to append
// to the node's log, effects to perform, and history events for the specs. A cell
// has no clock, no goroutine and no lock. The same inputs in the same order give
// the same Readys.
//
// The code that steps a cell is its driver: package host/engine in production,
// package sim in simulation. For each Ready the driver
//
//   - appends the entries to the log, in order and in one commit, before it
//     performs any of the effects;
//   - performs the effects that are not Gated at once;
//   - holds back the Gated effects until the log is durable up to the end of
//     these entries.
//
// The driver may step the next input before the log is synced. Slow operations,
// reads included, are effects. Their results come in as later inputs.
//
// # Activation
//
// An actor of the cell is in one of these states:
//
//	absent --message, open work--> loading --Loaded--> loaded --PassivateAfter--> absent
//	                                  |                   |
//	                                  +-- shard lost -----+--> absent
//
// A journaled actor is loaded from the log. A volatile actor (durability "none") is
// loaded at once and loses its state when its cell restarts. A serial actor runs
// one turn at a time. An interleaved actor starts further turns while others wait.
//
// # Failures
//
//   - A Step that panics makes the cell unusable. The driver discards it, counts
//     a Strike for its FaultingCall, and boots a new incarnation from the log.
//   - A lost message is sent again under the same call id until it is answered.
//     The callee answers a duplicate from the recorded outcome.
//   - An actor that cannot be read refuses new calls. If it has open work it is
//     loaded again, with back-off.
//   - A turn that takes another course when it is replayed is parked until an
//     operator intervenes, as is one of an external agent that makes other requests when it is
//     invoked again. A run whose agent or model is absent at a start is parked until a
//     start that has it.
//   - A cycle of calls that wait for each other is detected by probes and broken
//     by one refusal.
//
// # Files
//
//	contract.go       inputs, effects and their guarantees
//	cell.go           Cell, Step, agents and shard ownership
//	env.go            what the actors of a cell share in a step: time, limits, effects, events, ids
//	definitions.go    agents by version
//	names.go          addresses of agents: the target of a call
//	delivery.go       message routing inside the cell
//	admission.go      admission checks of a call at its callee
//	duplicates.go     answers to duplicates of ended calls, reads of outcomes
//	reply_cache.go    outcomes of calls to volatile actors
//	residents.go      memory of journaled actors, and which of them leave it
//	accounts.go       what the trees of a user draw from the budget of a day
//	active.go         limits of turns: those of an agent, those that begin a tree
//	activation.go     loading, passivation, entries and snapshots
//	actor_table.go    the actors in memory
//	recovery.go       loading of actors with open work after a start
//	transcript.go     earlier messages of a conversation, for its turns
//	forget.go         deletion of a session
//	turn.go           turns: begin, advance, replay, end
//	parking.go        runs that wait for an operator: the replay diverged, something is absent
//	ask.go            asks of a turn and their answers
//	phase.go          what an ask waits for
//	calls.go          calls in flight: retries, cancels, paused clocks
//	mail.go           detached calls, whose outcomes come back as messages
//	routing.go        parts of detached calls that an operator has switched off
//	local.go          calls between actors of one cell
//	client.go         clients that wait at this cell
//	tool_calls.go     calls of declared tools: checks, policy, results
//	signals.go        signals to open runs
//	pending.go        PendingCalls
//	working.go        WorkingRuns
//	blobs.go          whole results of which turns get the head
//	approvals.go      tool calls that wait for a person
//	purses.go         what runs may spend on models
//	device_results.go results of client tools
//	callback.go       calls that external agents add to their run
//	repeats.go        matching of the asks of an external agent that is invoked again
//	unmatched.go      effects that it does not ask for again
//	usertext.go       texts for users, without codes of agents and capabilities
//	targets.go        addresses at which external agents are invoked
//	added_tools.go    tool calls that they add
//	added_models.go   model requests that they add
//	stream.go         streamed answers of models and external agents
//	wait_cycle.go     detection of wait cycles
//	timers.go         timers and expiry
//	state.go          State and Size
//	measure.go        figures for the driver's statistics
//
// # Transcripts
//
// Transcripts of simulated runs show the main flows, one line per event. They are
// in sim/testdata:
//
//	call.txt          a call and its reply
//	busy.txt          a refusal by a full mailbox
//	cycle.txt         a refusal of a call into its own chain
//	cancel.txt        a run cancelled by its client, with the calls below it
//	restart.txt       a run resumed after a crash
//	callback.txt      a call added by an external agent
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package runtime
