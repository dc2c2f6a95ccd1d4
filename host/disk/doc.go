// SPDX-License-Identifier: Apache-2.0

// Package disk keeps a node's store in a directory, on Pebble: the keys with
// their write-ahead log, and an anchor.
//
//	DIR/FORMAT   node and format of the store; read before anything is written
//	DIR/ANCHOR   position up to which the log was synced, at most 100 ms old; two alternating slots
//	DIR/SECRET   32 secret bytes, created when first needed
//	DIR/LOCK     locked by the one process that may change the store, or by those that read it
//	DIR/pebble/  the keys
//	DIR/BALLAST  reserved space, released by Open if the disk is full
//	DIR/kept/    original write-ahead log of a store that is being opened or failed to open
//
// The files have mode 0600 and the directories 0700, whatever the umask is. Open
// narrows a directory that is open to other users and logs a warning; it refuses
// one whose mode it cannot change. The same holds for a copy.
//
// A link, or anything else but a regular file, in place of one of these files is refused.
// A read-only open creates and changes nothing, also no LOCK.
//
// A Disk implements store.KV. A Log is the only way to append entries: the
// entries passed to Commit are durable when the callback of that Commit runs.
// Callbacks run in the order of the Commit calls.
//
// A write or sync that fails ends the process with a one-line message. Unsynced
// entries were never acknowledged, and the next start finds all synced entries.
// Without a free descriptor an open is repeated for about 10 s before it fails.
//
// Open refuses a store that is corrupt, truncated, of a newer format, of
// another node or not a store at all. The error names the place. A refused
// store is unchanged, or DIR/kept holds its original write-ahead log. A loss
// within the last 100 ms before a crash cannot be distinguished from entries
// that were never synced.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package disk
