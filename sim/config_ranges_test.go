// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"reflect"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// TestConfigFieldsHaveRanges checks that every numeric bound of a configuration has a
// sim range, and that drawConfig stays within the range and covers it.
func TestConfigFieldsHaveRanges(t *testing.T) {
	fields := func(v any) {
		for i := range reflect.TypeOf(v).NumField() {
			f := reflect.TypeOf(v).Field(i)
			_, ok := f.Tag.Lookup("sim")
			number := f.Type.Kind() == reflect.Int || f.Type.Kind() == reflect.Uint32 || f.Type == reflect.TypeFor[actor.Duration]()
			if ok != number {
				t.Errorf("%T.%s: has a sim range %v, is numeric %v, want both or neither", v, f.Name, ok, number)
			}
		}
	}
	fields(dispatcher.Limits{})
	fields(upstream.AttemptLimits{})
	fields(store.WriterConfig{})
	fields(store.IndexConfig{})

	seen := map[string]map[int64]bool{}
	c := NewSeededEntropy(1)
	for range 500 {
		l := dispatcher.DefaultLimits()
		drawConfig(c, &l)
		if err := l.Check(); err != nil && !strings.Contains(err.Error(), "agent_call_timeout_ms_default") && !strings.HasPrefix(err.Error(), "approval_timeout_ms ") { // drawLimits clamps these to the drawn maximum
			t.Fatal(err)
		}
		for i := range reflect.TypeOf(l).NumField() {
			f := reflect.TypeOf(l).Field(i)
			r, err := parseRange(f.Tag.Get("sim"), f.Type == reflect.TypeFor[actor.Duration]())
			if err != nil {
				t.Fatal(err)
			}
			v := asInt(reflect.ValueOf(l).Field(i)) / r.unit
			if v < r.min || v > r.max {
				t.Errorf("%s = %d, want a value within %+v", f.Name, v, r)
			}
			if seen[f.Name] == nil {
				seen[f.Name] = map[int64]bool{}
			}
			seen[f.Name][v] = true
			if v == r.min {
				seen[f.Name][-1] = true
			}
		}
	}
	for name, values := range seen {
		if len(values) < 4 || !values[-1] && len(values) < 50 {
			t.Errorf("%s: drew only %d distinct values", name, len(values))
		}
	}
}

func TestParseRangeRejectsInvalid(t *testing.T) {
	for _, text := range []string{"", "1", "2..1", "a..b", "1..x", "-1..1", "0..9999999999"} {
		if r, err := parseRange(text, false); err == nil {
			t.Errorf("parseRange(%q) = %+v, want an error", text, r)
		}
	}
	if r, err := parseRange("1KiB..2MiB", false); err != nil || r.min != 1<<10 || r.max != 2<<20 {
		t.Errorf("parseRange(1KiB..2MiB) = %+v, %v", r, err)
	}
}
