// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// allocated returns the bytes that a file takes on the disk, 0 if it is absent.
func allocated(t *testing.T, file string) uint64 {
	var stat syscall.Stat_t
	if err := syscall.Stat(file, &stat); err != nil {
		if os.IsNotExist(err) {
			return 0
		}
		t.Fatal(err)
	}
	return uint64(stat.Blocks) * 512
}

// A store on a disk that another program filled opens by releasing its ballast. Its
// open work can complete, and the ballast is created again once there is space.
func TestFullDiskReleasesBallast(t *testing.T) {
	const ballast = 96 << 20
	dir := filepath.Join(t.TempDir(), "data")
	file := filepath.Join(dir, ballastFile)
	left := uint64(1 << 30) // free space that the disk would have without the ballast
	var log bytes.Buffer
	options := Options{Ballast: ballast, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		freeSpace: func(string) uint64 { return left - allocated(t, file) }}
	d := mustOpen(t, dir, options)
	l, s := NewLog(d), newEntryGenerator("alice")
	commit(l, s.next())
	mustClose(t, l, d)
	if n := allocated(t, file); n < ballast || n > ballast+1<<20 {
		t.Fatalf("the ballast takes %d bytes, want %d", n, ballast)
	}

	left = ballast // no byte is free
	mustClose(t, mustOpen(t, dir, Options{ReadOnly: true, freeSpace: options.freeSpace}))
	if allocated(t, file) == 0 {
		t.Error("a read-only open released the ballast")
	}
	d = mustOpen(t, dir, options)
	if n := allocated(t, file); n != 0 {
		t.Errorf("the ballast still takes %d bytes", n)
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "ballast was released, free some space") {
		t.Errorf("log: %s", text)
	}
	l = NewLog(d)
	if err := l.Full(); err == nil {
		t.Error("new work is accepted")
	}
	commit(l, s.next()) // open work completes
	mustClose(t, l, d)

	left = 50 << 20 // the released space is used up
	if _, err := Open(dir, "n1", options); err == nil || !strings.Contains(err.Error(), "storage full: 50 MiB free") {
		t.Errorf("got %v", err)
	}
	left = FreeFloor + ballast - 1
	mustClose(t, mustOpen(t, dir, options))
	if n := allocated(t, file); n != 0 {
		t.Errorf("a ballast of %d bytes takes the space of new work", n)
	}
	left = FreeFloor + ballast
	d = mustOpen(t, dir, options)
	if n := allocated(t, file); n == 0 {
		t.Error("the ballast was not created again")
	}
	if n, err := checkEntries(d, s.id); n != 2 || err != nil {
		t.Errorf("got %d entries, error %v", n, err)
	}
	mustClose(t, d)
	options.freeSpace = func(string) uint64 { return 50 << 20 } // the ballast does not suffice
	if _, err := Open(dir, "n1", options); err == nil || !strings.Contains(err.Error(), "storage full: 50 MiB free") {
		t.Errorf("the ballast does not suffice: got %v", err)
	}
}
