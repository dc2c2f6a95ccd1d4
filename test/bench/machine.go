// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/internal/mdsection"
)

// machine describes the hardware and software of a measurement. It MUST NOT contain
// a host name or a path, because it is published.
type machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	MemoryGiB int    `json:"memory_gib"`
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
	Commit    string `json:"commit"`
	Date      string `json:"date"`
}

func thisMachine() machine {
	m := machine{CPU: "an unknown processor", Cores: runtime.GOMAXPROCS(0), Kernel: "unknown", Go: runtime.Version(),
		Commit: mdsection.Commit(), Date: time.Now().UTC().Format(time.DateOnly)}
	if _, text, ok := strings.Cut(lineWithPrefix("/proc/cpuinfo", "model name"), ":"); ok {
		m.CPU = strings.TrimSpace(text)
	}
	var kib int
	if _, err := fmt.Sscanf(lineWithPrefix("/proc/meminfo", "MemTotal"), "MemTotal: %d", &kib); err == nil {
		m.MemoryGiB = (kib + 1<<19) >> 20
	}
	var name syscall.Utsname
	if syscall.Uname(&name) == nil {
		var text []byte
		for _, c := range name.Release {
			if c == 0 {
				break
			}
			text = append(text, byte(c))
		}
		m.Kernel = string(text)
	}
	return m
}

// lineWithPrefix returns the first line of a file with the prefix, or "".
func lineWithPrefix(file, begin string) string {
	b, _ := os.ReadFile(file)
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, begin) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
