// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
)

const (
	durableCallers  = 64
	durableSideTime = time.Second
	valueBytes      = 256
)

// studyDurable measures calls whose replies are held back until their entries are
// synced.
func studyDurable(b *bench) (rows []row, err error) {
	for _, v := range []struct {
		name, agent string
		floor       floor
	}{
		{"durable call, 64 callers", "echo", ratioAtLeast(0.7)},
		{"durable call with another one in it, 64 callers", "relay", ratioAtLeast(0.45)},
	} {
		r, err := b.durableRow(v.name, v.agent, v.floor)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func (b *bench) durableRow(name, agent string, f floor) (r row, err error) {
	dir, remove, err := b.tempDir()
	if err != nil {
		return r, err
	}
	defer remove()
	store := filepath.Join(dir, "store")
	n, err := openNode(store, nil, echo("echo", actor.Journaled), relay("relay", "echo", actor.Journaled))
	if err != nil {
		return r, err
	}
	begin := n.disk.End()
	var calls atomic.Int64
	one := func(caller, _ int) error {
		calls.Add(1)
		return n.ask(b.ctx, actor.NewID(agent, fmt.Sprintf("session-%d", caller)), payload)
	}
	r, err = b.againstPebble(name, filepath.Join(dir, "bare"), one, f)
	if err = errors.Join(err, n.close()); err != nil {
		return r, err
	}
	d, err := disk.Open(store, "", disk.Options{ReadOnly: true})
	if err != nil {
		return r, err
	}
	end := d.End()
	r.addNote("%.2f entries and %.3f batches per call, at most one sync per batch",
		float64(end.Pos-begin.Pos)/float64(calls.Load()), float64(end.Batch-begin.Batch)/float64(calls.Load()))
	return r, d.Close()
}

// againstPebble alternates rounds of calls with rounds of synced writes to a bare
// Pebble store.
func (b *bench) againstPebble(name, dir string, one func(caller, i int) error, f floor) (r row, err error) {
	db, err := barePebble(dir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var written atomic.Uint64
	value := bytes.Repeat([]byte("v"), valueBytes)
	write := func(int, int) error {
		return db.Set(binary.BigEndian.AppendUint64(nil, written.Add(1)), value, pebble.Sync)
	}
	rounds, err := b.runRounds(comparison{name: name, sideTime: durableSideTime,
		ours:   func(n int) (time.Duration, error) { return runConcurrent(durableCallers, n, one) },
		theirs: func(n int) (time.Duration, error) { return runConcurrent(durableCallers, n, write) }})
	if err != nil {
		return r, err
	}
	r = throughputRow(name, fmt.Sprintf("a bare Pebble, %d writers, synced, %d B each", durableCallers, valueBytes), rounds, f)
	return r, b.addPercentiles(&r, durableCallers, one, write)
}

// barePebble opens a Pebble store with the same options as host/disk.
func barePebble(dir string) (*pebble.DB, error) {
	return pebble.Open(dir, &pebble.Options{FormatMajorVersion: pebble.FormatNewest, MemTableSize: 32 << 20, CacheSize: readCache,
		L0CompactionThreshold: 8, L0StopWritesThreshold: 24, LBaseMaxBytes: 512 << 20, Logger: silent{}})
}

// silent is a Pebble logger that discards all messages and panics on fatal ones.
type silent struct{}

func (silent) Infof(string, ...any)              {}
func (silent) Errorf(string, ...any)             {}
func (silent) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
