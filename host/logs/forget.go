// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// commitWait appends entries and waits until they are durable. It MUST NOT be called from a
// callback.
func (l *Log) commitWait(entries []store.Entry) {
	durable := make(chan struct{})
	l.Commit(entries, func() { close(durable) })
	<-durable
}

// retainedBytes is the size from which Cut commits the outcomes that it keeps, so that it holds few.
const retainedBytes = 1 << 20

// Cut deletes a log up to a batch while commits continue. Outcomes whose time in Until is
// before now are not kept. A refusal is store.CannotCut. It returns once the cut is
// durable.
func (l *Log) Cut(log int, batch uint64, now actor.Time) error {
	l.cutting.Lock()
	defer l.cutting.Unlock()
	if !l.Owns(log) { // it was dropped since
		return nil
	}
	node := l.Node(log)
	upto, err := l.config.Store.MarkAt(node, batch)
	if err != nil {
		return err
	}
	c := store.Cut{Upto: upto, At: now}
	var entries []store.Entry
	size := 0
	err = l.config.Store.Retain(node, c, func(e store.Entry) error {
		entries = append(entries, e)
		if size += e.Size(); size >= retainedBytes {
			l.commitWait(entries)
			entries, size = nil, 0
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.commitWait(entries)
	if err := l.config.FlushIndex(); err != nil { // it must cover the batch
		return err
	}
	if err := l.config.Store.MayCut(node, c); err != nil {
		return err
	}
	l.commitWait([]store.Entry{store.CutEntry(node, uint16(log), c)})
	return nil
}

// Forget deletes a session, in which no entry may be appended any longer. A refusal is
// store.OpenRuns or store.Gone. Once it returns, the session stays deleted; Erase completes
// the deletion.
func (l *Log) Forget(tenant, session string, shard uint16, epoch actor.Epoch, now actor.Time) error {
	l.cutting.Lock()
	defer l.cutting.Unlock()
	if err := l.config.Store.MayForget(tenant, session); err != nil {
		return err
	}
	l.commitWait([]store.Entry{store.ForgottenEntry(tenant, session, shard, epoch, now)})
	return nil
}

// MayForget returns an error if a session cannot be deleted now: see store.Forgetter.
func (l *Log) MayForget(tenant, session string) error {
	return l.config.Store.MayForget(tenant, session)
}

// Erase deletes the rows of all forgotten sessions, and blanks their content in the log.
// After a crash, the next call continues.
func (l *Log) Erase() error {
	for log := range l.Count() {
		for more := l.Owns(log); more; {
			var err error
			if more, err = l.config.Store.Erase(l.Node(log), l.Synced(log).End.Batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// WhileUncut runs a function while no Cut and no Forget runs.
func (l *Log) WhileUncut(f func() error) error {
	l.cutting.Lock()
	defer l.cutting.Unlock()
	return f()
}
