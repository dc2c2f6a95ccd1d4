// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/troupe-run/troupe/dispatcher"
)

// Actors get a share of the memory of the machine, or of the smallest group that bounds it.
func TestMemoryOfGroup(t *testing.T) {
	const meminfo = "MemFree: 5 kB\nMemTotal:       4194304 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"unknown":             {nil, math.MaxInt64},
		"machine":             {map[string]string{"proc/meminfo": meminfo}, 4 << 30},
		"group":               {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1073741824\n"}, 1 << 30},
		"group without bound": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 4 << 30},
		"group above":         {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "536870912", "sys/fs/cgroup/a/b/memory.max": "max"}, 512 << 20},
		"container":           {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/../host\n", "sys/fs/cgroup/memory.max": "536870912"}, 512 << 20},
		"first version":       {map[string]string{"proc/self/cgroup": "9:cpu:/c\n4:memory:/c\n", "sys/fs/cgroup/memory/c/memory.limit_in_bytes": "1000"}, 1000},
	} {
		system := fstest.MapFS{}
		for path, text := range c.files {
			system[path] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := memoryOf(system); got != c.want {
			t.Errorf("%s: got %d bytes, want %d", name, got, c.want)
		}
	}
	small := fstest.MapFS{"proc/meminfo": &fstest.MapFile{Data: []byte("MemTotal: 1572864 kB")}}
	l := dispatcher.DefaultLimits()
	if got := boundMemory(l, 2, small).ActorBytesMax; got != 48<<20 {
		t.Errorf("each of 2 cells gets %d bytes of 1.5 GiB, want %d", got, 48<<20)
	}
	for memory, want := range map[string]int64{"262144": 8 << 20, "1572864": 24 << 20, "25165824": 64 << 20} { // KiB
		system := fstest.MapFS{"proc/meminfo": &fstest.MapFile{Data: []byte("MemTotal: " + memory + " kB")}}
		if got := readCache(system); got != want {
			t.Errorf("the store of a machine of %s KiB has a cache of %d bytes, want %d", memory, got, want)
		}
	}
	for _, c := range [][3]int64{{1500 << 20, 0, 300 << 20}, {1500 << 20, 200 << 20, 300 << 20}, {1500 << 20, 400 << 20, 532 << 20}, {25 << 30, 3 << 30, 5 << 30}} {
		if got := garbageLimit(c[0], c[1]); got != c[2] {
			t.Errorf("of %d MiB with content of %d MiB: the limit is %d MiB, want %d", c[0]>>20, c[1]>>20, got>>20, c[2]>>20)
		}
	}
	l.ActorBytesMax = 1 << 20
	if got := boundMemory(l, 2, small).ActorBytesMax; got != 1<<20 {
		t.Errorf("a lower limit of the configuration became %d", got)
	}
}
