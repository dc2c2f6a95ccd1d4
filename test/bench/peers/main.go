// SPDX-License-Identifier: Apache-2.0

// Command peers measures Troupe and other actor systems for Go on the same work, beside bare
// channels. It is a module of its own, so that no other module requires what it compares.
//
// All systems do the same in one process: they alternate for some rounds, each is the first one
// in turn, and garbage is collected before each. Memory is measured in a process for each. Two
// systems register the same names of Protobuf, which the linker flag of make bench-peers permits.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/troupe-run/troupe/internal/mdsection"
)

const (
	chainCalls  = 5  // calls between the actors of a chain
	parallel    = 64 // callers, actors and chains
	askTimeout  = 2 * time.Second
	sideTime    = 200 * time.Millisecond // duration of a system in a round
	memoryFlag  = "-child-measures"
	pageSection = "peers"
)

// text is the message of every call: the one of the table of calls.
const text = "which of these papers speak about flow control?"

// A peer is an actor system to be measured.
type peer struct {
	name   string
	module string // of its version; "": none
	lacks  string // what its call does not do, as a sentence
	start  func() (system, error)
}

// A system runs echo actors and chains of actors, each of which asks the next one. Each call has
// a time-out, unless the system has none.
type system interface {
	// spawn returns the function that calls a new echo actor, behind a number of actors that
	// pass the message on.
	spawn(name string, behind int) (func() error, error)
	close() error
}

// work is one row of the table.
type work struct {
	name            string
	callers, behind int
	actors          int
}

var works = []work{
	{"ask, 1 caller", 1, 0, 1},
	{"ask, 64 callers on 64 actors", parallel, 0, parallel},
	{"chain of 5 calls and back, 1 caller, 64 chains", 1, chainCalls, parallel},
}

var errReply = errors.New("the reply is not the message")

func main() {
	if len(os.Args) == 4 && os.Args[1] == memoryFlag {
		exit(printMemory(os.Args[2], os.Args[3]))
	}
	page := flag.String("page", "", "also write the table into its section of this `file`")
	rounds := flag.Int("rounds", 7, "`number` of rounds, of which the median counts")
	idle := flag.Int("idle", 100_000, "`number` of idle actors whose memory is measured")
	flag.Parse()
	if flag.NArg() > 0 || *rounds < 1 || *idle < 1 {
		exit(errors.New("want flags only, with numbers above 0"))
	}
	exit(run(os.Stdout, *page, *rounds, *idle))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(out io.Writer, page string, rounds, idle int) error {
	if page != "" {
		if _, err := mdsection.Text(page, pageSection); err != nil {
			return err
		}
	}
	head := fmt.Sprintf("Written by `make bench-peers` on %s at commit %s, with %s and %d processors; %d rounds.\n",
		time.Now().UTC().Format(time.DateOnly), mdsection.Commit(), runtime.Version(), runtime.GOMAXPROCS(0), rounds)
	table := "| what |"
	for _, p := range peers {
		table += " " + p.name + " |"
	}
	table += "\n|---|" + strings.Repeat("--:|", len(peers)) + "\n"
	for _, w := range works {
		cells, err := measure(w, rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		table += "| " + w.name + " | " + strings.Join(cells, " | ") + " |\n"
		fmt.Fprintln(os.Stderr, w.name, cells)
	}
	row := fmt.Sprintf("| an idle actor, of %d: heap and stack |", idle)
	for _, p := range peers {
		cell, err := memoryInChild(p.name, idle)
		if err != nil {
			return fmt.Errorf("memory of %s: %w", p.name, err)
		}
		row += " " + cell + " |"
	}
	text := head + "\n" + table + row + "\n\n" + versions()
	if _, err := io.WriteString(out, text); err != nil || page == "" {
		return err
	}
	return mdsection.Replace(page, pageSection, "\n"+text)
}

// versions returns a line for each peer: its version, and what its call does not do.
func versions() (lines string) {
	built, _ := debug.ReadBuildInfo()
	for _, p := range peers {
		name := "*" + p.name + "*"
		for _, d := range built.Deps {
			if p.module == d.Path {
				name += " " + d.Version
			}
		}
		lines += "- " + name + ": " + p.lacks + "\n"
	}
	return lines
}

// measure returns the cells of a row: the median time of a call, and the median of its ratio to
// that of bare channels, which are the first peer, in the same round.
func measure(w work, rounds int) ([]string, error) {
	calls, counts, cells := make([]func(n int) (time.Duration, error), len(peers)), make([]int, len(peers)), make([]string, len(peers))
	for i, p := range peers {
		s, err := p.start()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		defer s.close() //nolint:errcheck // nothing is kept
		var each []func() error
		for k := range w.actors {
			call, err := s.spawn(fmt.Sprintf("session-%d", k), w.behind)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			each = append(each, call)
		}
		calls[i] = func(n int) (time.Duration, error) { return concurrently(w.callers, n, each) }
		if counts[i], err = calibrate(calls[i]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %s: %v\n", p.name, w.name, err)
			cells[i] = "times out"
		}
	}
	took := make([][]float64, len(peers))
	for round := range rounds {
		for turn := range peers {
			i := (round + turn) % len(peers)
			if cells[i] != "" {
				continue
			}
			runtime.GC()
			d, err := calls[i](counts[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", peers[i].name, err)
			}
			took[i] = append(took[i], float64(d)/float64(counts[i]))
		}
	}
	for i := range peers {
		if cells[i] != "" {
			continue
		}
		cells[i] = duration(median(took[i]))
		if i > 0 {
			var ratios []float64
			for round, d := range took[i] {
				ratios = append(ratios, took[0][round]/d)
			}
			cells[i] += fmt.Sprintf(" (%.2f)", median(ratios))
		}
	}
	return cells, nil
}

// concurrently makes n calls with some callers, which take turns at the actors if there is one
// caller, and otherwise have an actor each.
func concurrently(callers, n int, each []func() error) (time.Duration, error) {
	var all sync.WaitGroup
	errs := make([]error, callers)
	began := time.Now()
	for c := range callers {
		all.Go(func() {
			for i := range (n + callers - 1) / callers {
				at := c
				if callers == 1 {
					at = i % len(each)
				}
				if errs[c] = each[at](); errs[c] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return time.Since(began), errors.Join(errs...)
}

// calibrate returns the number of calls that take about sideTime. Its calls also warm up.
func calibrate(call func(n int) (time.Duration, error)) (int, error) {
	for n := parallel; ; {
		took, err := call(n)
		if err != nil {
			return 0, err
		}
		fit := int(float64(n) * float64(sideTime) / float64(max(took, 1)))
		if took > sideTime/4 {
			return max(fit, parallel), nil
		}
		n = max(2*n, min(fit, 10*n))
	}
}

func memoryInChild(name string, n int) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	out, err := exec.Command(self, memoryFlag, name, strconv.Itoa(n)).Output()
	if err != nil {
		return "", err
	}
	var each float64
	if err := json.Unmarshal(out, &each); err != nil {
		return "", err
	}
	return fmt.Sprintf("%.0f B", each), nil
}

// printMemory prints the bytes of heap and stack of an actor that has answered one message.
func printMemory(name, count string) error {
	n, err := strconv.Atoi(count)
	at := slices.IndexFunc(peers, func(p peer) bool { return p.name == name })
	if err != nil || at < 0 {
		return fmt.Errorf("%s %s: want a system and a number", name, count)
	}
	s, err := peers[at].start()
	if err != nil {
		return err
	}
	call := func(from, to int) error {
		for i := from; i < to; i++ {
			ask, err := s.spawn(fmt.Sprintf("session-%016d", i), 0) // an ID of 24 bytes
			if err == nil {
				err = ask()
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := call(0, 1000); err != nil { // what a system makes once
		return err
	}
	before := inUse()
	if err := call(1000, 1000+n); err != nil {
		return err
	}
	each := float64(inUse()-before) / float64(n)
	fmt.Println(each)
	return s.close()
}

func inUse() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	return v[len(v)/2]
}

func duration(ns float64) string {
	if ns < 1000 {
		return fmt.Sprintf("%.0f ns", ns)
	}
	return fmt.Sprintf("%.2f µs", ns/1000)
}
