// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
)

// pins are the files with the lists of servers, in a folder of their own. The node writes the first
// accepted list and all offered ones, and Accept replaces the accepted one. Each replacement is
// atomic.
type pins struct{ dir string }

func (p pins) accepted(server string) string { return filepath.Join(p.dir, server+".json") }
func (p pins) offered(server string) string  { return filepath.Join(p.dir, server+".offered.json") }

// readPin returns the list in a file; nil if there is none.
func readPin(path string) (*Listing, error) {
	const limit = 2 * listingBytesMax
	b, err := disk.ReadFile(path, limit+1)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(b) > limit {
		err = fmt.Errorf("file has more than %d bytes", limit)
	}
	var l *Listing
	if err == nil {
		l, err = readListing(b)
	}
	if err != nil {
		return nil, fmt.Errorf("list of an MCP server: %s: %w; delete the file to accept the next list of the server", path, err)
	}
	return l, nil
}

// write replaces the list in a file.
func (p pins) write(path string, l *Listing) error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(p.dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(l.Encode())
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// ErrNothingOffered means that a server has no list that waits for its acceptance.
var ErrNothingOffered = errors.New("no changed list of tools waits for acceptance")

// Offer is a list that waits for its acceptance.
type Offer struct {
	Accepted, Offered *Listing // Accepted is nil if the server has none
	pins              pins
	server            string
}

// ReadOffer returns the list that a server offers, from the folder of the lists.
func ReadOffer(dir, server string) (*Offer, error) {
	o := &Offer{pins: pins{dir}, server: server}
	var err error
	if o.Offered, err = readPin(o.pins.offered(server)); err == nil && o.Offered == nil {
		err = ErrNothingOffered
	}
	if err == nil {
		o.Accepted, err = readPin(o.pins.accepted(server))
	}
	return o, err
}

// PinnedServers returns the names of the servers that have a list of tools in a folder, accepted or
// offered, in order.
func PinnedServers(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		name = strings.TrimSuffix(name, ".offered")
		if ok && CheckName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Hash returns the identity of the offered list.
func (o *Offer) Hash() actor.Hash { return o.Offered.Hash() }

// Accept makes the offered list the accepted one. A running node uses it a few seconds later.
func (o *Offer) Accept() error {
	if err := o.pins.write(o.pins.accepted(o.server), o.Offered); err != nil {
		return err
	}
	return os.Remove(o.pins.offered(o.server))
}
