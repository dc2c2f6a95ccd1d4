// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// closeInherited closes the descriptors that this process got beside its standard streams. Those of the Go
// runtime stay.
func closeInherited() {
	const folder = "/proc/self/fd/"
	open, err := os.ReadDir(folder)
	if err != nil {
		return // the server lets its processes inherit none
	}
	for _, entry := range open {
		fd, err := strconv.Atoi(entry.Name())
		target, linkErr := os.Readlink(folder + entry.Name())
		if err == nil && linkErr == nil && fd > 2 && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/sys/fs/cgroup/") {
			_ = syscall.Close(fd)
		}
	}
}

// noNewPrivileges is PR_SET_NO_NEW_PRIVS of prctl(2).
const noNewPrivileges = 38

// limitMemory bounds the writable memory of this process. The kernel ends a process that needs more.
func limitMemory() error {
	if err := setLimit(syscall.RLIMIT_DATA, processBytesMax); err != nil {
		return err
	}
	return setLimit(syscall.RLIMIT_CORE, 0)
}

// limitFiles lets this process open no further files and write to none. Some of its files may be polled: poll(2) refuses more
// of them than the limit of open ones, which may be that of standard input.
func limitFiles(polled uint64) error {
	if _, _, failed := syscall.RawSyscall6(syscall.SYS_PRCTL, noNewPrivileges, 1, 0, 0, 0, 0); failed != 0 {
		return failed
	}
	if err := setLimit(syscall.RLIMIT_FSIZE, 0); err != nil {
		return err
	}
	return setLimit(syscall.RLIMIT_NOFILE, polled)
}

func setLimit(resource int, value uint64) error {
	return syscall.Setrlimit(resource, &syscall.Rlimit{Cur: value, Max: value})
}
