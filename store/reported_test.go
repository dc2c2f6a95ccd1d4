// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// The state that an agent has last reported stays after the end of its run, with the run and the time of its change.
// A repeat, a piece of text and a retry change nothing.
func TestReportedStates(t *testing.T) {
	first, second := actor.CallID{1}, actor.CallID{2}
	var j Journal
	apply := func(r Record) {
		t.Helper()
		if err := j.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	open := func(run actor.CallID) {
		apply(Accepted{actor.Call{ID: run, To: actor.NewID("scout", "s-1"), Left: 1_000}, 1, actor.Hash{}})
		apply(Asking{Run: run, At: 1, Asks: []Asked{{Ask: actor.Ask{Kind: actor.AskInvoke, Name: "scout"}}}})
	}
	open(first)
	for i, c := range []struct {
		state, detail string
		retry         bool
		want          string
	}{
		{"", "", false, "  0 0"},
		{"searching", `{"n":1}`, false, `searching {"n":1} 1 11`},
		{"searching", `{"n":1}`, false, `searching {"n":1} 1 11`},
		{"searching", `{"n":2}`, false, `searching {"n":2} 2 13`},
		{"", "", false, `searching {"n":2} 2 13`},
		{"", "", true, `searching {"n":2} 2 13`},
		{"writing", "", false, "writing  3 16"},
		{"searching", `{"n":2}`, false, `searching {"n":2} 4 17`},
	} {
		apply(Streamed{Run: first, Step: 1, At: actor.Time(10 + i), Retry: c.retry, State: c.state, Detail: c.detail})
		r := j.Reported
		if got := fmt.Sprintf("%s %s %d %d", r.State, r.Detail, r.Version, r.At); got != c.want || r.Version > 0 && r.Run != first {
			t.Errorf("piece %d: got %s of %s, want %s", i, got, r.Run, c.want)
		}
	}
	apply(Ended{Call: first, At: 20, Reply: actor.Fail(first, actor.Refuse(actor.Unavailable, "gone")), Until: 21})
	open(second)
	apply(Streamed{Run: second, Step: 1, At: 30, State: "searching", Detail: `{"n":2}`})
	if j.Reported.Run != first || j.Reported.Version != 4 {
		t.Errorf("a repeat by the next run: %+v", j.Reported)
	}
	apply(Streamed{Run: second, Step: 1, At: 31, State: "idle"})
	if want := (Reported{"idle", "", 5, second, 31}); j.Reported != want {
		t.Errorf("got %+v, want %+v", j.Reported, want)
	}
}
