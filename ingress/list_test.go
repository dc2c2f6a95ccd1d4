// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

func TestFilterTimes(t *testing.T) {
	for text, want := range map[string]string{"2027-01-31T12:00:00Z": "2027-01-31T12:00:00Z", "2027-01-31T12:00:00.5Z": "2027-01-31T12:00:00.5Z", "1970-01-01T00:00:00.000000007Z": "1970-01-01T00:00:00.000000007Z",
		"2199-12-31T23:59:59.999999999Z": "2199-12-31T23:59:59.999999999Z", "2200-01-01T00:00:00Z": "", "1969-12-31T23:59:59Z": "", "2027-01-31T12:00:00": "", "2027-01-31": "", "2027-02-30T12:00:00Z": "",
		"2027-01-31T12:00:00.0000000001Z": "", "2027-01-31T12:00:00+01:00": "", "Z": "", "": ""} {
		at, err := parseTime(text)
		if (err == nil) != (want != "") {
			t.Errorf("%s: got %d, error %v, want %q", text, at, err, want)
			continue
		}
		if then, parseErr := time.Parse(time.RFC3339, want); err == nil && (parseErr != nil || at != actor.Time(then.UnixNano())) {
			t.Errorf("%s: got %d, want %d", text, at, then.UnixNano())
		}
	}
}

// A cursor is accepted by its own list only, and only unchanged.
func TestPageCursor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := runs.Filter{Agent: rapid.StringMatching("[a-c]{1,2}").Draw(t, "agent"), System: rapid.Bool().Draw(t, "system")}
		name := func(tenant string, f runs.Filter) string { return (&RunList{Tenant: tenant, Filter: f}).name() }
		list, after := name("default", f), rapid.StringN(1, 40, 40).Draw(t, "after")
		key := CursorKey("a secret")
		cursor := key.PageCursor(list, after)
		if got, r := key.ParsePageCursor(list, cursor); r != nil || got != after {
			t.Fatalf("got %q, %v, want %q", got, r, after)
		}
		other := f
		other.Calls = true
		for _, foreign := range []string{name("default", other), name("acme", f), "agents default"} {
			if got, r := key.ParsePageCursor(foreign, cursor); r == nil || r.Field != "cursor" {
				t.Fatalf("list %s accepts the cursor of %s: %q", foreign, list, got)
			}
		}
		damaged := []byte(cursor)
		damaged[rapid.IntRange(0, len(damaged)-1).Draw(t, "at")] ^= 1
		if got, r := key.ParsePageCursor(list, string(damaged)); r == nil {
			t.Fatalf("%s for %s is accepted: %q", damaged, cursor, got)
		}
		for _, other := range []CursorKey{nil, CursorKey("another secret")} {
			if got, r := key.ParsePageCursor(list, other.PageCursor(list, after)); r == nil {
				t.Fatalf("a cursor of the key %q is accepted: %q", other, got)
			}
		}
	})
}

// The text of a cursor is the same in later versions: clients keep it over upgrades.
func TestPageCursorIsStable(t *testing.T) {
	f := runs.Filter{Agent: "a", Session: "s", Since: 1, Until: 2, System: true, Calls: true}
	list := (&RunList{Tenant: "alice", Filter: f}).name()
	if want := `runs "alice" agent "a" session "s" status ` + f.Status.String() + ` since 1 until 2 root 00000000-0000-0000-0000-000000000000 parent 00000000-0000-0000-0000-000000000000 system true calls true`; list != want {
		t.Errorf("got %s, want %s", list, want)
	}
	f.Queued = true
	if queued := (&RunList{Tenant: "alice", Filter: f}).name(); queued != list+" queued" {
		t.Errorf("got %s", queued)
	}
	f.Queued, f.Workflow = false, "wf-1"
	if related := (&RunList{Tenant: "alice", Filter: f}).name(); related != list+` correlation "wf-1"` {
		t.Errorf("got %s", related)
	}
	if v := reflect.TypeFor[runs.Filter](); v.NumField() != 11 {
		t.Errorf("runs.Filter has %d fields: the name of a list must have each of them", v.NumField())
	}
}
