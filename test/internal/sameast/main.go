// SPDX-License-Identifier: Apache-2.0

// Command sameast proves that the working tree differs from a commit in names and comments only.
//
// The Go code of both may differ in comments, formatting, the order of
// declarations and the names of local variables. A declaration may be in another
// file of its package. Every other difference is a finding unless the map lists it.
//
//	go run ./test/internal/sameast [-map FILE] [-text] [-allow GLOB]... BASE
//
// A map has one entry on each line. The package in the root has the folder ".",
// and # begins a comment.
//
//	sim.rareIn failpointPeriod      a package-level name
//	runtime.Cell.ring fireTimers    a field or a method
//	internal/load/ test/load/       a folder with the folders below it
//	host/old.go host/new.go         a file
//
// With -text, string literals may differ as well, except for their format verbs
// and for struct tags other than help. With -allow, matching files are left out.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// options are the parameters of a comparison.
type options struct {
	text  bool     // strings may differ
	allow []string // globs of files that are left out
	tags  []string // sets of build tags
}

func main() {
	o := options{tags: []string{"", "mutants", "race"}}
	mapFile := flag.String("map", "", "the `file` with renamed names and moved folders")
	flag.BoolVar(&o.text, "text", false, "permit changed string literals with the same format verbs")
	flag.Func("allow", "leave out the files that match `glob`; repeatable", func(glob string) error {
		o.allow = append(o.allow, glob)
		return nil
	})
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	r, err := run(flag.Arg(0), *mapFile, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sameast:", err)
		os.Exit(2)
	}
	fmt.Print(r)
	if len(r.findings) > 0 {
		os.Exit(1)
	}
}

// run compares the module in the working directory with its commit base.
func run(base, mapFile string, o options) (*report, error) {
	moves, err := readRenames(mapFile)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sameast")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	archive := filepath.Join(dir, "base.tar")
	if _, err := output("git", "archive", "-o", archive, base); err != nil {
		return nil, err
	}
	if _, err := output("tar", "-x", "-f", archive, "-C", dir); err != nil {
		return nil, err
	}
	return compareTrees(dir, ".", moves, o)
}

// output runs a command and returns its output.
func output(name string, args ...string) ([]byte, error) {
	var stderr strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, args[0], err, stderr.String())
	}
	return out, nil
}
