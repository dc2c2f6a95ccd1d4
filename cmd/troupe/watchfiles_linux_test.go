// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// obeyModes makes programs that the calling goroutine starts obey the modes of files, also those of root.
func obeyModes(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread() // until the test ends: the thread is not used again
	const dropCapability, dacOverride, dacReadSearch = 24, 1, 2
	for _, capability := range []uintptr{dacOverride, dacReadSearch} {
		if _, _, err := syscall.RawSyscall6(syscall.SYS_PRCTL, dropCapability, capability, 0, 0, 0, 0); err != 0 {
			t.Skipf("root reads every file here: the capability %d stays: %v", capability, err)
		}
	}
}

// A file that became unreadable is named and nothing changes. Once it is readable again, it applies.
func TestWatchReadsFileThatBecameReadable(t *testing.T) {
	obeyModes(t)
	agents := writeFiles(t, ">> a.toml\nname = \"a\"\nprompt = \"first\"\n>> b.toml\nname = \"b\"\nprompt = \"first\"")
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--agents", agents, "--watch", "--log-level", "info")
	logged := func(want string, times int) {
		t.Helper()
		waitUntil(t, "log line "+want, func() bool {
			b, err := os.ReadFile(s.log)
			return err == nil && strings.Count(string(b), want) == times
		})
	}
	a, b := filepath.Join(agents, "a.toml"), filepath.Join(agents, "b.toml")
	before := s.definition("b")
	if err := os.Chmod(a, 0); err != nil {
		t.Fatal(err)
	}
	logged("permission denied", 1)
	for i, prompt := range []string{"7", `"second"`} { // each reading with other errors is logged
		if err := os.WriteFile(b, []byte("name = \"b\"\nprompt = "+prompt+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		logged("permission denied", 2+i)
	}
	if s.definition("b") != before {
		t.Error("another file applies while one is unreadable")
	}
	if err := os.Chmod(a, 0o600); err != nil {
		t.Fatal(err)
	}
	logged("agent b: prompt changed", 1)
	if s.definition("b") == before {
		t.Error("the file that changed in the meantime does not apply")
	}
}
