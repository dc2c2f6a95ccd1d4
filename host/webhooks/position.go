// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
