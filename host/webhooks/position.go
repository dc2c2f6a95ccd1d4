// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"encoding/json"
	"fmt"

	"github.com/troupe-run/troupe/host/logs"
)

// position is how far a webhook has come in a log. It is bounded by Window, and has an entry for each MCP server.
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

// Batches returns the batches of a log that its positions name.
func Batches(of logs.Positions) (all []uint64, err error) {
	err = eachPosition(of, func(_ string, p *position) error {
		all = append(all, p.Batch)
		for _, batch := range p.Delivered {
			all = append(all, batch)
		}
		return nil
	})
	return all, err
}

// Move writes the positions of a log for the logs of a copy of its store, and removes them. The callback moved returns
// the last batches of these logs at a batch.
func Move(from logs.Positions, to []logs.Positions, moved func(batch uint64) []uint64) error {
	return eachPosition(from, func(name string, p *position) error {
		for log, positions := range to {
			of := position{Batch: moved(p.Batch)[log], Delivered: map[string]uint64{}}
			for id, batch := range p.Delivered { // each is in one of the logs
				of.Delivered[id] = moved(batch)[log]
			}
			if log == 0 {
				of.Offers, of.Owed = p.Offers, p.Owed
			}
			of.prune()
			if err := positions.Write(name, mustJSON(&of)); err != nil {
				return fmt.Errorf("position of webhook %s: %w", name, err)
			}
		}
		return from.Remove(name)
	})
}

// eachPosition passes the names and the positions of webhooks to a function.
func eachPosition(of logs.Positions, each func(name string, p *position) error) error {
	names, err := of.Names()
	for _, name := range names {
		if err != nil {
			break
		}
		p, ok, failed := readPosition(of, name)
		if err = failed; err == nil && ok {
			err = each(name, &p)
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

// readPosition returns the position of a webhook; false if there is none.
func readPosition(from logs.Positions, name string) (p position, ok bool, err error) {
	b, ok, err := from.Read(name)
	if err == nil && ok {
		if err = json.Unmarshal(b, &p); err != nil {
			err = fmt.Errorf("%w; delete %s to continue at the end of the log, without the notices before", err, from.Place(name))
		}
	}
	if err != nil {
		return p, false, fmt.Errorf("position of webhook %s: %w", name, err)
	}
	return p, ok, nil
}
