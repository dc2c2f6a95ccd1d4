// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
)

// Names of the two stores that are damaged.
const (
	storeName  = "store"
	backupName = "backup"
)

// Outcome is the result of one damage.
type Outcome string

// The outcomes. All but the first three MUST NOT occur.
const (
	Detected    Outcome = "detected"     // opening, reading or restoring fails with an error that names the location
	Harmless    Outcome = "harmless"     // every answer is unchanged
	ByDoctor    Outcome = "by doctor"    // a forgery changes an answer, and troupe doctor reports it
	SilentLoss  Outcome = "silent loss"  // an answer is missing without an error
	SilentWrong Outcome = "silent wrong" // an answer has changed without an error
	Vague       Outcome = "vague"        // the error names neither a file nor a key, batch or actor
	Unseen      Outcome = "unseen"       // a server detects the damage, troupe doctor does not
	NoEnd       Outcome = "no end"       // neither an answer nor an error in time
)

// verdict is the outcome of one damage, with the message that reported it.
type verdict struct {
	Outcome Outcome
	Said    string
	Warned  bool // troupe doctor reported the damage, whatever the server did
}

// harness applies damages. It holds both stores in their original state, and their
// expected contents.
type harness struct {
	dir         string // scratch folder
	original    map[string]storeFiles
	expected    map[string]contents
	rows        map[string]map[string][]byte // rows of the stores that forgeries use; nil until the first one
	trustPebble bool                         // read with Pebble alone: anchor, chain and digests are not verified
}

func newHarness(stores, scratch string, trust bool) (*harness, error) {
	h := &harness{dir: scratch, original: map[string]storeFiles{}, expected: map[string]contents{}, trustPebble: trust}
	for _, name := range []string{storeName, backupName} {
		original, err := readFiles(filepath.Join(stores, name))
		if err != nil {
			return nil, err
		}
		h.original[name] = original
		if h.expected[name], err = h.readStore(original); err != nil {
			return nil, fmt.Errorf("the undamaged %s cannot be read: %w", name, err)
		}
	}
	if !trust { // otherwise troupe doctor would report every damage
		if err := h.original[storeName].writeTo(h.path("data")); err != nil {
			return nil, err
		}
		if x, err := disk.Examine(h.path("data"), disk.Options{}, nil); err != nil || x.Wrong > 0 {
			return nil, fmt.Errorf("troupe doctor reports %d findings in the undamaged store, error %w", x.Wrong, err)
		}
	}
	for _, name := range []string{olderName, otherName} {
		if original, err := readFiles(filepath.Join(stores, name)); err == nil {
			h.original[name] = original
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return h, nil
}

// damaged returns the files of a store with a damage.
func (h *harness) damaged(d damage) (storeFiles, error) {
	if !d.isForgery() {
		return d.apply(h.original[d.Store]), nil
	}
	if h.rows == nil {
		h.rows = map[string]map[string][]byte{}
		for _, name := range []string{storeName, olderName, otherName} {
			var err error
			if h.rows[name], err = readRows(h.original[name], h.path("forged")); err != nil {
				return nil, err
			}
		}
	}
	return d.forge(h.original, h.rows, h.path("forged"))
}

func (h *harness) path(name string) string { return filepath.Join(h.dir, name) }

// readStore opens a store as a server does and reads all its contents.
func (h *harness) readStore(f storeFiles) (all contents, err error) {
	dir := h.path("data")
	if err := f.writeTo(dir); err != nil {
		return nil, err
	}
	if h.trustPebble {
		return readWithPebble(dir)
	}
	d, err := disk.Open(dir, nodeName, disk.Options{FreeFloor: 1})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if all, err = readContents(d); err != nil {
		return nil, fmt.Errorf("store %s: %w", dir, err)
	}
	if _, ok := f[secretFile]; ok { // a backup has no secret
		secret, err := d.Secret()
		if err != nil {
			return nil, err
		}
		all["secret"] = actor.HashOf(secret)
	}
	return all, nil
}

// readWithPebble reads all rows with Pebble alone and verifies nothing.
func readWithPebble(dir string) (all contents, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store %s: key damaged: %v", dir, p)
		}
	}()
	db, err := pebble.Open(filepath.Join(dir, "pebble"), plainPebble())
	if err != nil {
		return nil, fmt.Errorf("store %s: pebble: %w", dir, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	all = contents{}
	for ok := rows.First(); ok; ok = rows.Next() {
		all[string(rows.Key())] = actor.HashOf(rows.Value())
	}
	return all, errors.Join(rows.Error(), rows.Close())
}

// plainPebble returns options for reading and changing rows without verification.
// Damage fails a read, but does not end the process.
func plainPebble() *pebble.Options {
	return &pebble.Options{FormatMajorVersion: pebble.FormatNewest, DisableAutomaticCompactions: true, Logger: silentLogger{},
		EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}}}
}

type silentLogger struct{}

func (silentLogger) Infof(string, ...any)  {}
func (silentLogger) Errorf(string, ...any) {}
func (silentLogger) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "store: pebble: "+format+"\n", args...)
	os.Exit(1)
}

// try applies a damage and returns its outcome.
func (h *harness) try(d damage) (verdict, error) {
	damaged, err := h.damaged(d)
	if err != nil {
		return verdict{}, err
	}
	if d.Store == backupName && !h.trustPebble {
		return h.tryRestore(d, damaged)
	}
	got, err := h.readStore(damaged)
	v := h.classify(d.Store, got, err)
	if h.trustPebble {
		return v, nil
	}
	if err := damaged.writeTo(h.path("data")); err != nil {
		return v, err
	}
	x, err := disk.Examine(h.path("data"), disk.Options{}, nil)
	v.Warned = err != nil || x.Wrong > 0
	switch {
	case v.Outcome == Detected && !v.Warned:
		v.Outcome = Unseen
	case d.isForgery() && v.Warned && (v.Outcome == SilentLoss || v.Outcome == SilentWrong):
		v.Outcome = ByDoctor
	}
	return v, nil
}

// tryRestore restores a damaged backup. The restore must fail, or restore
// everything.
func (h *harness) tryRestore(d damage, damaged storeFiles) (verdict, error) {
	if err := errors.Join(damaged.writeTo(h.path("backup")), os.RemoveAll(h.path("restored"))); err != nil {
		return verdict{}, err
	}
	if _, err := disk.Restore(h.path("backup"), h.path("restored"), disk.Options{FreeFloor: 1}, nil); err != nil {
		v := h.classify(d.Store, nil, err)
		v.Warned = true
		return v, nil
	}
	back, err := readFiles(h.path("restored"))
	if err != nil {
		return verdict{}, err
	}
	got, err := h.readStore(back)
	return h.classify(d.Store, got, err), nil
}

// location matches a part of the store that an error must name: a file, key, batch,
// actor or run.
var location = regexp.MustCompile(`file \d{6}|(?i:anchor)|FORMAT|SECRET|LOCK|CURRENT|MANIFEST|OPTIONS|marker|\d{6}\.(log|sst)|batch \d|[kK]ey|blob|holds no store|actor|run `)

// classify returns the outcome of reading a damaged store.
func (h *harness) classify(store string, got contents, err error) verdict {
	if err != nil {
		message := err.Error()
		if !location.MatchString(strings.ReplaceAll(message, h.dir, "")) {
			return verdict{Outcome: Vague, Said: message}
		}
		return verdict{Outcome: Detected, Said: message}
	}
	lost, other := h.expected[store].diff(got)
	switch {
	case len(other) > 0:
		return verdict{Outcome: SilentWrong, Said: fmt.Sprintf("%d items differ, first: %s", len(other), other[0])}
	case len(lost) > 0:
		return verdict{Outcome: SilentLoss, Said: fmt.Sprintf("%d items are missing, first: %s", len(lost), lost[0])}
	}
	return verdict{Outcome: Harmless}
}
