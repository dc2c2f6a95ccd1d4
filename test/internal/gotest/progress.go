// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// silenceMax is the longest time without a line of output.
const silenceMax = 15 * time.Second

// runningShown is the number of running tests that a line of progress names.
const runningShown = 3

// progress is the state of a run of go test.
type progress struct {
	packages int // 0 if unknown
	done     int
	start    time.Time
	now      time.Time            // last tick
	printed  time.Time            // last output
	running  map[string]time.Time // start of each test by package and name; subtests and paused tests are left out
}

func (p *progress) add(e event) {
	switch e.Action {
	case "run", "cont":
		if p.running == nil {
			p.running = map[string]time.Time{}
		}
		if !strings.Contains(e.Test, "/") {
			p.running[testName(e)] = e.Time
		}
	case "pause":
		delete(p.running, testName(e))
	case "pass", "fail", "skip":
		delete(p.running, testName(e))
		if e.Test == "" {
			p.done++
			maps.DeleteFunc(p.running, func(name string, _ time.Time) bool { // tests of a package that crashed
				return strings.HasPrefix(name, testName(e))
			})
		}
	}
}

// at returns the line of progress to be printed, or "" if there was output a short time ago.
func (p *progress) at(now time.Time) string {
	p.now = now
	if now.Sub(p.start) < silenceMax || now.Sub(p.printed) < silenceMax {
		return ""
	}
	oldest := slices.SortedFunc(maps.Keys(p.running), func(a, b string) int {
		return cmp.Or(p.running[a].Compare(p.running[b]), cmp.Compare(a, b))
	})
	tests := strings.Join(oldest[:min(len(oldest), runningShown)], ", ")
	return fmt.Sprintf("%d of %d packages, %.0f s; running: %s", p.done, max(p.packages, p.done), now.Sub(p.start).Seconds(), cmp.Or(tests, "the compiler"))
}

// lastWrite notes the time of the last output.
type lastWrite struct {
	io.Writer
	p *progress
}

func (w *lastWrite) Write(b []byte) (int, error) {
	w.p.printed = w.p.now
	return w.Writer.Write(b)
}

// isPath reports whether an argument of go test is a path.
func isPath(arg string) bool { return strings.HasPrefix(arg, ".") }

// countPackages returns the number of packages of arguments of go test that are paths, 0 if unknown.
func countPackages(args []string) int {
	paths := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return !isPath(arg) })
	out, err := exec.Command("go", append([]string{"list"}, paths...)...).Output()
	if err != nil {
		return 0 // go test reports it
	}
	return strings.Count(string(out), "\n")
}
