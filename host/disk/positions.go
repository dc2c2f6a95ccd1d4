// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/host/logs"
)

// positionBytesMax is the maximum size of the file of a position.
const positionBytesMax = 4 << 20

// Positions keep positions in files of a folder, which they create when needed. The name of a file is that of the
// reader and a suffix.
type Positions struct{ dir, suffix string }

var _ logs.Positions = Positions{}

// NewPositions returns the positions in a folder whose files have a suffix.
func NewPositions(dir, suffix string) Positions { return Positions{dir, suffix} }

func (p Positions) file(name string) string { return filepath.Join(p.dir, name+p.suffix) }

// Place implements logs.Positions.
func (p Positions) Place(name string) string { return "the file " + p.file(name) }

// Read implements logs.Positions.
func (p Positions) Read(name string) (value []byte, ok bool, err error) {
	value, err = ReadFile(p.file(name), positionBytesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return value, err == nil, err
}

// Write implements logs.Positions.
func (p Positions) Write(name string, value []byte) error {
	if len(value) > positionBytesMax {
		return fmt.Errorf("position of %s: has %d bytes, want at most %d", name, len(value), positionBytesMax)
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	return WriteFile(p.file(name), value)
}

// Remove implements logs.Positions.
func (p Positions) Remove(name string) error {
	for _, file := range []string{p.file(name) + tempSuffix, p.file(name)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Names implements logs.Positions.
func (p Positions) Names() (all []string, err error) {
	files, err := os.ReadDir(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, f := range files {
		file := strings.TrimSuffix(f.Name(), tempSuffix) // one that a crash has left counts too
		if name, ok := strings.CutSuffix(file, p.suffix); ok && !f.IsDir() {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), err
}
