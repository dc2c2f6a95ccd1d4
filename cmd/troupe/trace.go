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

// runTraced runs a simulation and writes its history to a file. An empty path
// disables the trace.
func runTraced(path string, o sim.Options, run func(sim.Options) sim.Result) (sim.Result, error) {
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

// tracePath returns the trace file of a seed; empty if dir is empty.
func tracePath(dir string, seed uint64) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, fmt.Sprintf("seed-%d.ndjson", seed))
}

// traceWritten is the spec reported as broken when a trace cannot be written.
const traceWritten = "TraceWritten"

// runTracedSeed runs a seed and traces its first simulation. A write error becomes a
// violation of traceWritten.
func runTracedSeed(dir string, o sim.Options, run func(sim.Options) sim.Result) sim.Result {
	r, err := runTraced(tracePath(dir, o.Seed), o, run)
	if err != nil {
		return sim.Result{Seed: o.Seed, Violation: &sim.Violation{Spec: traceWritten, Detail: err.Error()}}
	}
	return r
}
