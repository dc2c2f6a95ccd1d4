// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

const (
	// againMax is the maximum number of failed tests that are run again. More did not fail by chance.
	againMax = 3
	// againRuns is the number of times that each of them must then pass.
	againRuns = 3
)

// failures are the failed tests of a run of go test. A test counts once, whatever its subtests.
type failures struct {
	failed  []failure
	passed  int                 // number of tests
	running map[string]bool     // tests and subtests that have not ended, by package and name
	output  map[string][]string // of each test that has not ended, with that of its subtests
	broken  string              // reason why no test is run again: a failure other than that of a test that ended
}

// failure is a failed test.
type failure struct{ pkg, test, output string }

// raceReport begins a report of the race detector, which is true however often the test passes.
const raceReport = "WARNING: DATA RACE"

// add adds an event of go test.
func (f *failures) add(e event) {
	if f.running == nil {
		f.running, f.output = map[string]bool{}, map[string][]string{}
	}
	test, _, isSub := strings.Cut(e.Test, "/")
	outer := event{Package: e.Package, Test: test}
	name := testName(outer)
	switch e.Action {
	case "run":
		f.running[testName(e)] = true
	case "output":
		f.output[name] = append(f.output[name], e.Output)
		if strings.Contains(e.Output, raceReport) || strings.HasPrefix(e.Output, "panic: ") || strings.HasPrefix(e.Output, "fatal error: ") {
			f.broken = name + ": " + strings.TrimSpace(e.Output)
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			f.endPackage(e)
			return
		}
		delete(f.running, testName(e))
		if isSub {
			return
		}
		switch e.Action {
		case "pass":
			f.passed++
		case "fail":
			f.failed = append(f.failed, failure{e.Package, e.Test, strings.Join(f.output[name], "")})
		}
		delete(f.output, name)
	}
}

// endPackage notes a package that failed for another reason than tests that ran to their end: it was
// not built, say, or the process ended in the middle of a test.
func (f *failures) endPackage(e event) {
	name := strings.TrimSpace(testName(e))
	for running := range f.running {
		if strings.HasPrefix(running, name+" ") {
			f.broken = running + " did not end"
		}
	}
	if e.Action == "fail" && !slices.ContainsFunc(f.failed, func(x failure) bool { return x.pkg == e.Package }) {
		f.broken = name + " failed outside its tests"
	}
}

// again returns the tests to run again, or why there are none.
func (f *failures) again() ([]failure, string) {
	switch {
	case f.broken != "":
		return nil, f.broken
	case len(f.failed) > againMax:
		return nil, fmt.Sprintf("%d tests failed, more than %d", len(f.failed), againMax)
	case len(f.failed) == 0:
		return nil, "no test failed"
	}
	return f.failed, ""
}

// againArgs returns the arguments of go test that run a failed test alone. The paths of the first run are left out.
func againArgs(args []string, x failure) []string {
	args = slices.DeleteFunc(slices.Clone(args), isPath)
	return append(args, fmt.Sprintf("-count=%d", againRuns), "-run=^"+x.test+"$", x.pkg)
}

// runAgain runs each failed test of a run alone, and reports whether all of them always pass then. The names and
// first outputs of those that do are appended to a file, for a person to mend them.
func runAgain(first failures, args []string, path string, w io.Writer) (bool, error) {
	tests, reason := first.again()
	if reason != "" {
		fmt.Fprintln(w, "nothing is run again:", reason)
		return false, nil
	}
	var once strings.Builder
	for _, x := range tests {
		name := testName(event{Package: x.pkg, Test: x.test})
		fmt.Fprintf(w, "== %s failed; it is run alone, %d times\n", name, againRuns)
		second, err := goTest(againArgs(args, x), w)
		if err != nil {
			return false, err
		}
		if !second.ok || second.failures.passed != againRuns {
			return false, nil
		}
		fmt.Fprintf(&once, "== %s FAILED once, and passed %d of %d alone: mend it\n%s\n", name, againRuns, againRuns, x.output)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return false, err
	}
	_, err = file.WriteString(once.String())
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err == nil, err
}
