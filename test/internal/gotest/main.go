// SPDX-License-Identifier: Apache-2.0

// Command gotest runs go test and lists the skipped tests, each with its reason. When nothing was
// printed for 15 seconds, it prints which tests run.
//
//	gotest [-strict] [-accept 'PACKAGE TEST']... [-again FILE] -- ARGUMENT...
//
// The arguments are those of go test. With -strict it fails if a test was skipped that
// no -accept names. The package is given without the module's path. With -again at most three
// failed tests are run again, each alone and three times. If they pass, so does the run, and the
// file names them. Panics, data races and failures outside tests are final.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const module = "github.com/troupe-run/troupe/"

func main() {
	strict := flag.Bool("strict", false, "fail if a test is skipped that no -accept names")
	accepted := map[string]bool{}
	flag.Func("accept", "`package and test` that may be skipped", func(name string) error {
		if len(strings.Fields(name)) != 2 {
			return errors.New("want a package and a test")
		}
		accepted[name] = true
		return nil
	})
	again := flag.String("again", "", "run up to three failed tests again, and append those that then pass to the `file`")
	flag.Parse()
	if !*strict {
		accepted = nil
	}
	code, err := run(accepted, *again, flag.Args(), os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		code = 2
	}
	os.Exit(code)
}

func run(accepted map[string]bool, again string, args []string, w io.Writer) (code int, err error) {
	r, err := goTest(args, w)
	if err != nil {
		return 0, err
	}
	judged := judge(w, r.skipped, accepted)
	if !r.ok && again != "" {
		if r.ok, err = runAgain(r.failures, args, again, w); err != nil {
			return 0, err
		}
	}
	if !r.ok || !judged {
		code = 1
	}
	return code, nil
}

// result is what a run of go test ended with.
type result struct {
	ok       bool
	skipped  []skip
	failures failures
}

// goTest runs go test and prints what report does.
func goTest(args []string, w io.Writer) (r result, err error) {
	tests := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	tests.Stderr = os.Stderr
	out, err := tests.StdoutPipe()
	if err == nil {
		err = tests.Start()
	}
	if err != nil {
		return r, err
	}
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	r, err = report(out, ticks.C, &progress{packages: countPackages(args), start: time.Now()}, w)
	waited := tests.Wait()
	r.ok = waited == nil
	if err == nil && tests.ProcessState.ExitCode() < 0 {
		err = waited
	}
	return r, err
}

// event is a line of go test -json.
type event struct {
	Time                          time.Time
	Action, Package, Test, Output string
}

// testName returns package and test of an event.
func testName(e event) string { return strings.TrimPrefix(e.Package, module) + " " + e.Test }

// skip is a test that was skipped.
type skip struct{ name, reason string }

// report copies what plain go test would print from events to w, and at a tick the progress. It
// returns the skipped and the failed tests.
func report(events io.Reader, ticks <-chan time.Time, p *progress, w io.Writer) (r result, err error) {
	output := map[string][]string{} // output of each test that has not ended
	w = &lastWrite{w, p}
	scanned := make(chan string)
	go func() {
		lines := bufio.NewScanner(events)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			scanned <- lines.Text()
		}
		err = lines.Err()
		close(scanned)
	}()
	for {
		var line string
		var ok bool
		select {
		case now := <-ticks:
			if text := p.at(now); text != "" {
				fmt.Fprintln(w, text)
			}
			continue
		case line, ok = <-scanned:
		}
		if !ok {
			return r, err
		}
		var e event
		if json.Unmarshal([]byte(line), &e) != nil { // not all versions of go encode an error before the first test
			fmt.Fprintln(w, line)
			continue
		}
		p.add(e)
		r.failures.add(e)
		name := testName(e)
		switch {
		case e.Action == "build-output", e.Action == "output" && e.Test == "" && e.Output != "PASS\n":
			fmt.Fprint(w, e.Output)
		case e.Action == "output" && e.Test != "":
			output[name] = append(output[name], e.Output)
		case e.Action == "skip" && e.Test != "":
			r.skipped = append(r.skipped, skip{name, reason(output[name])})
			delete(output, name)
		case e.Action == "fail" && e.Test != "":
			fmt.Fprint(w, strings.Join(output[name], ""))
			delete(output, name)
		case e.Action == "pass":
			delete(output, name)
		}
	}
}

// reason returns the text that a skipped test printed, without the markers of go test.
func reason(output []string) string {
	output = slices.DeleteFunc(slices.Clone(output), func(line string) bool {
		line = strings.TrimSpace(line)
		return strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---")
	})
	return strings.Join(strings.Fields(strings.Join(output, " ")), " ")
}

// judge lists the skipped tests. It reports false if one of them is not accepted; a nil
// map accepts all.
func judge(w io.Writer, skipped []skip, accepted map[string]bool) bool {
	unexpected := 0
	for _, s := range skipped {
		mark := ""
		if accepted != nil && !accepted[s.name] {
			unexpected++
			mark = "unexpectedly "
		}
		fmt.Fprintf(w, "%sskipped: %s: %s\n", mark, s.name, s.reason)
	}
	fmt.Fprintf(w, "skipped: %d tests\n", len(skipped))
	if unexpected > 0 {
		fmt.Fprintf(w, "FAIL: %d tests were skipped that must run: install what they need, or accept the skip\n", unexpected)
	}
	return unexpected == 0
}
