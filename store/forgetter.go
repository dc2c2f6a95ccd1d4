// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/troupe-run/troupe/actor"

// Forgetter is a Log that can be cut from its front, and whose sessions can be deleted.
// Both begin with an entry, of CutEntry or ForgottenEntry, that is appended after the
// check. Other entries may be appended between both.
type Forgetter interface {
	Log
	// MarkAt returns the mark of a batch, and CannotCut if the log does not hold it.
	MarkAt(node actor.NodeID, batch uint64) (Mark, error)
	// Retain passes the entries to the callback each that MUST be in the log before the
	// Cut: snapshots, and copies of outcomes.
	Retain(node actor.NodeID, c Cut, each func(Entry) error) error
	// MayCut returns an error if the log cannot be cut now: CannotCut or SeveralLogs. Once
	// it can be, it can be cut later as well.
	MayCut(node actor.NodeID, c Cut) error
	// MayForget returns an error if a session cannot be deleted now: SeveralLogs, Gone or
	// OpenRuns. The caller excludes entries of that session until its entry Forgotten is
	// appended. None follow.
	MayForget(tenant, session string) error
	// Erase performs the next step of the deletion of sessions whose entries are in the
	// log of a node up to the batch durable, which is synced. It returns false if there is
	// none. Its caller excludes Append in the meantime. A start calls it until it returns
	// false.
	Erase(node actor.NodeID, durable uint64) (more bool, err error)
}

var _ Forgetter = Rows{}
