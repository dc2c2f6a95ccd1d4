// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package postgres

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

var began = time.Now()

// readClock returns a time that nobody can set. It stands still while the machine sleeps, so that a
// process that wakes may believe for a moment that its lease is valid; the row of the log refuses its
// writes.
func readClock() actor.Time { return actor.Time(time.Since(began) + time.Hour) }
