// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/troupe-run/troupe/sim"
)

// traced runs a world and writes its history to a file; to none if path is empty.
func traced(path string, o sim.Options, run func(sim.Options) sim.Result) (sim.Result, error) {
	if path == "" {
		return run(o), nil
	}
	f, err := os.Create(path)
	if err != nil {
		return sim.Result{}, err
	}
	out := bufio.NewWriter(f)
	o.Trace = out
	r := run(o)
	return r, errors.Join(out.Flush(), f.Close())
}

// tracedSeed is a seed's file in the folder of traces; empty if none is wanted.
func tracedSeed(dir string, seed uint64) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, fmt.Sprintf("seed-%d.ndjson", seed))
}

// tracedTwice is sim.RunTwice, whose first run is written down.
func tracedTwice(dir string, o, again sim.Options) sim.Result {
	r, err := traced(tracedSeed(dir, o.Seed), o, func(o sim.Options) sim.Result { return sim.RunTwice(o, again) })
	if err != nil {
		return sim.Result{Seed: o.Seed, Broken: &sim.Violation{Spec: "TraceWritten", Detail: err.Error()}}
	}
	return r
}
