// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"io/fs"
	"os"
	"path/filepath"
)

// cacheBytesMax is the size of the compiled modules in the cache.
const cacheBytesMax = 512 << 20

// pruneCache removes the oldest compiled modules above a size. wazero names them after the module and
// after its own version, so those of another version are never used, and are the first to go.
func pruneCache(dir string, limit int64) {
	var paths []string
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			paths = append(paths, path)
		}
		return nil
	})
	files, total := filesOf(paths), int64(0)
	for _, f := range files {
		total += f.bytes
	}
	for _, f := range files {
		if total <= limit {
			return
		}
		if os.Remove(f.path) == nil {
			total -= f.bytes
		}
	}
}
