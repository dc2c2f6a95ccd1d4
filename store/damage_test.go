// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// damagedKV is a KV with blocks of keys that cannot be read, as on a disk with bad
// blocks. Blocks are ranges of keys, sorted.
type damagedKV struct {
	*MemoryKV
	blocks [][2]string // first key, and the key after the last
	failed int         // number of failed reads
}

var errBlock = errors.New("file 000007: checksum mismatch")

func (d *damagedKV) isDamaged(key []byte) bool {
	for _, b := range d.blocks {
		if string(key) >= b[0] && string(key) < b[1] {
			return true
		}
	}
	return false
}

func (d *damagedKV) Get(key []byte) ([]byte, bool, error) {
	if d.isDamaged(key) {
		d.failed++
		return nil, false, errBlock
	}
	return d.MemoryKV.Get(key)
}

// Scan fails like an iterator that enters a damaged block, even between its keys.
func (d *damagedKV) Scan(from, to []byte, each func(key, value []byte) bool) error {
	if d.isDamaged(from) {
		d.failed++
		return errBlock
	}
	var err error
	scanErr := d.MemoryKV.Scan(from, to, func(key, value []byte) bool {
		if d.isDamaged(key) {
			d.failed++
			err = errBlock
			return false
		}
		return each(key, value)
	})
	return errors.Join(err, scanErr)
}

// NextBlock returns the end of the first damaged block behind the key.
func (d *damagedKV) NextBlock(key, to []byte, _ uint64) []byte {
	for _, b := range d.blocks {
		if b[1] > string(key) {
			return []byte(min(b[1], string(to)))
		}
	}
	return to
}

// Examine continues behind blocks that the disk cannot read: it counts exactly the
// readable rows and names each block.
func TestExamineContinuesBehindUnreadableBlocks(t *testing.T) {
	l := newTestLog(t)
	for i := range 40 {
		s := newEntryBuilder(t, fmt.Sprintf("agent-%02d", i))
		s.runs = uint64(i) * 10 // no run of another agent
		l.write(s.accept("hello"))
		l.write(s.work("found")...)
		l.write(s.end("done"))
	}
	l.flush()
	end := l.write()
	whole, err := Examine(l.m, logAt(end), nil, nil)
	if err != nil || whole.Unreadable != 0 || whole.Entries != 160 || whole.Wrong != 0 || whole.Actors != 40 {
		t.Fatalf("error %v, %+v", err, whole)
	}
	id := func(i int) actor.ID { return actor.NewID(fmt.Sprintf("agent-%02d", i), "s-1") }
	part := func(batch uint64) string { return string(partKey("n1", batch, 0)) } // each agent has three
	for name, c := range map[string]struct {
		blocks                      [][2]string
		actors, entries, unreadable uint64
	}{
		"a part":               {[][2]string{{part(24), part(25)}}, 40, 159, 1},
		"parts of an actor":    {[][2]string{{part(22), part(25)}}, 40, 156, 1},
		"two blocks":           {[][2]string{{part(22), part(23)}, {part(40), part(41)}}, 40, 158, 2},
		"rows of the index":    {[][2]string{{string(indexPrefix(id(7))), string(indexPrefix(id(10)))}}, 37, 148, 1},
		"the whole log":        {[][2]string{{"l/", "l0"}}, 40, 0, 1},
		"rows of no relevance": {[][2]string{{"\x00", "format"}}, 40, 160, 1},
	} {
		x, err := Examine(&damagedKV{MemoryKV: l.m, blocks: c.blocks}, logAt(end), nil, nil)
		if err != nil || x.Actors != c.actors || x.Entries != c.entries || x.Unreadable != c.unreadable {
			t.Errorf("%s: got %d actors, %d entries, %d unreadable ranges, error %v; want %d, %d, %d", name, x.Actors, x.Entries, x.Unreadable, err, c.actors, c.entries, c.unreadable)
		}
		if x.Runs != 40 {
			t.Errorf("%s: got %d runs, want all", name, x.Runs)
		}
		named := 0
		for _, f := range x.Findings {
			if strings.HasPrefix(f.Where, "keys from ") && strings.Contains(f.What, errBlock.Error()) {
				named++
			}
		}
		if named != len(c.blocks) {
			t.Errorf("%s: %d blocks named, want %d", name, named, len(c.blocks))
		}
	}
}

// Examine reads a damaged block about once, even if it has rows of every actor and run. A
// disk spends up to a second on each failed read.
func TestExamineReadsUnreadableBlocksOnce(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		for name, blocks := range map[string][][2]string{
			"the log":              {{string(partKey("n1", 2, 0)), string(partKey("n1", 120, 0))}},
			"the index":            {{"t/default/s/s-1/i/", "t/default/s/s-1/j"}},
			"the sessions":         {{"t/default/s/", "t/default/s0"}},
			"the owners":           {{"t/default/r/", "t/default/r0"}},
			"the events":           {{"t/default/e/", "t/default/e0"}},
			"all rows of a tenant": {{"t/", "t0"}},
			"everything":           {{"", "\xff\xff"}},
		} {
			l := newTestLog(t)
			for i := range 40 {
				s := newEntryBuilder(t, fmt.Sprintf("agent-%02d", i))
				s.runs = uint64(i) * 10 // no run of another agent
				l.write(s.accept("hello"))
				l.write(s.work("found")...)
				l.write(s.end("done"))
			}
			if flushed {
				l.flush()
			}
			kv := &damagedKV{MemoryKV: l.m, blocks: blocks}
			x, err := Examine(kv, logAt(l.write()), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			// A few single keys are read before a scan: the origin, and the mark of the index.
			if limit := 2*int(x.Unreadable) + 4; kv.failed > limit {
				t.Errorf("%s, flushed %t: %d failed reads in %d unreadable ranges, want at most %d", name, flushed, kv.failed, x.Unreadable, limit)
			}
			if x.Unreadable > 12 {
				t.Errorf("%s, flushed %t: %d unreadable ranges of one block", name, flushed, x.Unreadable)
			}
		}
	}
}

// A disk that cannot read anything ends the examination with a finding.
func TestExamineEndsOnUnreadableDisk(t *testing.T) {
	l, end := examinedStore(t)
	x, err := Examine(&damagedKV{MemoryKV: l.m, blocks: [][2]string{{"", "\xff\xff"}}}, logAt(end), nil, nil)
	if err != nil || x.Unreadable == 0 || x.Batches != 0 || x.Wrong == 0 {
		t.Errorf("got %d ranges, %d batches, error %v", x.Unreadable, x.Batches, err)
	}
}

// countingKV reports the live heap every few keys of a scan. It keeps its rows outside
// of that measure.
type countingKV struct {
	*MemoryKV
	every, keys int
	base        uint64
	most        uint64 // maximum growth of the live heap in bytes
}

func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (c *countingKV) Scan(from, to []byte, each func(key, value []byte) bool) error {
	return c.MemoryKV.Scan(from, to, func(key, value []byte) bool {
		more := each(key, value)
		if c.keys++; c.keys%c.every == 0 {
			if now := liveHeap(); now > c.base {
				c.most = max(c.most, now-c.base)
			}
		}
		return more
	})
}

// The memory that Examine holds does not depend on the number of entries of an actor:
// with four times the entries it holds as much, and far less than their content. Entries
// after the watermark are in the index that Examine recovers.
func TestExamineHoldsNoLifeOfAnActor(t *testing.T) {
	examineHeld(t, true, 256<<10)
	examineHeld(t, false, 256<<10+IndexEntries<<11)
}

func examineHeld(t *testing.T, flushed bool, limit uint64) {
	t.Helper()
	held := map[int]uint64{}
	for _, calls := range []int{250, 1000} {
		l := newTestLog(t)
		s := newEntryBuilder(t, "alice")
		text := strings.Repeat("x", BlobBytesMin)
		content := 0
		for i := range calls {
			at := fmt.Sprint(i, text[:BlobBytesMin-8])
			l.write(append(append([]Entry{s.accept(at)}, s.work(at)...), s.end(at))...)
			content += 3 * len(at)
		}
		end := l.write(s.accept("open"))
		if flushed {
			l.flush()
		}
		kv := &countingKV{MemoryKV: l.m, every: 100}
		kv.base = liveHeap()
		x, err := Examine(kv, logAt(end), nil, nil)
		if err != nil || x.Wrong != 0 || x.Entries != uint64(4*calls+1) || kv.keys < calls {
			t.Fatalf("error %v, %d findings, %d entries", err, x.Wrong, x.Entries)
		}
		if held[calls] = kv.most; kv.most > limit || flushed && int(kv.most) > content/4 {
			t.Errorf("%d calls with %d KiB of content: %d KiB held", calls, content>>10, kv.most>>10)
		}
	}
	t.Logf("held: %v", held)
}
