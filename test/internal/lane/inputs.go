// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// inputs are everything that the result of a lane depends on.
type inputs struct {
	programs []string   // packages that the lane builds, with and without the tag mutants
	tests    []string   // packages whose tests it runs
	files    []string   // patterns of other files, relative to the root
	tools    [][]string // commands that print the version of a tool
}

// lanes are the inputs of each lane that may be skipped.
var lanes = map[string]inputs{
	"tla": everyLane.with(inputs{programs: []string{"./tla/tlc"}, files: models, tools: java}),
	"trace": everyLane.with(inputs{programs: []string{"./tla/tlc"}, tests: []string{"./runtime", "./specs"},
		files: slices.Concat(models, []string{"runtime/testdata/*", "specs/testdata/*"}), tools: java}).with(mutants),
	"mutants": everyLane.with(mutants),
	"inert":   everyLane.with(mutants),
}

var (
	// everyLane are the inputs of every lane.
	everyLane = inputs{
		programs: []string{"./test/internal/lane"},
		files:    []string{".ci/run", "Makefile", "go.mod", "go.sum"},
		tools:    [][]string{{"go", "version"}, {"go", "env", "GOFLAGS", "GOEXPERIMENT", "GOWORK", "CGO_ENABLED"}},
	}
	// mutants are the inputs of the programs with and without mutants.
	mutants = inputs{programs: []string{"./cmd/troupe", "./test/internal/overlay"}, files: []string{"test/mutants/*/*.txt"}}

	models = []string{"tla/*.tla", "tla/*.cfg", "tla/derived.txt"}
	java   = [][]string{{"java", "-version"}}
)

func (i inputs) with(more inputs) inputs {
	return inputs{slices.Concat(i.programs, more.programs), slices.Concat(i.tests, more.tests),
		slices.Concat(i.files, more.files), slices.Concat(i.tools, more.tools)}
}

// hash returns a hash of the names and contents of all input files and of the versions of
// the tools.
func (i inputs) hash(ctx context.Context, root string) (string, error) {
	paths, err := i.paths(ctx, root)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	add := func(name string, content []byte) { fmt.Fprintf(sum, "%q %d\n%s\n", name, len(content), content) }
	for _, path := range paths {
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return "", err
		}
		add(path, content)
	}
	for _, tool := range i.tools {
		cmd := exec.CommandContext(ctx, tool[0], tool[1:]...)
		cmd.Dir = root
		version, err := cmd.CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%s: %w", strings.Join(tool, " "), err)
		}
		add(strings.Join(tool, " "), version)
	}
	if jar := os.Getenv("TLA2TOOLS_JAR"); jar != "" { // replaces the pinned version of TLC
		content, err := os.ReadFile(jar)
		if err != nil {
			return "", err
		}
		add("TLA2TOOLS_JAR", content)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}

// paths returns the sorted paths of all input files, relative to the root. A pattern without
// a file is an error.
func (i inputs) paths(ctx context.Context, root string) ([]string, error) {
	all := map[string]bool{}
	for _, pattern := range i.files {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("no file matches %s", pattern)
		}
		for _, path := range found {
			all[path] = true
		}
	}
	for _, build := range []struct{ flags, packages []string }{
		{[]string{"-deps"}, i.programs},
		{[]string{"-deps", "-tags", "mutants"}, i.programs},
		{[]string{"-deps", "-test"}, i.tests},
	} {
		if len(build.packages) == 0 {
			continue // go list would take the package of the root
		}
		sources, err := sourcesOf(ctx, root, slices.Concat(build.flags, build.packages))
		if err != nil {
			return nil, err
		}
		for _, path := range sources {
			all[path] = true
		}
	}
	absolute, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	var paths []string
	for path := range all {
		if filepath.IsAbs(path) {
			if path, err = filepath.Rel(absolute, path); err != nil {
				return nil, err
			}
		} else if path, err = filepath.Rel(root, path); err != nil {
			return nil, err
		}
		paths = append(paths, filepath.ToSlash(path))
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// listed is the part of the output of go list that identifies a package.
type listed struct {
	ImportPath, Dir string
	Standard        bool
	Module          *module
}

type module struct {
	Version string
	Replace *module
}

// sourceKinds are the fields of go list with the sources of a package.
const sourceKinds = "GoFiles,CgoFiles,CFiles,CXXFiles,MFiles,HFiles,FFiles,SFiles,SwigFiles,SwigCXXFiles,SysoFiles,EmbedFiles"

// sourcesOf returns the files that the go command compiles for the arguments of go list. Those
// of the standard library and of modules with a version are left out: the version of Go and
// go.sum identify them.
func sourcesOf(ctx context.Context, root string, args []string) (paths []string, err error) {
	// Without the choice of fields, the go command takes three times as long.
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,Standard,Module," + sourceKinds}, args...)...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for d := json.NewDecoder(bytes.NewReader(output)); d.More(); {
		var p listed
		var text json.RawMessage
		fields := map[string]json.RawMessage{}
		err := d.Decode(&text)
		if err == nil {
			err = json.Unmarshal(text, &p)
		}
		if err == nil {
			err = json.Unmarshal(text, &fields)
		}
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if p.Standard || p.Module != nil && p.Module.fixed() || strings.HasSuffix(p.ImportPath, ".test") {
			continue // a package ….test is generated
		}
		for kind := range strings.SplitSeq(sourceKinds, ",") {
			var names []string
			if content, ok := fields[kind]; ok {
				if err := json.Unmarshal(content, &names); err != nil {
					return nil, fmt.Errorf("go list: %s: %w", kind, err)
				}
			}
			for _, name := range names {
				paths = append(paths, filepath.Join(p.Dir, name))
			}
		}
	}
	return paths, nil
}

// fixed reports whether go.sum has the content of the module.
func (m *module) fixed() bool {
	return m.Version != "" && (m.Replace == nil || m.Replace.Version != "")
}
