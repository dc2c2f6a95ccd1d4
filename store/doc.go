// SPDX-License-Identifier: Apache-2.0

// Package store decides what survives a crash: entries, snapshots, blobs, how they fold; it holds no disk.
//
// A Record is what changed for one actor; an Entry is a record in its place in
// a node's log. A Journal is an actor's records folded up: an actor's state is
// read from nowhere else, before a crash and after it.
package store
