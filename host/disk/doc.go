// SPDX-License-Identifier: Apache-2.0

// Package disk keeps a node's store in a folder, on Pebble: one log that is written ahead, its keys, and an anchor beside it.
//
//	DIR/FORMAT   whose store this is and of which format; read before anything is written
//	DIR/ANCHOR   how far the log was synced, as of 100 ms ago; two slots in turn
//	DIR/SECRET   32 bytes for its owner alone, made when they are first needed
//	DIR/LOCK     held by the one process that may open it; DIR/HOLDER names it
//	DIR/pebble/  the keys
//
// A Disk is what store.KV asks for; a Log is the one way in for entries: what was
// handed to Commit is durable when its callback runs, and callbacks run in order.
//
// A write or a sync that fails ends the process, in one line: what was not synced
// was never acknowledged, and the next start finds the rest. A store that is
// damaged, cut short, of a newer format, of another node or not ours at all is
// refused before it is touched, by an error that names the place. What was lost
// within the last 100 ms before a crash cannot be told from what was never synced.
package disk
