// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	goruntime "runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/dispatcher"
)

// actorMemoryPart divides the memory: the content of actors may take one such part. During a flood
// of changes, each of which is copied several times, content and garbage together take a fifth to a
// third of the memory: see LimitGarbage.
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

// The cache of the store is a part of the memory, within bounds: more made reads no faster.
const (
	readCachePart = 64 // divides the memory
	readCacheMin  = 8 << 20
	readCacheMax  = 64 << 20
)

// readCache returns the size of the cache of the store in bytes.
func readCache(system fs.FS) int64 {
	memory := min(memoryOf(system), debug.SetMemoryLimit(-1))
	return max(readCacheMin, min(memory/readCachePart, readCacheMax))
}

// Parts of the memory limit of the Go runtime.
const (
	limitPart      = 5        // divides the memory
	limitHeadroom  = 32 << 20 // stacks and others, in addition to the content
	limitInterval  = time.Second
	limitedContent = 4 // of 5 bytes: content that the limit leaves room for
)

// LimitGarbage makes a process collect garbage before it takes more than a fifth of the memory of its
// machine or group, until stop is called. Without it, garbage is as large as the content, and a flood
// of large requests doubles the memory. If GOMEMLIMIT is set, or the memory unknown, it does nothing.
func LimitGarbage() (stop func()) {
	memory := memoryOf(os.DirFS("/"))
	before := debug.SetMemoryLimit(-1)
	if memory == math.MaxInt64 || before != math.MaxInt64 {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer debug.SetMemoryLimit(before)
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		ticker := time.NewTicker(limitInterval)
		defer ticker.Stop()
		for {
			metrics.Read(live)
			debug.SetMemoryLimit(garbageLimit(memory, int64(live[0].Value.Uint64())))
			select {
			case <-done:
				return
			case <-ticker.C:
			}
		}
	}()
	return func() { close(done); <-ended }
}

// garbageLimit returns the memory limit of a process whose heap had this much content after the last
// collection. Content of nearly a fifth of the memory gets room for garbage, so that collections stay
// a small part of the work.
func garbageLimit(memory, live int64) int64 {
	return max(memory/limitPart, live/limitedContent*5+limitHeadroom)
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
