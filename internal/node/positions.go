// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/host/traces"
	"github.com/troupe-run/troupe/host/webhooks"
)

// positionType ends the names of files with positions.
const positionType = ".json"

// The kinds of readers of logs that have positions.
const webhookKind, traceKind = "webhook", "traces"

// webhookFiles returns the positions of webhooks in a log as the files of a folder.
func webhookFiles(data string, log int) disk.Positions {
	dir := filepath.Join(data, "webhooks")
	if log > 0 {
		dir = filepath.Join(dir, fmt.Sprintf("log-%d", log))
	}
	return disk.NewPositions(dir, positionType)
}

// traceFiles returns the positions of traces in a log as the files of a folder.
func traceFiles(data string, log int) disk.Positions {
	suffix := positionType
	if log > 0 {
		suffix = fmt.Sprintf("-%d%s", log, positionType)
	}
	return disk.NewPositions(data, suffix)
}

// webhookPositions returns the positions of webhooks in a log.
func webhookPositions(c *Config, s storage, log int) logs.Positions {
	return positionsOf(s, webhookKind, log, webhookFiles(c.Data, log))
}

// tracePositions returns the positions of traces in a log.
func tracePositions(c *Config, s storage, log int) logs.Positions {
	return positionsOf(s, traceKind, log, traceFiles(c.Data, log))
}

// positionsOf returns the positions of a kind of readers of a log: they are in the database, if the store is, because
// the process that reads the log next may have another folder.
func positionsOf(s storage, kind string, log int, files disk.Positions) logs.Positions {
	if p, ok := s.(*postgres.Store); ok {
		return takenOver{p.Positions(kind, log), files}
	}
	return files
}

// takenOver are positions in a database. Those that an earlier version has left in files are moved there when they
// are read.
type takenOver struct {
	logs.Positions
	files logs.Positions
}

// Read implements logs.Positions. A position of the database is newer than that of a file.
func (t takenOver) Read(name string) (value []byte, ok bool, err error) {
	if value, ok, err = t.Positions.Read(name); err != nil {
		return nil, false, err
	}
	if !ok {
		if value, ok, err = t.files.Read(name); err != nil || !ok {
			return nil, false, err
		}
		if !json.Valid(value) {
			return nil, false, fmt.Errorf("the position that an earlier version has left is damaged; delete %s to continue at the end of the log", t.files.Place(name))
		}
		if err := t.Positions.Write(name, value); err != nil {
			return nil, false, err
		}
	}
	return value, ok, t.files.Remove(name)
}

// Remove implements logs.Positions.
func (t takenOver) Remove(name string) error {
	return cmp.Or(t.files.Remove(name), t.Positions.Remove(name))
}

// Names implements logs.Positions.
func (t takenOver) Names() ([]string, error) {
	all, err := t.Positions.Names()
	if err != nil {
		return nil, err
	}
	left, err := t.files.Names()
	all = append(all, left...)
	slices.Sort(all)
	return slices.Compact(all), err
}

// Positions returns the batches of the log of a folder that its webhooks and traces have reached.
func Positions(data string) ([]uint64, error) {
	all, err := webhooks.Batches(webhookFiles(data, 0))
	batch, ok, failed := traces.Batch(traceFiles(data, 0))
	if ok {
		all = append(all, batch)
	}
	return all, errors.Join(err, failed)
}

// MovePositions lets the webhooks and traces of a folder, whose store was copied into a database, continue there with
// what they had not delivered. The argument moved has the last batches of the logs at each of Positions.
func MovePositions(data, url string, moved postgres.Moved) error {
	if len(moved) == 0 {
		return nil
	}
	s, err := postgres.Open(url, "", postgres.Options{})
	if err != nil {
		return err
	}
	var hooks, spans []logs.Positions
	for log := range s.Ends() {
		hooks, spans = append(hooks, s.Positions(webhookKind, log)), append(spans, s.Positions(traceKind, log))
	}
	err = webhooks.Move(webhookFiles(data, 0), hooks, func(batch uint64) []uint64 { return moved[batch] })
	batch, ok, failed := traces.Batch(traceFiles(data, 0))
	if ok {
		failed = traces.Move(traceFiles(data, 0), spans, moved[batch])
	}
	return errors.Join(err, failed, s.Close())
}
