// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// The seed determines the forgeries. Each one differs from its history, which stays as it was.
func TestForgeriesAreDrawnBySeed(t *testing.T) {
	h, err := readTrace(writeTrace(t, sampleTrace))
	if err != nil {
		t.Fatal(err)
	}
	text := func(seed uint64) string {
		var all []string
		forged, err := drawForgeries([]trace{h}, 40, seed)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range forged {
			if reflect.DeepEqual(f.trace.Events, h.Events) {
				t.Errorf("%s changes nothing", f.class)
			}
			all = append(all, fmt.Sprintf("%s %s %+v", f.class, f.at, f.trace.Events))
		}
		return strings.Join(all, "\n")
	}
	first := text(1)
	if text(1) != first || text(2) == first {
		t.Error("the seed does not determine the forgeries")
	}
	for _, op := range operators {
		if !strings.Contains("\n"+first, "\n"+op.name+" ") {
			t.Errorf("no forgery of 40 is a %s", op.name)
		}
	}
	if again, _ := readTrace(writeTrace(t, sampleTrace)); !reflect.DeepEqual(again.Events, h.Events) {
		t.Error("a forgery changed the history that it was drawn from")
	}
}

// A trace of one event that Trace passes over has no forgeries.
func TestForgeriesNeedCheckedEvents(t *testing.T) {
	if _, err := drawForgeries([]trace{{Events: []event{{Kind: "Probe"}}}}, 1, 1); err == nil {
		t.Error("a forgery of an event that is passed over")
	}
}

func TestVerdictsOfForgeries(t *testing.T) {
	rows := readVerdicts("| class | verdict | why |\n|---|---|---|\n| `drop Send *` | equivalent | lost |\n| `move Reply later` | open | x |\n| `swap Ask` | maybe | x |\n")
	for class, want := range map[string]string{"drop Send open": "equivalent", "move Reply later": "open", "move Reply later with x": "", "swap Ask": "", "drop Deliver": ""} {
		if got := judgement(rows, class); got != want {
			t.Errorf("%s: got verdict %q, want %q", class, got, want)
		}
	}
	if rows := readVerdicts(read(t, forgeriesFile)); len(rows) == 0 {
		t.Errorf("tla/%s has no verdicts", forgeriesFile)
	}
}
