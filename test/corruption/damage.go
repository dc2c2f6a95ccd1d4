// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// blockSize is the unit in which a disk loses or misplaces data, in bytes.
const blockSize = 512

// smallFileStep is the distance of damages in a file of at most smallFileMax bytes.
// In so small a file every few bytes have their own meaning.
const (
	smallFileMax  = 4096
	smallFileStep = 8
)

// secretFile is the only file of a store that its backup does not contain.
const secretFile = "SECRET"

// storeFiles is the content of a store on disk by file name.
type storeFiles map[string][]byte

func readFiles(dir string) (storeFiles, error) {
	all := storeFiles{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err == nil {
			all[filepath.ToSlash(name)], err = os.ReadFile(path)
		}
		return err
	})
	return all, err
}

// writeTo replaces dir with these files.
func (f storeFiles) writeTo(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "pebble"), 0o700); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), f[name], 0o600); err != nil {
			return err
		}
	}
	return nil
}

var numberedFile = regexp.MustCompile(`^(\d+\.|[A-Z]+-\d+)`)

// fileClass returns the kind of a file, as the table names it.
func fileClass(name string) string {
	base := filepath.Base(name)
	switch {
	case strings.HasSuffix(base, ".log"):
		return "log written ahead"
	case strings.HasSuffix(base, ".sst"):
		return "sorted table"
	case strings.HasPrefix(base, "marker."):
		return "marker"
	case numberedFile.MatchString(base): // MANIFEST-000001, OPTIONS-000003
		base, _, _ = strings.Cut(base, "-")
	}
	return base
}

// damage is one fault in one file of a store.
type damage struct {
	Store string // "store" or "backup"
	File  string
	Kind  string // flip, cut, swap, zero or remove; of a forgery: rollback, transplant, transplanted row or swapped rows
	At    int    // offset of the byte or the block
	Bit   int    // bit of a flip; for a swap, the number of the other block
	Key   string // row of a forgery
	From  string // store of a transplanted row; for swapped rows, the key of the other row
}

func (d damage) String() string {
	switch d.Kind {
	case "flip":
		return fmt.Sprintf("%s/%s: bit %d of byte %d flipped", d.Store, d.File, d.Bit, d.At)
	case "swap":
		return fmt.Sprintf("%s/%s: blocks %d and %d swapped", d.Store, d.File, d.At/blockSize, d.Bit)
	case "cut":
		return fmt.Sprintf("%s/%s: cut at %d", d.Store, d.File, d.At)
	case "zero":
		return fmt.Sprintf("%s/%s: block %d is zero", d.Store, d.File, d.At/blockSize)
	case "rollback", "transplant":
		return fmt.Sprintf("%s/%s: %s", d.Store, d.File, d.Kind)
	case "transplanted row", "swapped rows":
		return fmt.Sprintf("%s: %s %s, %s", d.Store, d.Kind, d.Key, d.From)
	}
	return fmt.Sprintf("%s/%s: removed", d.Store, d.File)
}

// apply returns a copy of the files with the damage.
func (d damage) apply(original storeFiles) storeFiles {
	out := maps.Clone(original)
	content := original[d.File]
	switch d.Kind {
	case "remove":
		delete(out, d.File)
	case "cut":
		out[d.File] = content[:d.At]
	case "flip":
		b := bytes.Clone(content)
		b[d.At] ^= 1 << d.Bit
		out[d.File] = b
	case "zero":
		b := bytes.Clone(content)
		clear(b[d.At:min(d.At+blockSize, len(b))])
		out[d.File] = b
	case "swap":
		b := bytes.Clone(content)
		copy(b[d.At:], content[d.Bit*blockSize:(d.Bit+1)*blockSize])
		copy(b[d.Bit*blockSize:], content[d.At:d.At+blockSize])
		out[d.File] = b
	}
	return out
}

// allDamages returns all damages of a store. For each file these are: a flipped bit
// in every block, a cut at every block, each block zeroed, each block swapped with
// another, and the file removed. In a small file, bits are flipped and cuts are made
// every smallFileStep bytes. Damages without effect are omitted.
func allDamages(store string, original storeFiles, random *rand.Rand) []damage {
	var all []damage
	for _, name := range slices.Sorted(maps.Keys(original)) {
		content := original[name]
		// A node without its secret creates a new one, as on a restored backup.
		// Tokens issued before are then refused with a message that names the
		// reason.
		if name != secretFile {
			all = append(all, damage{Store: store, File: name, Kind: "remove"})
		}
		step := blockSize
		if len(content) <= smallFileMax {
			step = smallFileStep
		}
		for at := 0; at < len(content); at += step {
			all = append(all, damage{Store: store, File: name, Kind: "cut", At: at},
				damage{Store: store, File: name, Kind: "flip", At: at + random.IntN(min(step, len(content)-at)), Bit: random.IntN(8)})
		}
		blocks := len(content) / blockSize
		for i := range blocks {
			one := content[i*blockSize : (i+1)*blockSize]
			if other := random.IntN(blocks); !bytes.Equal(one, content[other*blockSize:(other+1)*blockSize]) {
				all = append(all, damage{Store: store, File: name, Kind: "swap", At: i * blockSize, Bit: other})
			}
			if !bytes.Equal(one, make([]byte, blockSize)) {
				all = append(all, damage{Store: store, File: name, Kind: "zero", At: i * blockSize})
			}
		}
	}
	return all
}
