// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

// InUseError reports that a process has the store of a directory open.
type InUseError struct {
	PID int // 0: unknown, for instance that of a process in another container
}

// Error implements error.
func (e InUseError) Error() string {
	if e.PID == 0 {
		return "is in use by another process"
	}
	return fmt.Sprintf("is in use by process %d", e.PID)
}

// fileLock is a locked file, until Close.
type fileLock struct {
	file *os.File
	info os.FileInfo
}

// locks are the locks of this process. The kernel excludes other processes only, and it
// releases the locks of a process on a file when the process closes any descriptor of
// that file. A locked file is therefore not opened again.
var locks struct {
	sync.Mutex
	held []fileLock
}

// LockFolder locks a data folder whose store is elsewhere, and creates the folder. Nothing else keeps a second server from
// its socket, its secrets and its lists. The caller closes the lock; the end of the process releases it too.
func LockFolder(dir string) (io.Closer, error) {
	if err := realFS.MkdirAll(dir, dirMode); err != nil {
		return nil, err
	}
	lock, err := realFS.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("folder %s: %w", dir, err)
	}
	return lock, nil
}

// lockRegular locks a regular file, as Pebble does, but neither creates nor truncates it, and
// follows no link. The lock is of the kind F_WRLCK or F_RDLCK, which flag MUST permit.
func lockRegular(name string, flag int, kind int16) (io.Closer, error) {
	locks.Lock()
	defer locks.Unlock()
	info, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(locks.held, func(l fileLock) bool { return os.SameFile(l.info, info) }) {
		return nil, InUseError{os.Getpid()}
	}
	f, err := openRegular(name, flag)
	if err != nil {
		return nil, err
	}
	// The file may have been replaced since Lstat.
	if info, err = f.Stat(); err == nil {
		err = syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: kind, Whence: io.SeekStart})
	}
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		err = holderOf(f, kind)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	l := fileLock{f, info}
	locks.held = append(locks.held, l)
	return l, nil
}

// holderOf returns the process whose lock prevents one of this kind.
func holderOf(f *os.File, kind int16) InUseError {
	found := syscall.Flock_t{Type: kind, Whence: io.SeekStart}
	if syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &found) != nil || found.Type == syscall.F_UNLCK || found.Pid < 0 {
		return InUseError{}
	}
	return InUseError{int(found.Pid)}
}

// Close implements io.Closer. It releases the lock.
func (l fileLock) Close() error {
	locks.Lock()
	defer locks.Unlock()
	locks.held = slices.DeleteFunc(locks.held, func(other fileLock) bool { return other.file == l.file })
	return l.file.Close()
}
