// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestMemoryKVAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m MemoryKV
		model := map[string]string{}
		drawKey := func() string { return fmt.Sprintf("%03d", rapid.IntRange(0, 600).Draw(t, "key")) }
		for range rapid.IntRange(1, 60).Draw(t, "batches") {
			var rows []Row
			for range rapid.IntRange(1, 30).Draw(t, "rows") {
				k := drawKey()
				if rapid.IntRange(0, 2).Draw(t, "delete") == 0 {
					rows = append(rows, Row{Key: []byte(k), Delete: true})
					delete(model, k)
				} else {
					v := fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "value"))
					rows = append(rows, Row{Key: []byte(k), Value: []byte(v)})
					model[k] = v
				}
			}
			if err := m.Apply(rows); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		_ = m.Scan([]byte("000"), []byte("999"), func(_, _ []byte) bool { n++; return true })
		if n != len(model) {
			t.Fatalf("got %d keys, want %d", n, len(model))
		}
		for range 5 {
			k := drawKey()
			v, ok, _ := m.Get([]byte(k))
			if want, is := model[k]; ok != is || string(v) != want {
				t.Fatalf("key %s: got %s, %v, want %s, %v", k, v, ok, want, is)
			}
		}
		from, to := drawKey(), drawKey()
		var got, want []string
		_ = m.Clone().Scan([]byte(from), []byte(to), func(k, v []byte) bool {
			got = append(got, string(k)+"="+string(v))
			return true
		})
		for _, k := range slices.Sorted(maps.Keys(model)) {
			if from <= k && k < to {
				want = append(want, k+"="+model[k])
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("scan from %s to %s: got %v, want %v", from, to, got, want)
		}
		slices.Reverse(want)
		limit := rapid.IntRange(1, 300).Draw(t, "limit")
		got = nil
		_ = m.ScanBack([]byte(from), []byte(to), func(k, v []byte) bool {
			got = append(got, string(k)+"="+string(v))
			return len(got) < limit
		})
		if want = want[:min(limit, len(want))]; !slices.Equal(got, want) {
			t.Fatalf("scan back from %s to %s: got %v, want %v", to, from, got, want)
		}
	})
}

func TestScanStopsOnFalse(t *testing.T) {
	var m MemoryKV
	for i := range 1000 {
		_ = m.Apply([]Row{{Key: fmt.Appendf(nil, "%04d", i)}})
	}
	n := 0
	_ = m.Scan([]byte("0500"), []byte("0900"), func(k, _ []byte) bool {
		n++
		return !bytes.Equal(k, []byte("0599"))
	})
	if n != 100 {
		t.Errorf("got %d keys, want 100", n)
	}
}

func BenchmarkMemoryKVPut(b *testing.B) {
	var m MemoryKV
	for i := range b.N {
		_ = m.Apply([]Row{{Key: fmt.Appendf(nil, "t/default/a/x/%d/%016x", i%1000, i)}})
	}
}
