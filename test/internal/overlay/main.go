// SPDX-License-Identifier: Apache-2.0

// Command overlay runs a go command on sources with all mutants. It is called in the root of
// the repository.
//
//	overlay build -tags mutants -o bin/troupe-mutants ./cmd/troupe
//	overlay vet -tags mutants ./...
//
// The file test/mutants/store/log.txt has the mutants of store/log.go, and so on. A row is a
// name, or several names, and a change of the source as in a diff:
//
//	@ unknown-taken-as-stored
//	 	stored, err := log.Settle(b)
//	+	stored = stored || mutant.On("unknown-taken-as-stored")
//
// A line that begins with a space stays, - deletes one, and + adds one. The lines with a space
// or - must be in the source exactly once, whole and in this order. Rows are applied from top
// to bottom; empty lines have no meaning. A mutant may need several rows, also in several files.
//
// The go command reads the changed sources from a temporary folder, by its flag -overlay. The
// checkout is not changed.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// folder has the rows, below the root of the repository.
const folder = "test/mutants"

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: overlay build|vet ARGUMENT...")
		os.Exit(2)
	}
	err := run(os.Args[1], os.Args[2:])
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		os.Exit(max(exit.ExitCode(), 1))
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs a go command in the current folder.
func run(command string, args []string) error {
	sources, err := mutated(os.DirFS("."))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	replace := map[string]string{}
	for path, text := range sources {
		original, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		replace[original] = filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		if err := os.WriteFile(replace[original], []byte(text), 0o600); err != nil {
			return err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return err
	}
	cmd := exec.Command("go", append([]string{command, "-overlay", overlay}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// mutated returns the source files that have mutants with all of them, by path. The error
// names each row that does not apply.
func mutated(root fs.FS) (sources map[string]string, err error) {
	sources = map[string]string{}
	var failed []error
	err = fs.WalkDir(root, folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(strings.TrimPrefix(path, folder+"/"), ".txt") + ".go"
		source, err := fs.ReadFile(root, name)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: its source cannot be read: %w", path, err))
			return nil
		}
		rows, err := parse(path, string(text))
		failed = append(failed, err)
		changed := string(source)
		for _, r := range rows {
			changed, err = r.apply(name, changed)
			failed = append(failed, err)
		}
		// In the line of the package clause the import changes no line number.
		sources[name] = packageClause.ReplaceAllString(changed, `$0; import "github.com/troupe-run/troupe/internal/mutant"`)
		return nil
	})
	return sources, errors.Join(append(failed, err)...)
}

var packageClause = regexp.MustCompile(`(?m)^package \w+`)

// A row changes one place of a source file.
type row struct {
	at            string // file, line and names
	before, after string
}

// parse returns the rows of a file.
func parse(path, text string) (rows []row, err error) {
	for i, line := range strings.Split(text, "\n") {
		names, isHead := strings.CutPrefix(line, "@ ")
		switch at := fmt.Sprintf("%s:%d: ", path, i+1); {
		case line == "":
		case isHead:
			rows = append(rows, row{at: at + names})
		case rows == nil || !strings.Contains(" -+", line[:1]):
			return nil, fmt.Errorf("%s%q begins neither a row (@ NAME) nor a line of one (space, - or +)", at, line)
		default:
			r := &rows[len(rows)-1]
			if line[0] != '+' {
				r.before += line[1:] + "\n"
			}
			if line[0] != '-' {
				r.after += line[1:] + "\n"
			}
		}
	}
	return rows, nil
}

// apply returns the source with the change of the row.
func (r row) apply(name, source string) (string, error) {
	lines, before := "\n"+source, "\n"+r.before // whole lines
	first := strings.Index(lines, before)
	problem := "does not have the lines of this row"
	switch {
	case r.before == "" || r.before == r.after:
		return source, fmt.Errorf("%s: a row needs a line of its source (space or -) and a change (- or +)", r.at)
	case first >= 0 && first == strings.LastIndex(lines, before):
		return source[:first] + r.after + source[first+len(r.before):], nil
	case first >= 0:
		problem = "has the lines of this row more than once"
	}
	return source, fmt.Errorf("%s: %s %s; adapt the row, or delete it with its line in sim/guards.go if the guard is gone:\n%s", r.at, name, problem, r.before)
}
