// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/internal/servertest"
)

// A server keeps its memory from processes of its user, and what it has inherited from those that it starts.
func TestServerIsConfined(t *testing.T) {
	folder := t.TempDir()
	inherited, err := os.Create(filepath.Join(folder, "inherited"))
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	c := programCmd("serve", "--data", filepath.Join(folder, "data"), "--listen", "127.0.0.1:0")
	c.ExtraFiles = []*os.File{inherited}
	s, err := servertest.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		s.Signal(syscall.SIGKILL)
		_ = s.Wait()
	}()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/3", c.Process.Pid))
	switch found := regexp.MustCompile(`flags:\s+([0-7]+)`).FindSubmatch(text); {
	case os.IsPermission(err) && os.Geteuid() != 0: // the descriptors are as hidden as the memory
	case found == nil:
		t.Errorf("%v, %q", err, text)
	default:
		if flags, err := strconv.ParseInt(string(found[1]), 8, 64); err != nil || flags&syscall.O_CLOEXEC == 0 {
			t.Errorf("an inherited descriptor is passed on: %s, %v", found[1], err)
		}
	}

	const isDumpable = 3 // PR_GET_DUMPABLE
	before, _, failed := syscall.RawSyscall(syscall.SYS_PRCTL, isDumpable, 0, 0)
	if failed != 0 || before == 0 {
		t.Skip("the test itself is confined: ", before, failed)
	}
	defer syscall.RawSyscall(syscall.SYS_PRCTL, dumpable, before, 0)
	if err := confine(); err != nil {
		t.Fatal(err)
	}
	if now, _, _ := syscall.RawSyscall(syscall.SYS_PRCTL, isDumpable, 0, 0); now != 0 {
		t.Errorf("other processes read the memory: %d", now)
	}
}
