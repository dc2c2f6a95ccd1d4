// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// A session is deleted in steps, each of which a start continues after a crash:
//
//	entry Forgotten durable ─▶ rows deleted, tombstone left ─▶ content in the log blanked
//
// The name of the session cannot be used again until a Cut has passed the entry, and with
// it the last trace in the log. That Cut deletes the tombstone.

// ForgottenEntry returns the entry that deletes a session. The shard is that of the
// session.
func ForgottenEntry(tenant, session string, shard uint16, epoch actor.Epoch, at actor.Time) Entry {
	id := actor.ID{Tenant: tenant, Agent: actor.SystemAgent + ".session", Key: session}
	return Entry{Actor: id, Shard: shard, Epoch: epoch, Record: Forgotten{At: at}}
}

// Gone is the error for a session that was deleted.
type Gone struct{ Tenant, Session string }

// Error implements error.
func (g Gone) Error() string {
	return fmt.Sprintf("session %s of tenant %s was deleted", g.Session, g.Tenant)
}

// OpenRuns is the error for a session that cannot be deleted, because an actor has open
// runs.
type OpenRuns struct{ Actor actor.ID }

// Error implements error.
func (o OpenRuns) Error() string { return fmt.Sprintf("%s has open runs", o.Actor) }

// SeveralLogs is the error for a store whose sessions and batches cannot be deleted,
// because the entries of a shard may be in several logs.
type SeveralLogs struct{}

// Error implements error.
func (SeveralLogs) Error() string { return "the store holds the logs of several nodes" }

type tenantSession struct{ tenant, session string }

// The stages of the deletion of a session, after its entry.
const (
	stageForgotten = iota // the rows may exist
	stageDeleted          // the rows are deleted
	stageBlanked          // the content in the log is blanked, too
)

// tombstone is the state of the deletion of a session.
type tombstone struct {
	tenantSession
	node  actor.NodeID
	batch uint64 // with the entry
	stage uint64
	next  uint64 // next batch to blank
}

func newTombstone(e *Entry, node actor.NodeID, batch uint64) tombstone {
	return tombstone{tenantSession: tenantSession{e.Actor.Tenant, e.Actor.Key}, node: node, batch: batch}
}

// row returns the row of the tombstone. It ends in a checksum.
func (t *tombstone) row() Row {
	var e actor.Encoder
	key := tombstoneKey(t.tenant, t.session)
	e.Uint(frameVersion)
	e.String(string(t.node))
	e.Uint(t.batch)
	e.Uint(t.stage)
	e.Uint(t.next)
	sum := actor.HashOf(append(slices.Clone(key), e.Buf...))
	e.Raw(sum[:8])
	return Row{Key: key, Value: e.Buf}
}

// readTombstone returns the tombstone of a session, if it has one.
func readTombstone(kv KV, of tenantSession) (t tombstone, ok bool, err error) {
	value, ok, err := kv.Get(tombstoneKey(of.tenant, of.session))
	if err != nil || !ok {
		return t, false, err
	}
	t, err = decodeTombstone(of, value)
	return t, err == nil, err
}

func decodeTombstone(of tenantSession, value []byte) (tombstone, error) {
	d := newDecoder(value)
	t := tombstone{tenantSession: of}
	if err := d.readVersion("tombstone", frameVersion); err != nil {
		return t, fmt.Errorf("key %s: %w", tombstoneKey(of.tenant, of.session), err)
	}
	t.node, t.batch = actor.NodeID(d.String(actor.NameBytesMax)), d.Uint()
	t.stage, t.next = d.UintMax(stageBlanked, "stage"), d.Uint()
	if row := t.row(); !bytes.Equal(row.Value, value) {
		return t, fmt.Errorf("key %s: is damaged: checksum mismatch", row.Key)
	}
	return t, nil
}

// sessionOf returns the session of an actor.
func sessionOf(id actor.ID) (tenantSession, bool) {
	session, ok := id.Session()
	return tenantSession{id.Tenant, session}, ok
}

// skips reports whether an entry that was read from the log has no place in the Index: it
// deletes a session, or belongs to a session whose rows are deleted.
func (x *Index) skips(kv KV, e *Entry, node actor.NodeID, batch uint64) (bool, error) {
	if _, ok := e.Record.(Forgotten); ok {
		t := newTombstone(e, node, batch)
		_, ok, err := readTombstone(kv, t.tenantSession)
		if err == nil && !ok {
			x.forgotten = append(x.forgotten, t)
		}
		return true, err
	}
	return x.isDeleted(kv, e.Actor)
}

// isDeleted reports whether the rows of an actor are deleted with its session.
func (x *Index) isDeleted(kv KV, id actor.ID) (bool, error) {
	of, ok := sessionOf(id)
	if !ok {
		return false, nil
	}
	deleted, known := x.deleted[of]
	if known {
		return deleted, nil
	}
	t, ok, err := readTombstone(kv, of)
	if err != nil {
		return false, err
	}
	if x.deleted == nil {
		x.deleted = map[tenantSession]bool{}
	}
	x.deleted[of] = ok && t.stage >= stageDeleted
	return x.deleted[of], nil
}

// recoverForgotten adds the sessions that have a tombstone, but rows too.
func (x *Index) recoverForgotten(kv KV) error {
	return Rows{KV: kv}.eachTombstone(func(t tombstone) bool {
		if t.stage == stageForgotten && !x.isForgotten(t.tenantSession) {
			x.forgotten = append(x.forgotten, t)
		}
		return true
	})
}

// isForgotten reports whether a session was deleted, and its rows are left.
func (x *Index) isForgotten(of tenantSession) bool {
	return slices.ContainsFunc(x.forgotten, func(t tombstone) bool { return t.tenantSession == of })
}

// forget drops a session.
func (x *Index) forget(of tenantSession) {
	x.forgotten = slices.DeleteFunc(x.forgotten, func(t tombstone) bool { return t.tenantSession == of })
	x.ids = slices.DeleteFunc(x.ids, func(id actor.ID) bool {
		session, ok := sessionOf(id)
		if ok = ok && session == of; ok {
			delete(x.actors, id)
		}
		return ok
	})
}

// forgetRuns drops runs.
func (x *Index) forgetRuns(tenant string, deleted map[actor.CallID]bool) {
	x.runIDs = slices.DeleteFunc(x.runIDs, func(key tenantRun) bool {
		ok := key.tenant == tenant && deleted[key.run]
		if ok {
			delete(x.runs, key)
		}
		return ok
	})
}

// gone returns the error Gone if the actor's session was deleted.
func (r Rows) gone(id actor.ID) error {
	of, ok := sessionOf(id)
	if !ok {
		return nil
	}
	gone, err := r.isGone(of)
	if gone {
		return Gone{of.tenant, of.session}
	}
	return err
}

// isGone reports whether a session was deleted.
func (r Rows) isGone(of tenantSession) (gone bool, err error) {
	r.with(func(x *Index) { gone = x.isForgotten(of) })
	if !gone {
		_, gone, err = readTombstone(r.KV, of)
	}
	return gone, err
}

// MayForget returns an error if a session cannot be deleted now: SeveralLogs, Gone or
// OpenRuns.
func (r Rows) MayForget(tenant, session string) error {
	if err := r.oneLog(); err != nil {
		return err
	}
	if err := r.gone(actor.ID{Tenant: tenant, Agent: actor.SystemAgent + ".session", Key: session}); err != nil {
		return err
	}
	return r.eachOfSession(tenantSession{tenant, session}, func(id actor.ID) error {
		saved, err := r.Load(id)
		if err != nil {
			return err
		}
		j, err := Fold(saved)
		if err == nil && len(j.Runs) > 0 {
			err = OpenRuns{id}
		}
		return err
	})
}

// oneLog returns SeveralLogs unless each shard has one log.
func (r Rows) oneLog() error {
	nodes, err := logNodes(r.KV)
	if err == nil && len(nodes) > max(1, r.Logs) {
		err = SeveralLogs{}
	}
	return err
}

// eachOfSession passes the actors of a session to the callback each, until it returns an
// error.
func (r Rows) eachOfSession(of tenantSession, each func(actor.ID) error) error {
	var ids []actor.ID
	var err error
	for _, kind := range []byte{kindSnapshot, kindIndex} { // the other rows may be many
		prefix := sessionKey(of.tenant, of.session).kind(kind)
		err = cmp.Or(err, r.KV.Scan(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
			if s, ok := parseScoped(key); ok && !slices.Contains(ids, s.actor) {
				ids = append(ids, s.actor)
			}
			return true
		}))
	}
	r.with(func(x *Index) {
		for _, id := range x.ids {
			if session, ok := sessionOf(id); ok && session == of && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	})
	for _, id := range ids {
		if err == nil {
			err = each(id)
		}
	}
	return err
}

// Erase performs the next step of the deletion of sessions whose entries are in the log of
// a node up to the batch durable, which is synced. It returns false if there is none. Its
// caller excludes Append and flushes of the Index in the meantime.
func (r Rows) Erase(node actor.NodeID, durable uint64) (more bool, err error) {
	var next *tombstone
	r.with(func(x *Index) {
		for i := range x.forgotten {
			if t := x.forgotten[i]; next == nil && t.node == node && t.batch <= durable {
				next = &t
			}
		}
	})
	if next == nil {
		err = r.eachTombstone(func(t tombstone) bool {
			if t.node == node && t.batch <= durable && t.stage < stageBlanked {
				next = &t
			}
			return next == nil
		})
	}
	switch {
	case err != nil || next == nil:
		return false, err
	case next.stage == stageForgotten:
		return true, r.deleteSession(*next)
	}
	return true, r.blank(*next)
}

// eachTombstone passes all tombstones to the callback each, until it returns false.
func (r Rows) eachTombstone(each func(tombstone) bool) error {
	tenants, err := namesAfter(r.KV, "t/")
	for _, tenant := range tenants {
		prefix := tenantKey(tenant, 'f')
		var failure error
		err = cmp.Or(err, r.KV.Scan(prefix, prefixEnd(prefix), func(key, value []byte) bool {
			var t tombstone
			t, failure = decodeTombstone(tenantSession{tenant, string(key[len(prefix):])}, value)
			return failure == nil && each(t)
		}), failure)
	}
	return err
}

// deleteSession deletes the rows of a session and leaves its tombstone.
func (r Rows) deleteSession(t tombstone) error {
	deleted, err := r.runsOfSession(t.tenantSession)
	if err != nil {
		return err
	}
	prefix := sessionKey(t.tenant, t.session)
	rows := []Row{{Key: prefix, To: prefixEnd(prefix), Delete: true}}
	isDeleted := map[actor.CallID]bool{}
	for _, run := range deleted {
		isDeleted[run] = true
		events := eventsKey(t.tenant, run)
		rows = append(rows, Row{Key: runKey(t.tenant, run), Delete: true}, Row{Key: droppedKey(t.tenant, run), Delete: true},
			Row{Key: events, To: prefixEnd(events), Delete: true})
	}
	r.with(func(x *Index) { // the flush that would delete these rows is left out
		for _, id := range x.ids {
			if of, ok := sessionOf(id); ok && of == t.tenantSession && x.actors[id].was != 0 {
				rows = append(rows, Row{Key: dueKey(x.actors[id].shard, x.actors[id].was, id), Delete: true})
			}
		}
	})
	origin, err := Origin(r.KV, t.node)
	if err != nil {
		return err
	}
	t.stage, t.next = stageDeleted, origin.Batch+1
	if err := r.KV.Apply(append(rows, t.row())); err != nil {
		return err
	}
	r.with(func(x *Index) {
		x.forget(t.tenantSession)
		x.forgetRuns(t.tenant, isDeleted)
	})
	return nil
}

// runsOfSession returns all runs of a session: of its entries, and those whose first entry
// was cut.
func (r Rows) runsOfSession(of tenantSession) (all []actor.CallID, err error) {
	prefix := sessionKey(of.tenant, of.session).kind(kindRun)
	var failure error
	err = r.KV.Scan(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
		var run actor.CallID
		run, failure = actor.ParseCallID(string(key[len(prefix):]))
		all = append(all, run)
		return failure == nil
	})
	if err := cmp.Or(failure, err); err != nil {
		return nil, err
	}
	reader := groupReader{kv: r.KV}
	return all, r.eachOfSession(of, func(id actor.ID) error {
		spans, err := r.spans(indexPrefix(id), indexKey(id, 1), r.tail(id))
		for _, s := range spans {
			if err == nil {
				err = reader.entries(id, s, noBlob, func(e Entry) error {
					if a, ok := e.Record.(Accepted); ok {
						all = append(all, a.Call.ID)
					}
					return nil
				})
			}
		}
		return err
	})
}

// blankedBytes is the number of bytes of the log that one step of a deletion reads.
const blankedBytes = 1 << 20

// blankSalt begins a group that was blanked. A random salt differs from it.
const blankSalt = "troupe: blanked\n"

// blankedGroup returns the group that replaces one of a deleted session.
func blankedGroup(of tenantSession) []byte {
	e := actor.Encoder{Buf: []byte(blankSalt)}
	e.String(of.tenant)
	e.String(of.session)
	return e.Buf
}

// blanked returns the session of a group that was blanked.
func blanked(group []byte) (Gone, bool) {
	rest, ok := bytes.CutPrefix(group, []byte(blankSalt))
	if !ok {
		return Gone{}, false
	}
	d := actor.NewDecoder(rest)
	g := Gone{d.String(actor.NameBytesMax), d.String(actor.NameBytesMax)}
	return g, d.End() == nil
}

// blank replaces groups of a deleted session in the log. Their digests stay in the chain.
func (r Rows) blank(t tombstone) error {
	prefix := logKey(t.node)
	var rows []Row
	var failure error
	size, next := 0, t.batch+1
	err := r.KV.Scan(batchKey(t.node, t.next), batchKey(t.node, t.batch+1), func(key, value []byte) bool {
		no, part, err := parsePartKey(key, len(prefix))
		if err == nil && part == 0 && size > blankedBytes {
			next = no
			return false
		}
		size += len(value)
		var changed []byte
		if err == nil {
			changed, err = blankPart(part, value, t.tenantSession)
		}
		if err != nil {
			failure = fmt.Errorf("key %s: %w", key, err)
			return false
		}
		if changed != nil {
			rows = append(rows, Row{Key: bytes.Clone(key), Value: changed})
		}
		return true
	})
	if err := cmp.Or(failure, err); err != nil {
		return err
	}
	if t.next = next; next > t.batch {
		t.stage = stageBlanked
	}
	return r.KV.Apply(append(rows, t.row()))
}

// blankPart returns the value of a part without the groups of a session, or nil if it has
// none.
func blankPart(part uint32, value []byte, of tenantSession) ([]byte, error) {
	record, groups, err := decodePart(part, value)
	if err != nil {
		return nil, err
	}
	found := false
	for i, group := range groups {
		content, err := openGroup(group)
		if errors.As(err, new(Gone)) {
			continue
		}
		belongs := false
		if err == nil {
			err = unpackEntries(content, noBlob, func(e Entry) error {
				session, ok := sessionOf(e.Actor)
				if _, forgets := e.Record.(Forgotten); !forgets {
					belongs = ok && session == of
				}
				return errEnough
			})
		}
		if err != nil && !errors.Is(err, errEnough) {
			return nil, err
		}
		if belongs {
			groups[i], found = blankedGroup(of), true
		}
	}
	if !found {
		return nil, nil
	}
	var e actor.Encoder
	if part == 0 {
		e.Bytes(record)
	}
	for _, group := range groups {
		e.Bytes(group)
	}
	return e.Buf, nil
}

// verifyBlanked returns nil if a group that differs from the one written is that of a
// deleted session.
func verifyBlanked(kv KV, group []byte) error {
	g, ok := blanked(group)
	if !ok {
		return errors.New("differs from the value that was written")
	}
	return verifyForgotten(kv, tenantSession{g.Tenant, g.Session})
}

// verifyDeleted returns nil if a missing row is that of a deleted session.
func verifyDeleted(kv KV, key []byte) error {
	s, ok := parseScoped(key)
	of, inSession := sessionOf(s.actor)
	if s.kind == kindBlob && bytes.HasPrefix(key, sessionKey(s.actor.Tenant, s.actor.Key)) {
		of, inSession = tenantSession{s.actor.Tenant, s.actor.Key}, true
	}
	if !ok || !inSession {
		return errors.New("is missing")
	}
	if err := verifyForgotten(kv, of); err != nil {
		return fmt.Errorf("is missing: %w", err)
	}
	return nil
}

// verifyForgotten returns nil if the log holds the entry that deleted a session.
func verifyForgotten(kv KV, of tenantSession) error {
	t, ok, err := readTombstone(kv, of)
	switch {
	case err != nil:
		return err
	case !ok || t.stage < stageDeleted:
		return fmt.Errorf("session %s of tenant %s was not deleted", of.session, of.tenant)
	}
	found := false
	err = scanLog(kv, t.node, t.batch, func(b *storedBatch) bool {
		for _, group := range b.groups {
			if content, err := openGroup(group); err == nil && b.no == t.batch {
				unpackEntries(content, noBlob, func(e Entry) error { //nolint:errcheck // Verify reports damage
					_, ok := e.Record.(Forgotten)
					found = found || ok && e.Actor.Tenant == of.tenant && e.Actor.Key == of.session
					return nil
				})
			}
		}
		return false
	})
	if err == nil && !found {
		err = fmt.Errorf("batch %d of %s does not delete session %s of tenant %s", t.batch, t.node, of.session, of.tenant)
	}
	return err
}
