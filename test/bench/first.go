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
)

const (
	firstFloor = 3000    // ns, of a new actor
	backFloor  = 100_000 // ns, of one that comes back from the log

	// messagesBefore are what an actor dealt with before it left memory.
	messagesBefore = 3
)

// studyFirst measures what the first message of an actor costs.
func studyFirst(b *bench) ([]row, error) {
	fresh, err := b.newActors()
	if err != nil {
		return nil, err
	}
	back, err := b.comeBack()
	if err != nil {
		return []row{fresh}, err
	}
	return []row{fresh, back}, nil
}

func (b *bench) newActors() (r row, err error) {
	const name = "first message of a new actor"
	err = b.in(nil, func(node *node) error {
		channels := newBare(0, 1, 1)
		defer channels.close()
		count := 0
		rounds, err := b.alternate(duel{name: name,
			ours: func(n int) (time.Duration, error) {
				ids := make([]actor.ID, n)
				for i := range ids {
					ids[i] = numbered("echo", count)
					count++
				}
				return crowd(1, n, func(_, i int) error { return node.ask(b.ctx, ids[i], payload) })
			},
			theirs: func(n int) (time.Duration, error) {
				return crowd(1, n, func(int, int) error {
					channels.actors = append(channels.actors, linked(1))
					if len(channels.ask(0, len(channels.actors)-1, payload)) != len(payload) {
						return errSilent
					}
					return nil
				})
			}})
		r = timed(name, "a new goroutine with a channel, and its first message", rounds, atMost(firstFloor))
		r.beside("%s actors in the end", grouped(int64(inMemory(node.Engine))))
		return err
	}, echo("echo", actor.Volatile))
	return r, err
}

// comeBack measures actors that a node finds in its log. Each is asked twice:
// what the first answer takes more than the second is the way back. Both wait
// for the disk once, to be durable.
func (b *bench) comeBack() (r row, err error) {
	const name = "first message of an actor that comes back from the log"
	each := 300
	if b.quick {
		each = 5
	}
	actors := each * b.rounds
	dir, remove, err := b.folder()
	if err != nil {
		return row{}, err
	}
	defer remove()
	store := filepath.Join(dir, "store")
	if err := b.fill(store, actors); err != nil {
		return row{}, err
	}
	copied, rows, err := copyOf(store, filepath.Join(dir, "bare"))
	if err != nil {
		return row{}, err
	}
	defer func() { err = errors.Join(err, copied.Close()) }()
	n, err := open(store, nil, echo("echo", actor.Journaled))
	if err != nil {
		return row{}, err
	}
	defer func() { err = errors.Join(err, n.close()) }()

	var rounds []pair
	var firsts, seconds []float64
	for round := range b.rounds {
		b.progress("%s: round %d of %d", name, round+1, b.rounds)
		runtime.GC()
		var first, second, bare []time.Duration
		for i := range each {
			id := numbered("echo", round*each+i)
			for _, took := range []*[]time.Duration{&first, &second} {
				began := time.Now()
				if err := n.ask(b.ctx, id, payload); err != nil {
					return row{}, err
				}
				*took = append(*took, time.Since(began))
			}
			began := time.Now()
			if err := readAll(copied, id); err != nil {
				return row{}, err
			}
			bare = append(bare, time.Since(began))
		}
		middle := func(all []time.Duration) float64 { slices.Sort(all); return float64(at(all, 0.5)) }
		f, s := middle(first), middle(second)
		firsts, seconds = append(firsts, f), append(seconds, s)
		rounds = append(rounds, pair{ours: f - s, theirs: middle(bare)})
	}
	r = timed(name, "a bare Pebble that reads the same rows", rounds, atMost(backFloor))
	r.beside("the first answer less the second: %v less %v, each with a sync", figure{median(firsts), nanoseconds}, figure{median(seconds), nanoseconds})
	r.beside("%.1f rows of an actor", float64(rows)/float64(actors))
	return r, nil
}

// fill leaves a store in which actors have dealt with some messages.
func (b *bench) fill(dir string, actors int) (err error) {
	n, err := open(dir, nil, echo("echo", actor.Journaled))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	_, err = crowd(64, actors, func(caller, i int) error {
		for range messagesBefore {
			if err := n.ask(b.ctx, numbered("echo", 64*i+caller), payload); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// copyOf puts all rows of actors into a Pebble that is nobody's store.
func copyOf(store, dir string) (db *pebble.DB, rows int, err error) {
	d, err := disk.Open(store, "", disk.Options{ReadOnly: true})
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if db, err = barePebble(dir); err != nil {
		return nil, 0, err
	}
	var failed error
	err = d.Scan([]byte(actorRows), []byte(actorRows+"\xff"), func(key, value []byte) bool {
		rows++
		failed = db.Set(key, value, pebble.NoSync)
		return failed == nil
	})
	if err = errors.Join(err, failed, db.Flush()); err == nil && rows == 0 {
		err = errors.New("the store holds no rows of actors")
	}
	return db, rows, err
}

// actorRows is what the keys of actors begin with.
const actorRows = "t/" + actor.DefaultTenant + "/a/"

// readAll reads what there is of an actor.
func readAll(db *pebble.DB, id actor.ID) error {
	prefix := fmt.Sprintf("%s%s/%s/", actorRows, id.Agent, id.Key)
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte(prefix), UpperBound: []byte(prefix + "\xff")})
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
	return fmt.Errorf("nothing is there of %s", id)
}
