// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package postgres

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

var began = time.Now()

// readClock returns the time since the start of the process. Setting the clock does not change it. It stops while the
// machine sleeps, so a process that wakes may take its lease for valid for a moment; the row of the log refuses its
// writes.
func readClock() actor.Time { return actor.Time(time.Since(began) + time.Hour) }
