// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// report parses the output of a real run of TLC, stored without the states of its error trace.
func report(t *testing.T, c Config, sample string) Report {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", sample+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	return ParseReport(c, string(text))
}

var oneProperty = Config{Properties: []string{"TurnComesBack"}}

func TestParseReport(t *testing.T) {
	for sample, want := range map[string]Report{
		"holds":      {Version: "2.18", Complete: true, Generated: 575, Distinct: 211, Depth: 17},
		"invariant":  {Version: "2.18", Violated: "AcyclicCalls", Generated: 13, Distinct: 9, Queued: 3, Depth: 5},
		"step":       {Version: "2.18", Violated: "NoWorkPastDeadline", Generated: 20, Distinct: 12, Queued: 6, Depth: 5},
		"liveness":   {Version: "2.18", Violated: "TurnComesBack", Generated: 1024, Distinct: 383},
		"deadlock":   {Version: "2.18", Violated: "deadlock", Generated: 69, Distinct: 46, Queued: 18, Depth: 7},
		"error":      {Version: "2.18", Err: "Error: The constant parameter Time is not assigned a value by the configuration file."},
		"parse":      {Version: "2.18", Err: "***Parse Error***"},
		"nojar":      {Err: "Error: Could not find or load main class tlc2.TLC"},
		"unfinished": {Version: "2.18"},
	} {
		if got := report(t, oneProperty, sample); got != want {
			t.Errorf("%s: got\n%+v, want\n%+v", sample, got, want)
		}
	}
}

// TLC does not name a violated liveness property. With two liveness properties the result is
// ambiguous.
func TestAmbiguousLivenessViolationIsError(t *testing.T) {
	two := Config{Properties: []string{"EveryCallEnds", "TurnComesBack"}}
	if got := report(t, two, "liveness"); got.Violated != "" || !strings.Contains(got.Err, "one per config") {
		t.Errorf("got %+v", got)
	}
}

func TestMismatch(t *testing.T) {
	holds, broken := Expectation{Kind: Holds}, Expectation{Violates, "AcyclicCalls"}
	reached := Expectation{Reaches, "Not_Busy"}
	for _, test := range []struct {
		sample   string
		expect   Expectation
		mismatch string
	}{
		{"holds", holds, ""},
		{"invariant", broken, ""},
		{"holds", broken, "AcyclicCalls is not violated"},
		{"holds", reached, "Not_Busy is not violated"},
		{"invariant", holds, "AcyclicCalls is violated"},
		{"invariant", reached, "AcyclicCalls is violated instead"},
		{"deadlock", broken, "deadlock is violated instead"},
		{"step", broken, "NoWorkPastDeadline is violated instead"},
		{"unfinished", holds, "the search did not end"},
		{"unfinished", broken, "AcyclicCalls is not violated"},
		{"error", holds, "Error: The constant parameter Time"},
		{"error", broken, "Error: The constant parameter Time"},
		{"nojar", reached, "Error: Could not find"},
	} {
		got := Result{Config: Config{Expect: test.expect}, Report: report(t, oneProperty, test.sample)}.Mismatch()
		if (got == "") != (test.mismatch == "") || !strings.HasPrefix(got, test.mismatch) {
			t.Errorf("%s with expectation %s: got %q, want %q", test.sample, test.expect, got, test.mismatch)
		}
	}
}

// A complete search has an empty queue and at least one state.
func TestIncompleteSearchIsMismatch(t *testing.T) {
	for _, r := range []Report{{Complete: true, Distinct: 5, Queued: 1}, {Complete: true}, {Distinct: 5}} {
		if (Result{Report: r}).Mismatch() == "" {
			t.Errorf("%+v is accepted", r)
		}
	}
}

func TestChecksumRejectsOtherJar(t *testing.T) {
	jar := filepath.Join(t.TempDir(), jarName)
	if err := checkSum(jar); !os.IsNotExist(err) {
		t.Errorf("missing jar: %v", err)
	}
	if err := os.WriteFile(jar, []byte("another TLC"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := checkSum(jar); err == nil || !strings.Contains(err.Error(), "remove it to fetch it again") {
		t.Errorf("modified jar: %v", err)
	}
}

func TestMissingCommandErrorNamesPackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, _, err := Checker(t.Context(), t.TempDir()); err == nil || err.Error() != "java is missing: apt-get install default-jre-headless" {
		t.Errorf("java: %v", err)
	}
	if _, err := pinnedJar(t.Context(), t.TempDir()); err == nil || !strings.HasPrefix(err.Error(), "mvn is missing: apt-get install maven") {
		t.Errorf("mvn: %v", err)
	}
}
