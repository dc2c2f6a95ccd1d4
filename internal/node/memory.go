// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"io/fs"
	"math"
	"path"
	goruntime "runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/troupe-run/troupe/dispatcher"
)

// actorMemoryPart divides the memory: the content of actors may take one such part. During a flood
// of changes, each of which is copied several times, content and garbage together take about a
// quarter of the memory.
const actorMemoryPart = 16

// boundMemory lowers the bound of actors in memory to the share of one cell. Zero cells means one
// per processor.
func boundMemory(l dispatcher.Limits, cells int, system fs.FS) dispatcher.Limits {
	memory := min(memoryOf(system), debug.SetMemoryLimit(-1))
	if memory == math.MaxInt64 {
		return l
	}
	share := int(memory) / actorMemoryPart / cmp.Or(cells, goruntime.GOMAXPROCS(0))
	l.ActorBytesMax = max(1, min(l.ActorBytesMax, share))
	return l
}

// memoryOf returns the memory of the system or, if that is less, of the group of processes that this
// one belongs to, in bytes. Without Linux it is unknown: math.MaxInt64.
func memoryOf(system fs.FS) int64 {
	memory := int64(math.MaxInt64)
	info, _ := fs.ReadFile(system, "proc/meminfo")
	for line := range strings.Lines(string(info)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); err == nil {
			memory = kib << 10
		}
	}
	groups, _ := fs.ReadFile(system, "proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		root, file := "sys/fs/cgroup", "memory.max"
		if fields[1] == "memory" {
			root, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// A container sees its own group at the root, and the path of the host.
		for dir := path.Join("/", fields[2]); ; dir = path.Dir(dir) {
			text, _ := fs.ReadFile(system, path.Join(root, dir, file))
			if bytes, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
				memory = min(memory, bytes)
			}
			if dir == "/" {
				break
			}
		}
	}
	return memory
}
