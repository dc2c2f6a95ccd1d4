// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/store"
)

const (
	firstFloor     = 3000    // maximum in ns, for a new actor
	recoveredFloor = 100_000 // maximum in ns, for an actor recovered from the log

	// messagesPerActor is the number of messages that an actor processed before it
	// left memory.
	messagesPerActor = 3
)

// studyFirst measures the cost of the first message of an actor.
func studyFirst(b *bench) ([]row, error) {
	fresh, err := b.newActors()
	if err != nil {
		return nil, err
	}
	recovered, err := b.recoveredActors()
	return append([]row{fresh}, recovered...), err
}

func (b *bench) newActors() (r row, err error) {
	const name = "first message of a new actor"
	err = b.withNode(nil, func(node *node) error {
		channels := newChannelActors(0, 1, 1)
		defer channels.close()
		count := 0
		rounds, err := b.runRounds(comparison{name: name,
			ours: func(n int) (time.Duration, error) {
				ids := make([]actor.ID, n)
				for i := range ids {
					ids[i] = numberedActor("echo", count)
					count++
				}
				return runConcurrent(1, n, func(_, i int) error { return node.ask(b.ctx, ids[i], payload) })
			},
			theirs: func(n int) (time.Duration, error) {
				return runConcurrent(1, n, func(int, int) error {
					channels.actors = append(channels.actors, startChain(1))
					if len(channels.ask(0, len(channels.actors)-1, payload)) != len(payload) {
						return errLostMessage
					}
					return nil
				})
			}})
		r = latencyRow(name, "a new goroutine with a channel, and its first message", rounds, atMost(firstFloor))
		r.addNote("%s actors at the end", groupDigits(int64(actorsInMemory(node.Engine))))
		return err
	}, echo("echo", actor.Volatile))
	return r, err
}

// recoveredActors measures actors that a node recovers from its log. Each actor is
// asked twice; both replies are durable and wait for one sync. The rows show the
// latency of the first reply, and its difference to the second, which is the cost of
// recovery alone.
func (b *bench) recoveredActors() (rows []row, err error) {
	const name = "first message of an actor loaded from the log"
	each := 300
	if b.quick {
		each = 5
	}
	actors := each * b.rounds
	dir, remove, err := b.tempDir()
	if err != nil {
		return nil, err
	}
	defer remove()
	data := filepath.Join(dir, "store")
	if err := b.fillStore(data, actors); err != nil {
		return nil, err
	}
	copied, read, err := copyEntries(data, filepath.Join(dir, "bare"), actors)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, copied.Close()) }()
	n, err := openNode(data, nil, echo("echo", actor.Journaled))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()

	var waits, reads []roundCost
	for round := range b.rounds {
		b.progress("%s: round %d of %d", name, round+1, b.rounds)
		runtime.GC()
		var first, second, bare []time.Duration
		for i := range each {
			id := numberedActor("echo", round*each+i)
			for _, took := range []*[]time.Duration{&first, &second} {
				began := time.Now()
				if err := n.ask(b.ctx, id, payload); err != nil {
					return nil, err
				}
				*took = append(*took, time.Since(began))
			}
			began := time.Now()
			if err := readEntries(copied, id); err != nil {
				return nil, err
			}
			bare = append(bare, time.Since(began))
		}
		medianOf := func(all []time.Duration) float64 { slices.Sort(all); return float64(quantile(all, 0.5)) }
		f, s := medianOf(first), medianOf(second)
		waits = append(waits, roundCost{ours: f, theirs: s})
		reads = append(reads, roundCost{ours: f - s, theirs: medianOf(bare)})
	}
	wait := latencyRow(name, "the second message of the same actor", waits, floor{})
	wait.addNote("both with a sync")
	recovery := latencyRow("the same, less its second message", "a bare Pebble that reads the same entries", reads, atMost(recoveredFloor))
	recovery.addNote("%.1f entries per actor", float64(read)/float64(actors))
	return []row{wait, recovery}, nil
}

// fillStore creates a store in which each actor has processed messagesPerActor
// messages.
func (b *bench) fillStore(dir string, actors int) (err error) {
	n, err := openNode(dir, nil, echo("echo", actor.Journaled))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	_, err = runConcurrent(64, actors, func(caller, i int) error {
		for range messagesPerActor {
			if err := n.ask(b.ctx, numberedActor("echo", 64*i+caller), payload); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// copyEntries copies the entries of actors from a store into a bare Pebble store, with the
// entries of each actor in a range of keys of their own.
func copyEntries(from, dir string, actors int) (db *pebble.DB, entries int, err error) {
	d, err := disk.Open(from, "", disk.Options{ReadOnly: true})
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if db, err = barePebble(dir); err != nil {
		return nil, 0, err
	}
	var failed error
	for i := 0; i < actors && failed == nil; i++ {
		id := numberedActor("echo", i)
		var saved store.Saved
		saved, failed = d.Load(id)
		for _, e := range saved.Entries {
			entries++
			failed = errors.Join(failed, db.Set(fmt.Appendf(barePrefix(id), "%016x", e.N), store.EncodeEntry(e), pebble.NoSync))
		}
	}
	if err = errors.Join(err, failed, db.Flush()); err == nil && entries == 0 {
		err = errors.New("the store holds no entries of actors")
	}
	return db, entries, err
}

func barePrefix(id actor.ID) []byte { return fmt.Appendf(nil, "%s/", id) }

// readEntries reads all entries of an actor from a bare Pebble store.
func readEntries(db *pebble.DB, id actor.ID) error {
	prefix := barePrefix(id)
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: append(prefix[:len(prefix):len(prefix)], 0xff)})
	if err != nil {
		return err
	}
	read := 0
	for ok := it.First(); ok; ok = it.Next() {
		read += len(it.Value())
	}
	if err := it.Close(); err != nil || read > 0 {
		return err
	}
	return fmt.Errorf("no entries of %s", id)
}
