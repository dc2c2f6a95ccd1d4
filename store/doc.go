// SPDX-License-Identifier: Apache-2.0

// Package store defines the log format, journals and snapshots; it accesses no disk.
//
// A Record is one change of one actor. An Entry is a record with its position in
// a node's log. A Journal is the fold of an actor's records. It is the only source
// of an actor's state, in normal operation and after a crash.
//
// A Writer groups entries into batches and reports the position up to which effects may
// be released. The batches of a node form a hash chain. Verify checks the chain to the
// end of the log. The log MUST NOT end before the anchor, which a host stores in a
// separate file.
//
// A Log stores batches, and a Reader reads them by entries, actors and runs. The events of
// a run are derived from its entries. Rows
// implements both over a KV, the interface that a disk must implement. It stores a batch
// as one row of the log, in parts of 64 KiB, and rows for snapshots and blobs. An Index
// finds entries by actor, run and deadline. Its rows are written in larger steps, and the
// rest is recovered from the log. key.go has the layout of the keys. A Relog copies rows into a
// store with other logs.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package store
