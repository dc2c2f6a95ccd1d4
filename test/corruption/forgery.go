// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// Names of the two further states of the first store. Their content replaces parts of
// it: files and rows that are intact, but belong elsewhere.
const (
	olderName = "older" // the same store at an earlier time
	otherName = "other" // another store of a node of the same name
)

// forgedRows is the approximate number of transplanted rows of each store, and the
// number of swapped ones.
const forgedRows = 120

// notStored are files whose content is not part of the log.
var notStored = []string{"LOCK", "HOLDER", "BALLAST", secretFile, "pebble/LOCK"}

// allForgeries returns all replacements of a file of the store by an older copy of it
// or by that of the other store, and count transplanted and count swapped rows. A file
// that the store itself has not, or has unchanged, is left out.
func allForgeries(stores map[string]storeFiles, rows map[string]map[string][]byte, count int, random *rand.Rand) []damage {
	var all []damage
	store := stores[storeName]
	for _, from := range []string{olderName, otherName} {
		kind := map[string]string{olderName: "rollback", otherName: "transplant"}[from]
		for _, name := range slices.Sorted(maps.Keys(stores[from])) {
			if content, ok := store[name]; ok && !bytes.Equal(content, stores[from][name]) && !slices.Contains(notStored, name) {
				all = append(all, damage{Store: storeName, File: name, Kind: kind})
			}
		}
		all = append(all, damage{Store: storeName, File: "pebble", Kind: kind})
	}
	own := slices.Sorted(maps.Keys(rows[storeName]))
	for _, from := range []string{olderName, otherName} {
		var differing []string
		for _, key := range own {
			if value, ok := rows[from][key]; ok && !bytes.Equal(value, rows[storeName][key]) {
				differing = append(differing, key)
			}
		}
		for i := 0; i < len(differing); i += max(1, len(differing)/count) {
			all = append(all, damage{Store: storeName, File: "pebble", Kind: "transplanted row", Key: differing[i], From: from})
		}
	}
	// rows of one family can be mistaken for each other
	for range count {
		key := own[random.IntN(len(own))]
		for range 50 {
			other := own[random.IntN(len(own))]
			if family(other) == family(key) && !bytes.Equal(rows[storeName][key], rows[storeName][other]) {
				all = append(all, damage{Store: storeName, File: "pebble", Kind: "swapped rows", Key: key, From: other})
				break
			}
		}
	}
	return all
}

// family returns the part of a key that gives its kind.
func family(key string) string {
	parts := strings.Split(key, "/")
	switch {
	case parts[0] != "t" || len(parts) < 3:
		return parts[0]
	case parts[2] == "s" && len(parts) > 4: // of a session: its kind, too
		return "t/s/" + parts[4]
	}
	return "t/" + parts[2]
}

// isForgery reports whether the damage replaces intact content.
func (d damage) isForgery() bool {
	return slices.Contains([]string{"rollback", "transplant", "transplanted row", "swapped rows"}, d.Kind)
}

// forge returns the files of the store with a forgery. Rows are replaced by Pebble, in
// the folder dir.
func (d damage) forge(stores map[string]storeFiles, rows map[string]map[string][]byte, dir string) (storeFiles, error) {
	store := maps.Clone(stores[storeName])
	from := map[string]storeFiles{"rollback": stores[olderName], "transplant": stores[otherName]}[d.Kind]
	switch {
	case from != nil && d.File == "pebble": // the whole folder
		maps.DeleteFunc(store, func(name string, _ []byte) bool { return filepath.Dir(name) == "pebble" })
		for name, content := range from {
			if filepath.Dir(name) == "pebble" {
				store[name] = content
			}
		}
		return store, nil
	case from != nil:
		store[d.File] = from[d.File]
		return store, nil
	}
	put := map[string][]byte{d.Key: rows[d.From][d.Key]}
	if d.Kind == "swapped rows" {
		own := rows[storeName]
		put = map[string][]byte{d.Key: own[d.From], d.From: own[d.Key]}
	}
	if err := store.writeTo(dir); err != nil {
		return nil, err
	}
	db, err := pebble.Open(filepath.Join(dir, "pebble"), plainPebble())
	if err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(put)) {
		if err := db.Set([]byte(key), put[key], pebble.Sync); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	forged, err := readFiles(dir)
	return forged, errors.Join(err, os.RemoveAll(dir))
}

// readRows returns all rows of a store by key, read with Pebble alone.
func readRows(f storeFiles, dir string) (rows map[string][]byte, err error) {
	if err := f.writeTo(dir); err != nil {
		return nil, err
	}
	db, err := pebble.Open(filepath.Join(dir, "pebble"), plainPebble())
	if err != nil {
		return nil, fmt.Errorf("store %s: pebble: %w", dir, err)
	}
	defer func() { err = errors.Join(err, db.Close(), os.RemoveAll(dir)) }()
	all, err := db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	rows = map[string][]byte{}
	for ok := all.First(); ok; ok = all.Next() {
		rows[string(all.Key())] = bytes.Clone(all.Value())
	}
	return rows, errors.Join(all.Error(), all.Close())
}
