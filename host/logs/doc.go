// SPDX-License-Identifier: Apache-2.0

// Package logs appends entries to a store: it drives a store.Writers, and runs callbacks once the
// entries before them are durable. Cut and Forget delete from the front of the log.
//
//	Commit ─▶ waiting ─▶ transaction ─Append▶ stored ─Sync▶ durable ─▶ callbacks
//
// A Log is the only way to append entries to a store: the entries passed to Commit are durable
// when the callback of that Commit runs. Callbacks run in the order of the Commit calls. A transaction
// whose result is unknown is settled before anything follows it.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package logs
