// SPDX-License-Identifier: Apache-2.0

// Package store decides what survives a crash: entries, snapshots, blobs, how they fold; it holds no disk.
//
// A Record is what changed for one actor; an Entry is a record in its place in
// a node's log. A Journal is an actor's records folded up: an actor's state is
// read from nowhere else, before a crash and after it.
//
// A Writer decides which entries go to the disk together, makes rows of them
// (entry, snapshot, blob, run event, expiry index) and says when what depends on
// them may be seen. The batches of a node form a hash chain; Verify follows it up
// to the log's end, past the anchor that a host keeps beside the log. A KV is all
// that is asked of a disk; LoadActor and its like read it and name the key of
// whatever is damaged or missing.
package store
