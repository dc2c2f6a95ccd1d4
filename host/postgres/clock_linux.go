// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"golang.org/x/sys/unix"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// readClock returns the time since the boot, with that in which the machine slept: the lease ran on then. Setting the
// clock does not change it.
func readClock() actor.Time {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	invariant.Check(err == nil, "postgres: clock of the boot: %v", err)
	return actor.Time(t.Nano())
}
