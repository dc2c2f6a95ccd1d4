// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Kind is a kind of expectation. The kinds are in the order of the table.
type Kind int

const (
	Holds    Kind = iota // the whole state space is searched and nothing is violated
	Violates             // the named property is violated
	Reaches              // the named Not_… is violated: the situation is reachable
)

// An Expectation is the result that a config requires of TLC.
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
	Name       string
	Module     string // part of the name before the first _
	Expect     Expectation
	Base       string   // name of the config this one is derived from; empty if it is a file
	Invariants []string // checked in each state, in this order
	Properties []string // checked on each step, or on whole behaviours
	Lines      []string // the file without its comment lines
}

// derivedName is the file that lists the derived configs, in the folder of the modules.
const derivedName = "derived.txt"

// ReadConfigs reads all configs of a folder: its files, which must hold, and those that its file
// derivedName derives from them. It returns them in the order of the table.
func ReadConfigs(dir string) ([]Config, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.cfg"))
	if err != nil {
		return nil, err
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
		configs = append(configs, c)
	}
	path := filepath.Join(dir, derivedName)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	derived, err := deriveAll(configs, string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	configs = append(configs, derived...)
	slices.SortFunc(configs, byExpectation)
	return configs, nil
}

// ParseConfig parses the file of a config that must hold.
func ParseConfig(name, text string) (Config, error) {
	c := Config{Name: name, Expect: Expectation{Kind: Holds}}
	var ok bool
	if c.Module, _, ok = strings.Cut(name, "_"); !ok {
		return c, fmt.Errorf("the name of a config must have the form Module_what.cfg")
	}
	for line := range strings.Lines(text) {
		switch line = strings.TrimRight(line, "\n"); {
		case strings.HasPrefix(line, `\* expect:`), strings.HasPrefix(line, `\* base:`):
			return c, fmt.Errorf("%s: the file of a config must hold; another result is a row of %s", line, derivedName)
		case !strings.HasPrefix(line, `\*`):
			c.Lines = append(c.Lines, line)
		}
	}
	if c.readProperties(); len(c.Invariants)+len(c.Properties) == 0 {
		return c, fmt.Errorf("no properties to check: neither INVARIANTS nor PROPERTIES")
	}
	if c.Value("Bug") != `"none"` {
		return c, fmt.Errorf(`the constant Bug is %s, want "none": a defect is a row of %s`, c.Value("Bug"), derivedName)
	}
	return c, nil
}

// readProperties reads the sections that list properties.
func (c *Config) readProperties() {
	c.Invariants, c.Properties = nil, nil
	var section *[]string
	for _, line := range c.Lines {
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
}

// deriveAll returns the configs of the rows of derivedName.
func deriveAll(bases []Config, text string) (all []Config, err error) {
	for line := range strings.Lines(text) {
		row := strings.Fields(line)
		if len(row) == 0 || row[0] == "#" {
			continue
		}
		if len(row) != 3 {
			return nil, fmt.Errorf("%q: want a name, a base and a change", strings.TrimSpace(line))
		}
		named := func(name string) func(Config) bool { return func(c Config) bool { return c.Name == name } }
		i := slices.IndexFunc(bases, named(row[1]))
		if i < 0 {
			return nil, fmt.Errorf("%s: no config is named %s", row[0], row[1])
		}
		if slices.ContainsFunc(slices.Concat(bases, all), named(row[0])) {
			return nil, fmt.Errorf("two configs are named %s", row[0])
		}
		c, err := bases[i].derive(row[0], row[2])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row[0], err)
		}
		all = append(all, c)
	}
	return all, nil
}

// derive returns the config with one change: a defect instead of the design, or a goal
// instead of the properties.
func (c Config) derive(name, change string) (Config, error) {
	d := Config{Name: name, Module: c.Module, Base: c.Name}
	what, ok := strings.CutPrefix(name, c.Module+"_")
	if !ok {
		return d, fmt.Errorf("its base %s is of another module", c.Name)
	}
	bug, isBug := strings.CutPrefix(change, "Bug=")
	switch {
	case isBug && strings.HasSuffix(what, "_broken"):
		property, _, _ := strings.Cut(what, "_")
		if !slices.Contains(slices.Concat(c.Invariants, c.Properties), property) {
			return d, fmt.Errorf("%s does not check %s", c.Name, property)
		}
		d.Expect = Expectation{Kind: Violates, Name: property}
		for _, line := range c.Lines {
			if strings.HasPrefix(line, "  Bug =") {
				line = "  Bug = " + strconv.Quote(bug)
			}
			d.Lines = append(d.Lines, line)
		}
		if d.Value("Bug") == c.Value("Bug") {
			return d, fmt.Errorf("%s removes no guard", change)
		}
	case (change == "INVARIANTS" || change == "PROPERTIES") && strings.HasPrefix(what, "Not_"):
		d.Expect = Expectation{Kind: Reaches, Name: what}
		d.Lines = c.linesWithProperties(change + " " + what)
	default:
		return d, fmt.Errorf("%s: want Bug=… for …_broken, INVARIANTS or PROPERTIES for …_Not_…", change)
	}
	d.readProperties()
	return d, nil
}

// linesWithProperties returns the lines with one section in place of those that list properties.
func (c Config) linesWithProperties(section string) (lines []string) {
	skipping, placed := false, false
	for _, line := range c.Lines {
		switch {
		case strings.HasPrefix(line, "INVARIANT") || strings.HasPrefix(line, "PROPERT"):
			if !placed {
				lines = append(lines, section)
			}
			skipping, placed = true, true
		case !skipping || !strings.HasPrefix(line, " "):
			skipping = false
			lines = append(lines, line)
		}
	}
	return lines
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
