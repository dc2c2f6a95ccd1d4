// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A row is the outcome of one layer for one mutant.
type row struct {
	Mutant  string
	Layer   layer
	Killer  string  // spec, test, or reason why the program ended; "": the mutant survives
	Seed    uint64  // of the failed simulation
	Detail  string  // of the failed simulation
	Reached int     // number of seeds that evaluate the mutant
	Worlds  int     // number of simulations that ended
	Next    uint64  // first seed of the layer that is left; 0: the layer is complete
	Seconds float64 // wall-clock time
}

// rows is the file of outcomes. A trial that was stopped continues after its last row.
type rows struct {
	path string
	all  map[string]map[layer]row // by mutant
}

// openRows reads the rows in dir. It removes those of another draw or another program,
// and the outcomes of tests if the tests have changed.
func openRows(dir string, v version) (rows, error) {
	r := rows{path: filepath.Join(dir, "rows.json"), all: map[string]map[layer]row{}}
	versionPath := filepath.Join(dir, "version")
	text, err := os.ReadFile(versionPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	program, tests, _ := strings.Cut(string(text), "\n")
	if program != v.program {
		tests = ""
		if err := os.RemoveAll(dir); err != nil {
			return r, err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return r, err
		}
	}
	var all []row
	if err := readLines(r.path, func(one row) { all = append(all, one) }); err != nil {
		return r, err
	}
	if tests != v.tests {
		if err := os.WriteFile(r.path, nil, 0o644); err != nil {
			return r, err
		}
		for _, one := range all {
			if one.Layer == byWorlds || one.Layer == byMoreWorlds {
				if err := r.add(one); err != nil {
					return r, err
				}
			}
		}
		return r, os.WriteFile(versionPath, []byte(v.program+"\n"+v.tests), 0o644)
	}
	for _, one := range all {
		r.keep(one)
	}
	return r, nil
}

func (r *rows) keep(one row) {
	if r.all[one.Mutant] == nil {
		r.all[one.Mutant] = map[layer]row{}
	}
	r.all[one.Mutant][one.Layer] = one
}

func (r *rows) add(one row) error {
	r.keep(one)
	return appendLine(r.path, one)
}

// has reports whether the layer is complete for the mutant.
func (r *rows) has(mutant string, l layer) bool {
	one, ok := r.all[mutant][l]
	return ok && one.Next == 0
}

// killer returns the spec or test of the layer that finds the mutant, or "".
func (r *rows) killer(mutant string, l layer) string { return r.all[mutant][l].Killer }

// readLines passes each value of a file of JSON lines to keep. A file that does not exist
// has none. The last line may be incomplete.
func readLines[T any](path string, keep func(T)) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v T
		if json.Unmarshal(lines.Bytes(), &v) == nil {
			keep(v)
		}
	}
	return lines.Err()
}

func appendLine(path string, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s\n", line)
	return errors.Join(err, f.Close())
}
