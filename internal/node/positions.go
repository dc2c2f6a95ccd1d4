// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"

	"github.com/troupe-run/troupe/host/traces"
	"github.com/troupe-run/troupe/host/webhooks"
)

// Positions returns the batches of the log of a folder that its webhooks and traces have reached.
func Positions(data string) ([]uint64, error) {
	all, err := webhooks.Batches(webhooksDir(data, 0))
	batch, ok, failed := traces.Batch(tracesPath(data, 0))
	if ok {
		all = append(all, batch)
	}
	return all, errors.Join(err, failed)
}

// MovePositions lets the webhooks and traces of a folder, whose store was copied into one with these logs, continue there
// with what they had not delivered. The argument moved has the last batches of the logs at each of Positions.
func MovePositions(data string, logs int, moved map[uint64][]uint64) error {
	var dirs, paths []string
	for n := range logs {
		dirs, paths = append(dirs, webhooksDir(data, n)), append(paths, tracesPath(data, n))
	}
	err := webhooks.Move(dirs[0], dirs, func(batch uint64) []uint64 { return moved[batch] })
	batch, ok, failed := traces.Batch(paths[0])
	if ok {
		failed = traces.Move(paths[0], paths, moved[batch])
	}
	return errors.Join(err, failed)
}
