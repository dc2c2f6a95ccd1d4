// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Kind is a kind of expectation. The kinds are in the order of the table.
type Kind int

const (
	Holds    Kind = iota // the whole state space is searched and nothing is violated
	Violates             // the named property is violated
	Reaches              // the named Not_… is violated: the situation is reachable
)

// An Expectation is the result that the first line of a config requires of TLC.
type Expectation struct {
	Kind Kind
	Name string // name of the property or goal; empty for Holds
}

func (e Expectation) String() string {
	switch e.Kind {
	case Violates:
		return "violates " + e.Name
	case Reaches:
		return "reaches " + e.Name
	}
	return "holds"
}

// A Config is one run of TLC: a module, its constants and the properties to check.
type Config struct {
	Name       string // file name without .cfg
	Folder     string // folder of the file, relative to the folder passed to ReadConfigs: brokenDir or empty
	Module     string // part of the name before the first _
	Expect     Expectation
	Base       string   // file name of the config this one is derived from; empty if there is no base
	Invariants []string // checked in each state, in this order
	Properties []string // checked on each step, or on whole behaviours
	Lines      []string // the file without its comment lines
}

// ReadConfigs reads all configs of a folder and of its subfolder broken. It returns them in the
// order of the table.
func ReadConfigs(dir string) ([]Config, error) {
	var paths []string
	for _, pattern := range []string{"*.cfg", filepath.Join(brokenDir, "*.cfg")} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("no *.cfg in %s; run from the root of the repository", dir)
	}
	var configs []Config
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		c, err := ParseConfig(strings.TrimSuffix(filepath.Base(path), ".cfg"), string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if folder := filepath.Base(filepath.Dir(path)); folder == brokenDir {
			c.Folder = folder
		}
		if strings.HasSuffix(c.Name, "_broken") != (c.Folder == brokenDir) {
			return nil, fmt.Errorf("%s: configs named …_broken, and no others, belong in %s", path, filepath.Join(dir, brokenDir))
		}
		configs = append(configs, c)
	}
	slices.SortFunc(configs, byExpectation)
	return configs, nil
}

// ParseConfig parses a config: the comment lines for expectation and base, and the sections that
// list properties.
func ParseConfig(name, text string) (Config, error) {
	c := Config{Name: name}
	var ok bool
	if c.Module, _, ok = strings.Cut(name, "_"); !ok {
		return c, fmt.Errorf("the name of a config must have the form Module_what.cfg")
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	expect, ok := strings.CutPrefix(lines[0], `\* expect: `)
	if !ok {
		return c, fmt.Errorf(`the first line must be "\* expect: …"`)
	}
	switch words := strings.Fields(expect); {
	case len(words) == 1 && words[0] == "holds":
		c.Expect = Expectation{Kind: Holds}
	case len(words) == 2 && words[0] == "violates":
		c.Expect = Expectation{Kind: Violates, Name: words[1]}
	case len(words) == 2 && words[0] == "reaches" && strings.HasPrefix(words[1], "Not_"):
		c.Expect = Expectation{Kind: Reaches, Name: words[1]}
	default:
		return c, fmt.Errorf(`expect: got %q, want one of "holds", "violates Property", "reaches Not_Goal"`, expect)
	}

	var section *[]string
	for _, line := range lines {
		if base, ok := strings.CutPrefix(line, `\* base: `); ok {
			c.Base = base
		}
		if strings.HasPrefix(line, `\*`) {
			continue
		}
		c.Lines = append(c.Lines, line)
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "INVARIANT", "INVARIANTS":
			section, words = &c.Invariants, words[1:]
		case "PROPERTY", "PROPERTIES":
			section, words = &c.Properties, words[1:]
		default:
			if line[0] != ' ' {
				section = nil
			}
		}
		if section != nil {
			*section = append(*section, words...)
		}
	}
	if len(c.Invariants)+len(c.Properties) == 0 {
		return c, fmt.Errorf("no properties to check: neither INVARIANTS nor PROPERTIES")
	}
	if c.Expect.Kind != Holds && !slices.Contains(slices.Concat(c.Invariants, c.Properties), c.Expect.Name) {
		return c, fmt.Errorf("%s is expected but not checked", c.Expect.Name)
	}
	return c, nil
}

// Value returns the value the config assigns to a constant, as written in the config.
func (c Config) Value(constant string) string {
	for _, line := range c.Lines {
		if name, value, ok := strings.Cut(line, "="); ok && strings.TrimSpace(name) == constant {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
