// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFewFailedTestsAreRunAgain(t *testing.T) {
	test := func(action, name string) []event {
		return []event{{Action: "run", Package: module + "host", Test: name}, {Action: action, Package: module + "host", Test: name}}
	}
	output := func(name, text string) event {
		return event{Action: "output", Package: module + "host", Test: name, Output: text}
	}
	end := func(action, pkg string) event { return event{Action: action, Package: module + pkg} }
	failed := func(names ...string) (events []event) {
		for _, name := range names {
			events = append(events, test("fail", name)...)
		}
		return append(events, end("fail", "host"))
	}
	for _, c := range []struct {
		name   string
		events []event
		tests  string
		reason string
	}{
		{"a test", append(append(test("pass", "TestA"), output("TestB", "    b_test.go:1: panic: in a message\n")), failed("TestB")...), "TestB", ""},
		{"three", failed("TestA", "TestB", "TestC"), "TestA TestB TestC", ""},
		{"four", failed("TestA", "TestB", "TestC", "TestD"), "", "4 tests failed"},
		{"a test and its subtests", failed("TestA/b/c", "TestA/b", "TestA/d", "TestA/e", "TestA"), "TestA", ""},
		{"none", append(test("pass", "TestA"), end("pass", "host")), "", "no test failed"},
		{"a package that was not built", append([]event{end("fail", "sim")}, failed("TestA")...), "", "sim failed outside its tests"},
		{"a process that ended", append([]event{{Action: "run", Package: module + "host", Test: "TestB"}}, failed("TestA")...), "", "host TestB did not end"},
		{"a panic", append([]event{output("TestA", "panic: nil map\n")}, failed("TestA")...), "", "panic: nil map"},
		{"a crash of the runtime", append([]event{output("", "fatal error: all goroutines are asleep - deadlock!\n")}, failed("TestA")...), "", "fatal error"},
		{"a data race", append([]event{output("TestA", "WARNING: DATA RACE\n")}, failed("TestA")...), "", "DATA RACE"},
		{"a data race of another process", append([]event{output("TestB", "    it printed WARNING: DATA RACE\n")}, failed("TestA")...), "", "DATA RACE"},
	} {
		var f failures
		for _, e := range c.events {
			f.add(e)
		}
		tests, reason := f.again()
		var names []string
		for _, x := range tests {
			names = append(names, x.test)
		}
		if got := strings.Join(names, " "); got != c.tests || (reason == "") != (c.reason == "") || !strings.Contains(reason, c.reason) {
			t.Errorf("%s: again %q, %q; want %q, %q", c.name, got, reason, c.tests, c.reason)
		}
	}
}

// TestFailedByChance runs tests that count their runs in a file, and fail at some of them.
func TestFailedByChance(t *testing.T) {
	const counted = `
func count(t *testing.T) int {
	text, _ := os.ReadFile("runs")
	if err := os.WriteFile("runs", append(text, '.'), 0o600); err != nil {
		t.Fatal(err)
	}
	return len(text) + 1
}
func TestOther(t *testing.T) {}
`
	for _, c := range []struct {
		name, body string
		again      bool
		code       int
		runs       int
	}{
		{"once", `func TestA(t *testing.T) { if count(t) == 1 { t.Error("why") } }`, true, 0, 4},
		{"once, without -again", `func TestA(t *testing.T) { if count(t) == 1 { t.Error("why") } }`, false, 1, 1},
		{"once in a subtest", `func TestA(t *testing.T) { t.Run("b", func(t *testing.T) { if count(t) == 1 { t.Error("why") } }) }`, true, 0, 4},
		{"twice", `func TestA(t *testing.T) { if n := count(t); n == 1 || n == 4 { t.Error("why") } }`, true, 1, 4},
		{"once, and something outside it always", `func TestA(t *testing.T) { if count(t) == 1 { t.Error("why") } }
			func TestMain(m *testing.M) { m.Run(); os.Exit(1) }`, true, 1, 4},
		{"once, then skipped", `func TestA(t *testing.T) { if count(t) == 1 { t.Error("why") }; t.Skip() }`, true, 1, 4},
		{"a panic", `func TestA(t *testing.T) { if count(t) == 1 { panic("why") } }`, true, 1, 1},
		{"the process ends", `func TestA(t *testing.T) { if count(t) == 1 { os.Exit(1) } }`, true, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(writeModule(t, "import \"os\"\n"+counted+c.body))
			again := ""
			if c.again {
				again = filepath.Join(t.TempDir(), "once")
			}
			var w strings.Builder
			code, err := run(nil, again, []string{"-timeout", "1m", "./..."}, &w)
			runs, _ := os.ReadFile("runs")
			once, _ := os.ReadFile(again)
			if err != nil || code != c.code || len(runs) != c.runs {
				t.Errorf("code %d, want %d; %d runs, want %d; %v\n%s", code, c.code, len(runs), c.runs, err, w.String())
			}
			if named := strings.Contains(string(once), "== example TestA FAILED once") && strings.Contains(string(once), "why"); named != (c.again && c.code == 0) {
				t.Errorf("named %q", once)
			}
		})
	}
}
