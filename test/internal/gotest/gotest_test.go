// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writeModule writes a module with one package of tests and returns its folder.
func writeModule(t *testing.T, body string) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module " + module + "example\n",
		"a_test.go": "package example\n\nimport \"testing\"\n\n" + body,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// runTests runs the tests of a module and reports on their events.
func runTests(t *testing.T, dir string) (skipped []skip, printed string) {
	t.Helper()
	tests := exec.Command("go", "test", "-json", "./...")
	tests.Dir = dir
	out, _ := tests.Output() // exits with 1 if a test fails
	var w strings.Builder
	r, err := report(strings.NewReader(string(out)), nil, &progress{}, &w)
	if err != nil {
		t.Fatal(err)
	}
	return r.skipped, w.String()
}

func TestSkipsAreListedAndJudged(t *testing.T) {
	skipped, printed := runTests(t, writeModule(t, `
func TestQuiet(t *testing.T) { t.Log("not printed") }
func TestBrowser(t *testing.T) { t.Skip("no browser") }
func TestTable(t *testing.T) { t.Run("row", func(t *testing.T) { t.Skip("no row") }) }
`))
	if strings.Contains(printed, "not printed") || !strings.Contains(printed, "ok  \t"+module+"example") {
		t.Errorf("printed %q", printed)
	}
	if len(skipped) != 2 || skipped[0].name != "example TestBrowser" || !strings.HasSuffix(skipped[0].reason, ": no browser") || skipped[1].name != "example TestTable/row" {
		t.Fatalf("skipped %q", skipped)
	}
	for _, c := range []struct {
		accepted map[string]bool
		want     string
	}{
		{map[string]bool{}, "FAIL: 2 tests"},
		{map[string]bool{"example TestBrowser": true}, "FAIL: 1 tests"},
		{map[string]bool{"example TestBrowser": true, "example TestTable/row": true}, ""},
	} {
		var w strings.Builder
		if ok := judge(&w, skipped, c.accepted); ok != (c.want == "") || !strings.Contains(w.String(), c.want) {
			t.Errorf("accepted %v: %v, %s", c.accepted, ok, w.String())
		}
	}
	var w strings.Builder
	if !judge(&w, skipped, nil) || !strings.HasSuffix(w.String(), "skipped: 2 tests\n") {
		t.Errorf("without a list: %s", w.String())
	}
}

func TestFailuresAreShown(t *testing.T) {
	for body, want := range map[string]string{
		`func TestBroken(t *testing.T) { t.Error("why it failed") }`:                           "why it failed",
		`func TestPanic(t *testing.T) { panic("what it met") }`:                                "what it met",
		`func TestUndefined(t *testing.T) { missing() }`:                                       "undefined: missing",
		`func TestInner(t *testing.T) { t.Run("a", func(t *testing.T) { t.Error("inner") }) }`: "inner",
	} {
		if _, printed := runTests(t, writeModule(t, body)); !strings.Contains(printed, want) || !strings.Contains(printed, "FAIL") {
			t.Errorf("%s: printed %q", body, printed)
		}
	}
}

func TestProgressIsPrintedWhenSilent(t *testing.T) {
	events, writer := io.Pipe()
	ticks := make(chan time.Time)
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ended := make(chan string)
	go func() {
		var w strings.Builder
		_, err := report(events, ticks, &progress{packages: 3, start: start}, &w)
		ended <- fmt.Sprint(w.String(), err)
	}()
	send := func(seconds int, action, pkg, test, output string) {
		text, _ := json.Marshal(event{start.Add(time.Duration(seconds) * time.Second), action, module + pkg, test, output})
		writer.Write(append(text, '\n'))
		writer.Write([]byte("{}\n")) // is read after the event was reported
	}
	tick := func(seconds int) { ticks <- start.Add(time.Duration(seconds) * time.Second) }
	tick(14)
	tick(15)
	send(16, "run", "host", "TestSlow", "")
	send(16, "run", "host", "TestSlow/part", "")
	send(17, "run", "host", "TestParallel", "")
	send(17, "pause", "host", "TestParallel", "")
	send(18, "run", "sim", "TestOther", "")
	tick(29)
	tick(30)
	send(31, "output", "sim", "", "ok sim\n")
	send(31, "pass", "sim", "", "")
	tick(44)
	tick(45)
	writer.Close()
	want := "0 of 3 packages, 15 s; running: the compiler\n" +
		"0 of 3 packages, 30 s; running: host TestSlow, sim TestOther\n" +
		"ok sim\n" +
		"1 of 3 packages, 45 s; running: host TestSlow\n<nil>"
	if got := <-ended; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
