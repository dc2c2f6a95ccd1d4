// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// fakeJava returns a TLC whose java is a script. The script checks that its working directory
// holds the configs and the module. It prints the output of a real run and exits with the status
// of a violation.
func fakeJava(t *testing.T) TLC {
	t.Helper()
	sample, err := filepath.Abs("testdata/invariant.txt")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "java")
	script := "#!/bin/sh\nfor module; do :; done\ntest -f Calls_chain.cfg && test -f $module.tla && cat '" + sample + "'\nexit 12\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return TLC{Java: path, Jar: "tlc.jar", Dir: tla, Output: t.TempDir()}
}

func TestRunAllReadsReports(t *testing.T) {
	checker := fakeJava(t)
	expect := Expectation{Violates, "AcyclicCalls"}
	calls := 0
	results, err := checker.RunAll(t.Context(), []Config{
		{Name: "Calls_a", Module: "Calls", Expect: expect},
		{Name: "Calls_b", Module: "Calls"},
		{Name: "Nothing_c", Module: "Nothing", Expect: expect}, // no such module: the script prints nothing
	}, func(Result) { calls++ })
	if err != nil || calls != 3 {
		t.Fatalf("done was called %d times, %v; want 3", calls, err)
	}
	for i, want := range []string{"", "AcyclicCalls is violated", "AcyclicCalls is not violated"} {
		if got := results[i].Mismatch(); got != want {
			t.Errorf("%s: %q, want %q", results[i].Config.Name, got, want)
		}
	}
	if output, err := os.ReadFile(results[0].Output); err != nil || len(output) == 0 {
		t.Errorf("output was not written: %v", err)
	}
}

func TestCancelledRunReportsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := fakeJava(t).RunAll(ctx, []Config{{Name: "Calls_a", Module: "Calls"}}, func(r Result) { t.Errorf("done was called with %v", r) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want context.Canceled", err)
	}
}

func TestMissingJavaIsMismatch(t *testing.T) {
	checker := fakeJava(t)
	checker.Java = filepath.Join(t.TempDir(), "java")
	if got := checker.Run(t.Context(), Config{Name: "Calls_a", Module: "Calls"}).Mismatch(); got == "" {
		t.Error("got no mismatch")
	}
}
