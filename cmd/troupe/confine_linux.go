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

// confine protects the secrets of the server. Other processes of its user cannot read its memory,
// which has the keys of models. A crash writes no image of the memory. Processes that the server
// starts do not get the descriptors that it has inherited.
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
