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

// The two stores that are damaged.
const (
	storeName  = "store"
	backupName = "backup"
)

// An Outcome is what a damage came to.
type Outcome string

// The outcomes. The last four must never be.
const (
	Detected    Outcome = "detected"     // whoever opens, reads or restores it is told what is wrong
	Harmless    Outcome = "harmless"     // nothing needs what was damaged
	SilentLoss  Outcome = "silent loss"  // something is not there any more, and nobody says so
	SilentWrong Outcome = "silent wrong" // something is answered otherwise, and nobody says so
	Vague       Outcome = "vague"        // the message names neither a file nor a key, batch or actor
	Unseen      Outcome = "unseen"       // a server is told, and troupe doctor finds nothing
	NoEnd       Outcome = "no end"       // neither an answer nor an error
)

// A verdict is one damage, what it came to, and what was said.
type verdict struct {
	Outcome Outcome
	Said    string
	Warned  bool // troupe doctor found something, whatever a server did
}

// harness is where damages are tried out: both stores as they were, and what they answer.
type harness struct {
	dir         string // scratch
	original    map[string]storeFiles
	expected    map[string]contents
	trustPebble bool // open with Pebble alone: neither anchor, chain nor digests are looked at
}

func newHarness(stores, scratch string, trust bool) (*harness, error) {
	b := &harness{dir: scratch, original: map[string]storeFiles{}, expected: map[string]contents{}, trustPebble: trust}
	for _, name := range []string{storeName, backupName} {
		original, err := readFiles(filepath.Join(stores, name))
		if err != nil {
			return nil, err
		}
		b.original[name] = original
		if b.expected[name], err = b.readStore(original); err != nil {
			return nil, fmt.Errorf("the %s is wrong before anything was done to it: %w", name, err)
		}
	}
	return b, nil
}

func (b *harness) path(name string) string { return filepath.Join(b.dir, name) }

// readStore opens a folder as a server does, and asks it everything.
func (b *harness) readStore(f storeFiles) (all contents, err error) {
	dir := b.path("data")
	if err := f.writeTo(dir); err != nil {
		return nil, err
	}
	if b.trustPebble {
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
	if _, ok := f[secretFile]; ok { // a backup has none
		secret, err := d.Secret()
		if err != nil {
			return nil, err
		}
		all["secret"] = actor.HashOf(secret)
	}
	return all, nil
}

// readWithPebble reads what Pebble gives, and believes it.
func readWithPebble(dir string) (all contents, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store %s: key damaged: %v", dir, p)
		}
	}()
	db, err := pebble.Open(filepath.Join(dir, "pebble"), &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: silentLogger{}})
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

type silentLogger struct{}

func (silentLogger) Infof(string, ...any)  {}
func (silentLogger) Errorf(string, ...any) {}
func (silentLogger) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "store: pebble: "+format+"\n", args...)
	os.Exit(1)
}

// try does a damage and says what it came to.
func (b *harness) try(d damage) (verdict, error) {
	damaged := d.apply(b.original[d.Store])
	if d.Store == backupName && !b.trustPebble {
		return b.tryRestore(d, damaged)
	}
	got, err := b.readStore(damaged)
	v := b.classify(d.Store, got, err)
	if b.trustPebble {
		return v, nil
	}
	if err := damaged.writeTo(b.path("data")); err != nil {
		return v, err
	}
	x, err := disk.Examine(b.path("data"), disk.Options{}, nil)
	v.Warned = err != nil || x.Wrong > 0
	if v.Outcome == Detected && !v.Warned {
		v.Outcome = Unseen
	}
	return v, nil
}

// tryRestore brings a damaged backup back, which must refuse it or bring all of it back.
func (b *harness) tryRestore(d damage, damaged storeFiles) (verdict, error) {
	if err := errors.Join(damaged.writeTo(b.path("backup")), os.RemoveAll(b.path("restored"))); err != nil {
		return verdict{}, err
	}
	if _, err := disk.Restore(b.path("backup"), b.path("restored"), disk.Options{FreeFloor: 1}, nil); err != nil {
		v := b.classify(d.Store, nil, err)
		v.Warned = true
		return v, nil
	}
	back, err := readFiles(b.path("restored"))
	if err != nil {
		return verdict{}, err
	}
	got, err := b.readStore(back)
	return b.classify(d.Store, got, err), nil
}

// location is what a message must name: a file, a key, a batch, an actor or a run.
var location = regexp.MustCompile(`file \d{6}|(?i:anchor)|FORMAT|SECRET|LOCK|CURRENT|MANIFEST|OPTIONS|marker|\d{6}\.(log|sst)|batch \d|[kK]ey|blob|holds no store|actor|run `)

// classify says what it is that an opened store answered, or did not.
func (b *harness) classify(store string, got contents, err error) verdict {
	if err != nil {
		message := err.Error()
		if !location.MatchString(strings.ReplaceAll(message, b.dir, "")) {
			return verdict{Outcome: Vague, Said: message}
		}
		return verdict{Outcome: Detected, Said: message}
	}
	lost, other := b.expected[store].diff(got)
	switch {
	case len(other) > 0:
		return verdict{Outcome: SilentWrong, Said: fmt.Sprintf("%d answers are others, the first: %s", len(other), other[0])}
	case len(lost) > 0:
		return verdict{Outcome: SilentLoss, Said: fmt.Sprintf("%d answers are gone, the first: %s", len(lost), lost[0])}
	}
	return verdict{Outcome: Harmless}
}
