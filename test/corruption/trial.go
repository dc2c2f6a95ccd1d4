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
	theStore  = "store"
	theBackup = "backup"
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

// bench is where damages are tried out: both stores as they were, and what they answer.
type bench struct {
	dir   string // scratch
	whole map[string]folder
	truth map[string]answers
	trust bool // open with Pebble alone: neither anchor, chain nor digests are looked at
}

func newBench(stores, scratch string, trust bool) (*bench, error) {
	b := &bench{dir: scratch, whole: map[string]folder{}, truth: map[string]answers{}, trust: trust}
	for _, name := range []string{theStore, theBackup} {
		whole, err := readFolder(filepath.Join(stores, name))
		if err != nil {
			return nil, err
		}
		b.whole[name] = whole
		if b.truth[name], err = b.served(whole); err != nil {
			return nil, fmt.Errorf("the %s is wrong before anything was done to it: %w", name, err)
		}
	}
	return b, nil
}

func (b *bench) at(name string) string { return filepath.Join(b.dir, name) }

// served opens a folder as a server does, and asks it everything.
func (b *bench) served(f folder) (all answers, err error) {
	dir := b.at("data")
	if err := f.lay(dir); err != nil {
		return nil, err
	}
	if b.trust {
		return trusting(dir)
	}
	d, err := disk.Open(dir, nodeName, disk.Options{FreeFloor: 1})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if all, err = ask(d); err != nil {
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

// trusting reads what Pebble gives, and believes it.
func trusting(dir string) (all answers, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store %s: key damaged: %v", dir, p)
		}
	}()
	db, err := pebble.Open(filepath.Join(dir, "pebble"), &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: silent{}})
	if err != nil {
		return nil, fmt.Errorf("store %s: pebble: %w", dir, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	all = answers{}
	for ok := rows.First(); ok; ok = rows.Next() {
		all[string(rows.Key())] = actor.HashOf(rows.Value())
	}
	return all, errors.Join(rows.Error(), rows.Close())
}

type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "store: pebble: "+format+"\n", args...)
	os.Exit(1)
}

// try does a damage and says what it came to.
func (b *bench) try(d damage) (verdict, error) {
	damaged := d.done(b.whole[d.Store])
	if d.Store == theBackup && !b.trust {
		return b.restored(d, damaged)
	}
	got, err := b.served(damaged)
	v := b.judge(d.Store, got, err)
	if b.trust {
		return v, nil
	}
	if err := damaged.lay(b.at("data")); err != nil {
		return v, err
	}
	x, err := disk.Examine(b.at("data"), disk.Options{}, nil)
	v.Warned = err != nil || x.Wrong > 0
	if v.Outcome == Detected && !v.Warned {
		v.Outcome = Unseen
	}
	return v, nil
}

// restored brings a damaged backup back, which must refuse it or bring all of it back.
func (b *bench) restored(d damage, damaged folder) (verdict, error) {
	if err := errors.Join(damaged.lay(b.at("backup")), os.RemoveAll(b.at("restored"))); err != nil {
		return verdict{}, err
	}
	if _, err := disk.Restore(b.at("backup"), b.at("restored"), disk.Options{FreeFloor: 1}, nil); err != nil {
		v := b.judge(d.Store, nil, err)
		v.Warned = true
		return v, nil
	}
	back, err := readFolder(b.at("restored"))
	if err != nil {
		return verdict{}, err
	}
	got, err := b.served(back)
	return b.judge(d.Store, got, err), nil
}

// named is what a message must name: a file, a key, a batch, an actor or a run.
var named = regexp.MustCompile(`file \d{6}|(?i:anchor)|FORMAT|SECRET|LOCK|CURRENT|MANIFEST|OPTIONS|marker|\d{6}\.(log|sst)|batch \d|[kK]ey|blob|holds no store|actor|run `)

// judge says what it is that an opened store answered, or did not.
func (b *bench) judge(store string, got answers, err error) verdict {
	if err != nil {
		said := err.Error()
		if !named.MatchString(strings.ReplaceAll(said, b.dir, "")) {
			return verdict{Outcome: Vague, Said: said}
		}
		return verdict{Outcome: Detected, Said: said}
	}
	lost, other := b.truth[store].compared(got)
	switch {
	case len(other) > 0:
		return verdict{Outcome: SilentWrong, Said: fmt.Sprintf("%d answers are others, the first: %s", len(other), other[0])}
	case len(lost) > 0:
		return verdict{Outcome: SilentLoss, Said: fmt.Sprintf("%d answers are gone, the first: %s", len(lost), lost[0])}
	}
	return verdict{Outcome: Harmless}
}
