// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

func TestChunkerBatchesAfterFirst(t *testing.T) {
	ms := func(n int) actor.Time { return actor.Time(time.Duration(n) * time.Millisecond) }
	var c upstream.Chunker
	for _, step := range []struct {
		at    int
		text  string
		out   []string
		dueAt int // -1: nothing is buffered
	}{
		{0, "", nil, -1},
		{10, "He", []string{"He"}, -1},
		{11, "l", nil, 61},
		{40, "lo", nil, 61},
		{61, ", ", []string{"llo, "}, -1},
		{62, "world", nil, 112},
		{63, strings.Repeat("x", 600), []string{"world" + strings.Repeat("x", 251), strings.Repeat("x", 256)}, 113},
		{64, strings.Repeat("x", 163), []string{strings.Repeat("x", 256)}, -1},
		{65, strings.Repeat("ä", 128), []string{strings.Repeat("ä", 128)}, -1},
		{66, "x" + strings.Repeat("ä", 128), []string{"x" + strings.Repeat("ä", 127)}, 116},
	} {
		out := c.Add(ms(step.at), step.text)
		due, held := c.Due()
		if !slices.Equal(out, step.out) || held != (step.dueAt >= 0) || held && due != ms(step.dueAt) {
			t.Errorf("at %d, %.10q: got %q, due %v %v", step.at, step.text, out, time.Duration(due), held)
		}
	}
	if out := c.Flush(); !slices.Equal(out, []string{"ä"}) {
		t.Errorf("Flush: got %q, want ä", out)
	}
	if out := c.Flush(); out != nil {
		t.Errorf("second Flush: got %q, want nothing", out)
	}
}

func TestChunkerInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c upstream.Chunker
		var now actor.Time
		var in, out strings.Builder
		var taken []actor.Time // arrival time of each buffered byte
		take := func(pieces []string) {
			for _, p := range pieces {
				if p == "" || len(p) > upstream.ChunkBytesMax || !utf8.ValidString(p) {
					t.Fatalf("invalid piece %q", p)
				}
				if late := now.Sub(taken[0]); late > upstream.ChunkDelayMax {
					t.Fatalf("piece delayed for %v", late)
				}
				taken = taken[len(p):]
				out.WriteString(p)
			}
		}
		for i := range rapid.IntRange(1, 30).Draw(t, "texts") {
			next := now.Add(time.Duration(rapid.IntRange(0, 80).Draw(t, "ms")) * time.Millisecond)
			if due, held := c.Due(); held && due <= next {
				now = due
				take(c.Flush())
			}
			now = next
			text := strings.ToValidUTF8(rapid.StringN(0, 400, 900).Draw(t, "text"), "")
			for range len(text) {
				taken = append(taken, now)
			}
			in.WriteString(text)
			take(c.Add(now, text))
			if i == 0 && out.String() != in.String() {
				t.Fatal("the first text was buffered")
			}
			if in.Len() == 0 && i == 0 {
				return
			}
		}
		take(c.Flush())
		if in.String() != out.String() {
			t.Fatalf("input %q, output %q", in.String(), out.String())
		}
	})
}
