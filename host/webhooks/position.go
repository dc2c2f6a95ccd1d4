// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/troupe-run/troupe/host/disk"
)

// positionBytesMax is the maximum size of the file of a webhook: Window deliveries, and one for each MCP server.
const positionBytesMax = 4 << 20

// position is how far a webhook has come, the content of its file.
type position struct {
	// Batch is the last batch of the log up to which all notices are delivered.
	Batch uint64 `json:"batch"`
	// Delivered are the batches of deliveries beyond Batch, by id.
	Delivered map[string]uint64 `json:"delivered,omitempty"`
	// Offers are the hashes of the last lists of tools that MCP servers had. Owed are the changes of these lists
	// that were not delivered yet.
	Offers map[string]string `json:"offers,omitempty"`
	Owed   []owed            `json:"owed,omitempty"`
}

// Batches returns the batches of a log that the files in a folder name.
func Batches(dir string) (all []uint64, err error) {
	err = eachPosition(dir, func(_ string, p *position) error {
		all = append(all, p.Batch)
		for _, batch := range p.Delivered {
			all = append(all, batch)
		}
		return nil
	})
	return all, err
}

// Move writes the files of a folder for the logs of a copy of its store, each into one of the folders dirs, of which the
// first may be the folder itself. The callback moved returns the last batches of these logs at a batch.
func Move(dir string, dirs []string, moved func(batch uint64) []uint64) error {
	return eachPosition(dir, func(name string, p *position) error {
		for log, to := range slices.Backward(dirs) {
			of := position{Batch: moved(p.Batch)[log], Delivered: map[string]uint64{}}
			for id, batch := range p.Delivered { // each is in one of the logs
				of.Delivered[id] = moved(batch)[log]
			}
			if log == 0 {
				of.Offers, of.Owed = p.Offers, p.Owed
			}
			of.prune()
			err := os.MkdirAll(to, 0o700)
			if err == nil {
				err = of.write(filepath.Join(to, name))
			}
			if err != nil {
				return fmt.Errorf("position of a webhook: %w", err)
			}
		}
		return nil
	})
}

// eachPosition passes the names and the contents of the files in a folder to a function.
func eachPosition(dir string, each func(name string, p *position) error) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		if err != nil {
			break
		}
		if f.IsDir() || filepath.Ext(f.Name()) != fileType {
			continue
		}
		var p position
		if p, _, err = readPosition(filepath.Join(dir, f.Name())); err == nil {
			err = each(f.Name(), &p)
		}
	}
	return err
}

// owed is a changed list of an MCP server that is to be delivered. The server may have no such list by then.
type owed struct {
	Server string `json:"server"`
	Hash   string `json:"hash"`
	Seen   int64  `json:"seen"` // ns since 1970
}

// prune removes what Batch covers.
func (p *position) prune() {
	for id, batch := range p.Delivered {
		if batch <= p.Batch {
			delete(p.Delivered, id)
		}
	}
}

// readPosition returns the content of a file; false if there is none.
func readPosition(path string) (p position, ok bool, err error) {
	b, err := disk.ReadFile(path, positionBytesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return p, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return p, false, fmt.Errorf("position of a webhook: %s: %w; delete the file to continue at the end of the log, without the notices before", path, err)
	}
	return p, true, nil
}

// write replaces the content of a file. After a crash the file has the former or this content.
func (p *position) write(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(mustJSON(p))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
