// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// dumpable is PR_SET_DUMPABLE of prctl(2).
const dumpable = 4

// confine keeps what the server holds from other processes: those of its user cannot read its memory,
// which has the keys of models, a crash writes no image of it, and the processes that it starts do not get
// descriptors that it has inherited.
func confine() error {
	if _, _, failed := syscall.RawSyscall(syscall.SYS_PRCTL, dumpable, 0, 0); failed != 0 {
		return fmt.Errorf("keep the memory from other processes: %w", failed)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil // without /proc nothing lists them
	}
	for _, entry := range open {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}
