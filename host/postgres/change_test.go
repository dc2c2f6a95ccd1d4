// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/store"
)

// Rows that are applied in order have the same effect as the statements of their change.
func TestChangeIsTheEffectOfRows(t *testing.T) {
	key := rapid.Custom(func(t *rapid.T) []byte { return fmt.Appendf(nil, "k%d", rapid.IntRange(0, 9).Draw(t, "key")) })
	rapid.Check(t, func(t *rapid.T) {
		var got, want store.MemoryKV
		before := []store.Row{{Key: []byte("k3"), Value: []byte("old")}, {Key: []byte("k7"), Value: []byte("old")}}
		var rows []store.Row
		for i := range rapid.IntRange(0, 12).Draw(t, "rows") {
			row := store.Row{Key: key.Draw(t, "row")}
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				row.Delete = true
			case 1:
				row.Delete, row.To = true, key.Draw(t, "to")
			default:
				row.Value = fmt.Append(nil, i)
			}
			rows = append(rows, row)
		}
		c := changeOf(rows, [][]byte{[]byte("k1")})
		effect := append([]store.Row{}, c.ranges...)
		for _, k := range c.deleted {
			effect = append(effect, store.Row{Key: k, Delete: true})
		}
		for i, k := range c.newKeys {
			effect = append(effect, store.Row{Key: k, Value: c.newValues[i]})
		}
		for i, k := range c.keys {
			effect = append(effect, store.Row{Key: k, Value: c.values[i]})
		}
		for kv, all := range map[*store.MemoryKV][]store.Row{&got: effect, &want: rows} {
			for _, rows := range [][]store.Row{before, all} {
				if err := kv.Apply(rows); err != nil {
					t.Fatal(err)
				}
			}
		}
		content := func(kv *store.MemoryKV) (all string) {
			_ = kv.Scan([]byte{0}, []byte{0xff}, func(k, v []byte) bool { all += fmt.Sprintf("%s=%s ", k, v); return true })
			return all
		}
		if content(&got) != content(&want) {
			t.Fatalf("%v\ngot  %s\nwant %s", rows, content(&got), content(&want))
		}
		seen := map[string]bool{}
		for _, k := range append(append(append([][]byte{}, c.deleted...), c.keys...), c.newKeys...) {
			if seen[string(k)] {
				t.Fatalf("%v: key %s occurs twice", rows, k)
			}
			seen[string(k)] = true
		}
	})
}

// The values of a tool's headers, which may be keys of its service, are in no table. All else of its
// spec is.
func TestToolsAreShownWithoutSecrets(t *testing.T) {
	spec := `{"tool_name":"pay","headers":{"Authorization":{"value":"Bearer s3cret"},"X-Key":{"env":"PAY_KEY"}},"timeout_ms":5}`
	shown := withoutSecrets([]byte(spec))
	if bytes.Contains(shown, []byte("s3cret")) || !bytes.Contains(shown, []byte(`"env":"PAY_KEY"`)) || !bytes.Contains(shown, []byte(`"timeout_ms":5`)) {
		t.Errorf("%s", shown)
	}
	var members map[string]any
	if err := json.Unmarshal(shown, &members); err != nil || len(members) != 3 {
		t.Errorf("%v, %v", members, err)
	}
	if plain := `{"tool_name":"pay"}`; string(withoutSecrets([]byte(plain))) != plain {
		t.Errorf("a tool without headers: %s", withoutSecrets([]byte(plain)))
	}
}

// The schema is made by files that are numbered without gaps.
func TestMigrationsAreNumbered(t *testing.T) {
	all, err := migrations()
	if err != nil || len(all) < 2 || !strings.Contains(all[0], "troupe.logs") {
		t.Errorf("%d migrations, error %v", len(all), err)
	}
}

// What a URL may hold of secrets is not shown, and a text that is no URL not at all.
func TestShownURL(t *testing.T) {
	for text, want := range map[string]string{
		"postgres://u:p@h:5432/d?sslmode=require":         "postgres://u@h:5432/d?sslmode=require",
		"postgresql://h/d?password=p&sslpassword=q":       "postgresql://h/d",
		"postgres://h/d?user=u;password=p&sslmode=prefer": "postgres://h/d?sslmode=prefer",
		"host=h password=p":                               "postgres://…",
		"postgres://%zz":                                  "postgres://…",
	} {
		if got := Shown(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
