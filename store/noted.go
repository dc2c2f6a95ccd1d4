// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// MayNote reports whether the events of an entry may have notices. It is cheap, for a log on which most
// entries have none.
func (e *Entry) MayNote() bool {
	waits := func(a *Asked) bool { return a.Waits() || a.Answer != nil && isUnknown(a.Answer.Refusal) }
	switch r := e.Record.(type) {
	case Asking:
		for i := range r.Asks {
			if waits(&r.Asks[i]) {
				return true
			}
		}
	case Added:
		return waits(&r.Ask)
	case Answered:
		return isUnknown(r.Answer.Refusal)
	case Resolved:
		return r.Status == runs.ApprovalStatusExpired
	case Parked:
		return r.Detail != ""
	case Ended:
		return r.Reply.Refusal != nil
	}
	return false
}

func isUnknown(r *actor.Refusal) bool { return r != nil && r.Reason == actor.Unknown }

// NotedEvents returns the events of an entry that have notices.
func (e *Entry) NotedEvents() (noted []runs.Event) {
	if !e.MayNote() {
		return nil
	}
	for _, ev := range e.RunEvents() {
		if len(ev.Notices()) > 0 {
			noted = append(noted, ev)
		}
	}
	return noted
}

// EachNoted passes the events with notices of the batches from first to last of a node's log to the callback
// each, in order, until it returns false. Their texts may be incomplete: Events has them. Those of deleted
// sessions, and batches that were cut, are left out.
func (r Rows) EachNoted(node actor.NodeID, first, last uint64, each func(batch uint64, of actor.ID, e *runs.Event) bool) error {
	return r.EachEntry(node, first, last, func(batch uint64, e *Entry) bool {
		for _, ev := range e.NotedEvents() {
			if !each(batch, e.Actor, &ev) {
				return false
			}
		}
		return true
	})
}

// EachEntry passes the entries of the batches from first to last of a node's log to the callback each, in order,
// until it returns false. Those of deleted sessions, and batches that were cut, are left out.
func (r Rows) EachEntry(node actor.NodeID, first, last uint64, each func(batch uint64, e *Entry) bool) error {
	origin, err := Origin(r.KV, node)
	if err != nil {
		return err
	}
	errStop := errors.New("stop")
	var failure error
	err = scanLog(r.KV, node, max(first, origin.Batch+1), func(b *storedBatch) bool {
		if b.no > last {
			return false
		}
		if failure = b.err; failure != nil {
			return false
		}
		for _, group := range b.groups {
			content, err := openGroup(group)
			if errors.As(err, new(Gone)) {
				continue
			}
			if err == nil {
				err = unpackEntries(content, noBlob, func(e Entry) error {
					if !each(b.no, &e) {
						return errStop
					}
					return nil
				})
			}
			if errors.Is(err, errStop) {
				return false
			}
			if err != nil {
				failure = fmt.Errorf("key %s: %w", partKey(node, b.no, 0), err)
				return false
			}
		}
		return true
	})
	return cmp.Or(failure, err)
}
