// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Page is a part of the records of a run.
type Page struct {
	All  []Numbered
	More bool // there are others behind them
}

// Numbered is a record with its number in the run, from 1.
type Numbered struct {
	Step uint64
	JSON []byte
}

// PageBytesMax is the size in bytes beyond which a page has no further record.
const PageBytesMax = 4 << 20

// Read returns at most limit records of a run that follow one, and are not older than a time. There are none if its
// session has no file.
func Read(dir string, owner actor.ID, run actor.CallID, after uint64, limit int, since time.Time) (Page, error) {
	prefix := prefixOf(dir, owner.Tenant, sessionOf(owner))
	entries, err := os.ReadDir(filepath.Dir(prefix)) // in the order of their names
	if errors.Is(err, fs.ErrNotExist) {
		return Page{}, nil
	}
	if err != nil {
		return Page{}, fmt.Errorf("prompts of run %s: %w", run, err)
	}
	var paths []string
	for _, e := range entries {
		if path := filepath.Join(filepath.Dir(prefix), e.Name()); strings.HasPrefix(path, prefix) && strings.HasSuffix(path, fileType) {
			paths = append(paths, path)
		}
	}
	return readFiles(paths, run, after, limit, since)
}

// readFiles is Read for the files of a session in their order.
func readFiles(paths []string, run actor.CallID, after uint64, limit int, since time.Time) (page Page, err error) {
	size, name := 0, run.String()
	for _, path := range paths {
		c, err := readFile(path)
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			continue
		}
		if err != nil {
			return Page{}, fmt.Errorf("prompts of run %s: %w", run, err)
		}
		c.each(false, func(at int64, f *framed) bool {
			if f.Run != name || f.Step <= after {
				return true
			}
			b, err := c.record(at)
			if err != nil || recordTime(b).Before(since) {
				return true
			}
			if len(page.All) == limit || size > 0 && size+len(b) > PageBytesMax {
				page.More = true
				return false
			}
			size += len(b)
			page.All = append(page.All, Numbered{f.Step, b})
			return true
		})
		if page.More {
			break
		}
	}
	return page, nil
}

// record returns the record of the frame at a place as JSON.
func (c *contents) record(at int64) ([]byte, error) {
	f, _, _, err := c.frame(at, true)
	if err != nil {
		return nil, err
	}
	request, err := c.request(at)
	if err != nil {
		return nil, err
	}
	r := f.Record
	if r.Request = jsontext.Value(bytes.Clone(request)); r.Request.Compact(lenient...) != nil {
		var lost int
		r.Request, lost = quoted(string(request))
		r.Cut += lost
	}
	return marshal(r)
}
