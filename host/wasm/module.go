// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/troupe-run/troupe/host/disk"
)

// Bounds of modules.
const (
	ModuleBytesMax = 32 << 20
	ModulesMax     = 256 // kept modules; those that no file has declared for the longest time are removed
)

// magic is the beginning of each module of version 1.
var magic = []byte("\x00asm\x01\x00\x00\x00")

// CheckModule returns an error unless the bytes are a module with this SHA-256, in hexadecimal digits.
// Whether it can be compiled shows when it is.
func CheckModule(module []byte, sum string) error {
	switch got := Sum(module); {
	case !bytes.HasPrefix(module, magic):
		return errors.New("is no module of WebAssembly: it does not begin with the bytes \\0asm and version 1")
	case len(module) > ModuleBytesMax:
		return fmt.Errorf("has %d bytes, at most %d allowed", len(module), ModuleBytesMax)
	case got != sum:
		return fmt.Errorf("has the SHA-256 %s, but the definition names %.64q; if the module is the intended one, write its sum as sha256", got, sum)
	}
	return nil
}

// Sum returns the SHA-256 of a module in hexadecimal digits.
func Sum(module []byte) string {
	sum := sha256.Sum256(module)
	return hex.EncodeToString(sum[:])
}

// modules is a folder with modules, named after their sums.
type modules struct{ dir string }

func (m modules) path(sum string) string { return filepath.Join(m.dir, sum+".wasm") }

// put keeps a module. One that is there already counts as new.
func (m modules) put(sum string, module []byte) error {
	if err := CheckModule(module, sum); err != nil {
		return err
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	if _, err := m.get(sum); err == nil {
		now := time.Now()
		return os.Chtimes(m.path(sum), now, now)
	}
	if err := disk.WriteFile(m.path(sum), module); err != nil {
		return err
	}
	return m.prune()
}

// get returns a module, whose sum it checks.
func (m modules) get(sum string) ([]byte, error) {
	module, err := disk.ReadFile(m.path(sum), ModuleBytesMax)
	if err != nil {
		return nil, err
	}
	return module, CheckModule(module, sum)
}

// has reports whether a module is kept.
func (m modules) has(sum string) bool {
	info, err := os.Stat(m.path(sum))
	return err == nil && info.Mode().IsRegular()
}

// prune removes the oldest modules above ModulesMax.
func (m modules) prune() error {
	all, err := filepath.Glob(filepath.Join(m.dir, "*.wasm"))
	if err != nil || len(all) <= ModulesMax {
		return err
	}
	files := filesOf(all)
	for _, f := range files[:len(files)-min(len(files), ModulesMax)] {
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// aged is a file with its size and its age.
type aged struct {
	path  string
	bytes int64
	at    time.Time
}

// filesOf returns the regular files of some paths, the oldest first.
func filesOf(paths []string) (all []aged) {
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			all = append(all, aged{path, info.Size(), info.ModTime()})
		}
	}
	slices.SortStableFunc(all, func(a, b aged) int { return a.at.Compare(b.at) })
	return all
}
