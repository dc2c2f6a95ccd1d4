// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/store"
)

// contents holds all that can be read from a store: a digest for each readable
// item, by its name.
type contents map[string]actor.Hash

// shardCount is the number of shards.
const shardCount = 4096

// readContents reads a store as a server does: the folded journal of every actor, its
// transcript, the owner and events of every run, and the actors that are due. It returns the
// first error, as a server would.
func readContents(d *disk.Disk) (contents, error) {
	all := contents{}
	if err := eachKey(d, func(key string) error {
		id, isActor := store.ActorOfKey([]byte(key))
		if _, ok := all["actor "+id.String()]; ok || !isActor {
			return nil
		}
		saved, err := d.Load(id)
		if err != nil {
			return err
		}
		journal, err := store.Fold(saved)
		if err != nil {
			return fmt.Errorf("actor %s: %w", id, err)
		}
		all["actor "+id.String()] = actor.HashOf(fmt.Appendf(bytes.Clone(saved.Snapshot), " %d", journal.N))
		messages, err := store.ReadTranscript(d, id, &journal.Transcript, 0, journal.Transcript.Len())
		if err != nil {
			return err
		}
		for i := range messages {
			var e actor.Encoder
			e.ChatMessage(&messages[i])
			all[fmt.Sprintf("message %d of %s", i, id)] = actor.HashOf(e.Buf)
		}
		for _, a := range journal.Evicted {
			ended, err := d.Outcome(id, a.N)
			if err != nil {
				return err
			}
			all[fmt.Sprintf("outcome %d of %s", a.N, id)] = actor.HashOf(store.EncodeEntry(store.Entry{Actor: id, Record: ended}))
		}
		for _, e := range saved.Entries {
			all[fmt.Sprintf("entry %d of %s", e.N, id)] = actor.HashOf(store.EncodeEntry(e))
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if err := eachKey(d, func(key string) error {
		parts := strings.Split(key, "/")
		if len(parts) != 4 || parts[2] != "r" {
			return nil
		}
		run, err := actor.ParseCallID(parts[3])
		if err != nil {
			return err
		}
		owner, ok, err := d.Run(parts[1], run)
		if err != nil || !ok {
			return errors.Join(err, errorUnless(ok, "run %s is listed but has no owner", run))
		}
		all["run "+parts[3]] = actor.HashOf(fmt.Appendf(nil, "%+v", owner))
		for from := uint64(0); ; {
			events, err := d.Events(parts[1], run, from, 256)
			if dropped := (store.EventsDropped{}); errors.As(err, &dropped) {
				all["dropped events of run "+parts[3]] = actor.HashOf(fmt.Appendf(nil, "%d", dropped.First))
				from = dropped.First - 1
				continue
			}
			if err != nil {
				return err
			}
			for _, e := range events {
				all[fmt.Sprintf("event %d of run %s", e.Seq, parts[3])] = actor.HashOf(e.Body)
			}
			if len(events) == 0 {
				return nil
			}
			from = events[len(events)-1].Seq
		}
	}); err != nil {
		return nil, err
	}
	every := make([]uint16, shardCount)
	for i := range every {
		every[i] = uint16(i)
	}
	if err := d.Due(every, func(id actor.ID) { all["must wake "+id.String()] = actor.Hash{1} }); err != nil {
		return nil, err
	}
	return all, nil
}

// eachKey calls the function show for each key of a tenant's row, and for those of the
// rows that the next flush of the index will write.
func eachKey(d *disk.Disk, show func(key string) error) error {
	keys := map[string]bool{}
	err := d.Scan([]byte("t/"), []byte("t0"), func(key, _ []byte) bool {
		keys[string(key)] = true
		return true
	})
	for _, row := range d.Index.Rows() {
		if bytes.HasPrefix(row.Key, []byte("t/")) {
			keys[string(row.Key)] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if err != nil {
			break
		}
		err = show(key)
	}
	return err
}

func errorUnless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// diff returns the items that are missing in got as lost. It returns as other the
// items of got that differ or are not expected.
func (want contents) diff(got contents) (lost, other []string) {
	for _, question := range slices.Sorted(maps.Keys(want)) {
		switch answer, ok := got[question]; {
		case !ok:
			lost = append(lost, question)
		case answer != want[question]:
			other = append(other, question)
		}
	}
	for _, question := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[question]; !ok {
			other = append(other, question)
		}
	}
	return lost, other
}
