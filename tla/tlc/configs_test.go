// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/history"
)

const tla = "../../tla"

func configs(t *testing.T) []Config {
	t.Helper()
	all, err := ReadConfigs(tla)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(tla, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// modules returns the text of each module by name, without comments.
func modules(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, c := range configs(t) {
		if _, ok := texts[c.Module]; !ok {
			text := regexp.MustCompile(`\\\*.*`).ReplaceAllString(read(t, c.Module+".tla"), "")
			texts[c.Module] = regexp.MustCompile(`(?m)^\(\*.*\*\)$`).ReplaceAllString(text, "")
		}
	}
	return texts
}

func defines(module, name string) bool {
	return regexp.MustCompile(`(?m)^` + name + `\s*==`).MatchString(module)
}

// Every property checked by a config of the design is defined by its module and violated by some
// defect.
func TestEveryPropertyHasBrokenConfig(t *testing.T) {
	all, texts := configs(t), modules(t)
	broken := map[string]bool{"TypeOK": true} // the type invariant, needed by TLC only
	for _, c := range all {
		broken[c.Expect.Name] = true
	}
	for _, c := range all {
		if c.Expect.Kind == Violates {
			continue // checks the properties of its base
		}
		for _, name := range slices.Concat(c.Invariants, c.Properties) {
			if !defines(texts[c.Module], name) {
				t.Errorf("%s checks %s, which %s does not define", c.Name, name, c.Module)
			}
			if !broken[name] {
				t.Errorf("%s checks %s, which no broken config violates: it might be unable to fail", c.Name, name)
			}
		}
	}
}

// Every defect and every goal of a module has a config that finds it.
func TestEveryDefectAndGoalHasAConfig(t *testing.T) {
	quoted, uses := regexp.MustCompile(`"(\w+)"`), regexp.MustCompile(`Bug (?:=|#) "\w+"|Bug \\(?:not)?in \{[^}]*\}`)
	goal := regexp.MustCompile(`(?m)^(Not_\w+)\s*==`)
	for module, text := range modules(t) {
		var want, got []string
		for _, use := range uses.FindAllString(text, -1) {
			for _, m := range quoted.FindAllStringSubmatch(use, -1) {
				want = append(want, "the defect "+m[1])
			}
		}
		for _, m := range goal.FindAllStringSubmatch(text, -1) {
			want = append(want, "the goal "+m[1])
		}
		for _, c := range configs(t) {
			if c.Module != module {
				continue
			}
			switch c.Expect.Kind {
			case Violates:
				got = append(got, "the defect "+strings.Trim(c.Value("Bug"), `"`))
			case Reaches:
				got = append(got, "the goal "+c.Expect.Name)
			}
		}
		if len(want) == 0 {
			t.Errorf("%s: no defects and no goals found", module)
		}
		for _, w := range want {
			if !slices.Contains(got, w) {
				t.Errorf("%s has %s, for which there is no config", module, w)
			}
		}
		for _, g := range got {
			if !slices.Contains(want, g) {
				t.Errorf("a config expects %s, which %s does not have", g, module)
			}
		}
	}
}

// TLC does not name the violated liveness property. A liveness config therefore checks one
// property and nothing else. Its goals check one invariant.
func TestLivenessConfigsCheckOneProperty(t *testing.T) {
	for _, c := range configs(t) {
		if strings.HasSuffix(c.Lines[0], " Spec") {
			continue
		}
		one, none := c.Properties, c.Invariants
		if c.Expect.Kind == Reaches {
			one, none = none, one
		}
		if len(one) != 1 || len(none) != 0 {
			t.Errorf("%s checks %v and %v; want one of them", c.Name, c.Invariants, c.Properties)
		}
		if slices.ContainsFunc(c.Lines, func(l string) bool { return strings.HasPrefix(l, "SYMMETRY") || strings.HasPrefix(l, "VIEW") }) {
			t.Errorf("%s: symmetry and views are unsound for liveness", c.Name)
		}
	}
}

// Actions of the modules are kinds of history events. Names that exist on one side only are
// explained in tla/README.md.
func TestActionsAreHistoryKinds(t *testing.T) {
	readme := read(t, "README.md")
	explained := func(name string) bool { return regexp.MustCompile("(?m)^\\|[^|]*`" + name + "`").MatchString(readme) }
	call := regexp.MustCompile(`\b([A-Z]\w*)`)
	choice := regexp.MustCompile(`(?m)^(?:Calm|Move|Next) ==`) // beginning of the choice between all actions
	actions := map[string]bool{}
	for module, text := range modules(t) {
		start := choice.FindStringIndex(text)
		if start == nil {
			t.Fatalf("%s: no definition of Next", module)
		}
		next := text[start[1]:]
		next, _, _ = strings.Cut(next, "\nSpec ==")
		for _, m := range call.FindAllStringSubmatch(next, -1) {
			actions[m[1]] = actions[m[1]] || isAction(text, m[1])
		}
	}
	kinds := map[string]bool{}
	for _, k := range history.Kinds() {
		kinds[k.String()] = true
		if !actions[k.String()] && !explained(k.String()) {
			t.Errorf("history has %s; no module has an action of that name, and tla/README.md does not explain it", k)
		}
	}
	for name, isAction := range actions {
		if isAction && !choice.MatchString(name+" ==") && !kinds[name] && !explained(name) {
			t.Errorf("the modules have an action %s; history has no kind of that name, and tla/README.md does not explain it", name)
		}
	}
}

// isAction reports whether text defines name as a change of the state.
func isAction(text, name string) bool {
	m := regexp.MustCompile(`(?ms)^` + name + `(?:\([^)]*\))?\s*==.*?(?:\n\n|\z)`).FindString(text)
	return strings.Contains(m, "'") || strings.Contains(m, "UNCHANGED") || strings.Contains(m, "Tell(")
}

// The published tables list exactly the existing configs. The models have enough states for their
// results to be meaningful.
func TestResultsMatchConfigs(t *testing.T) {
	all := configs(t)
	found, err := readTable(filepath.Join(tla, "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	states := 0
	for _, c := range all {
		f, ok := found[rowKey(c)]
		if c.Expect.Kind == Holds {
			states += f.distinct
		}
		if !ok {
			t.Errorf("tla/RESULTS.md has no row for %s: run make tla ARGS='-run ^%s$ -write'", c.Name, c.Name)
		} else if (f.length == 0) != (c.Expect.Kind == Holds) {
			t.Errorf("%s %s, but its path has %d states", c.Name, c.Expect, f.length)
		}
		delete(found, rowKey(c))
	}
	for row := range found {
		t.Errorf("tla/RESULTS.md has a row without a config: %s", row)
	}
	if states < totalStatesMin {
		t.Errorf("%d distinct states in all models, want %d", states, totalStatesMin)
	}
}

// totalStatesMin is the minimum number of distinct states of all models together.
const totalStatesMin = 1_200_000

// The first line of the file of a config says what it explores.
func TestEveryConfigFileSaysWhatItExplores(t *testing.T) {
	for _, dir := range []string{tla, filepath.Join(tla, bigDir)} {
		paths, err := filepath.Glob(filepath.Join(dir, "*.cfg"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %v, %v", dir, paths, err)
		}
		for _, path := range paths {
			if text, err := os.ReadFile(path); err != nil || !regexp.MustCompile(`^\\\* [A-Z].{20}`).Match(text) {
				t.Errorf("%s does not begin with a comment, %v", path, err)
			}
		}
	}
}

// Every alias is defined in a module and explained in tla/README.md.
func TestReadmeNamesEveryAlias(t *testing.T) {
	readme := read(t, "README.md")
	for _, alias := range []string{"NoDeadlock", "SingleActivationDuringCall", "CallEventuallyCompletes", "callStack", "callState", "agentState", "MAX_DEPTH", "TIMEOUT_MS"} {
		found := false
		for _, text := range modules(t) {
			found = found || defines(text, alias)
		}
		if !found || !strings.Contains(readme, "`"+alias+"`") {
			t.Errorf("%s must be defined in a module and explained in tla/README.md", alias)
		}
	}
}

// An alias is its property under another name, and TLC checks the property in a model that must hold.
func TestAliasesAreCheckedProperties(t *testing.T) {
	for _, c := range []struct{ module, alias, property string }{
		{"Calls", "NoDeadlock", "AcyclicCalls"}, {"Calls", "CallEventuallyCompletes", "EveryCallEnds"}, {"Placement", "SingleActivationDuringCall", "SingleActivation"},
		{"Calls", "DepthBounded", "DepthBounded"}, {"Calls", "TypeOK", "TypeOK"}, {"Placement", "TypeOK", "TypeOK"},
	} {
		if c.alias != c.property && !regexp.MustCompile(`(?m)^`+c.alias+` == `+c.property+`$`).MatchString(modules(t)[c.module]) {
			t.Errorf("module %s does not define %s as %s", c.module, c.alias, c.property)
		}
		if !slices.ContainsFunc(configs(t), func(config Config) bool {
			return config.Module == c.module && config.Expect.Kind == Holds && slices.Contains(slices.Concat(config.Invariants, config.Properties), c.property)
		}) {
			t.Errorf("no config of %s in which %s must hold", c.module, c.property)
		}
	}
}

func TestIncompleteConfigsAreRejected(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"M_x": {"\\* expect: violates A\nCONSTANTS\n  Bug = \"none\"\nINVARIANTS A\n", "a row of derived.txt"},
		"M_y": {"CONSTANTS\n  Bug = \"late\"\nINVARIANTS A\n", `Bug is "late", want "none"`},
		"M_z": {"CONSTANTS\n  Bug = \"none\"\n", "no properties to check"},
		"M":   {"INVARIANTS A\n", "Module_what.cfg"},
	} {
		if _, err := ParseConfig(name, test.text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

const goodConfig = "\\* A comment.\nSPECIFICATION Spec\nCONSTANTS\n  Bug = \"none\"\nINVARIANTS A\n  B\nPROPERTY C\nSYMMETRY Sym\n"

func TestParseConfig(t *testing.T) {
	c, err := ParseConfig("Calls_x", goodConfig)
	if err != nil {
		t.Fatal(err)
	}
	if c.Module != "Calls" || c.Value("Bug") != `"none"` || c.Expect != (Expectation{Kind: Holds}) || len(c.Lines) != 7 ||
		!slices.Equal(c.Invariants, []string{"A", "B"}) || !slices.Equal(c.Properties, []string{"C"}) {
		t.Errorf("got %+v", c)
	}
}

// A derived config differs from its base in one guard, or in the properties that it checks.
func TestDerivedConfigs(t *testing.T) {
	base, err := ParseConfig("Calls_x", goodConfig)
	if err != nil {
		t.Fatal(err)
	}
	all, err := deriveAll([]Config{base}, "# comment\n#   Bug=x  more\n\nCalls_B_late_broken  Calls_x  Bug=late\nCalls_Not_D  Calls_x  INVARIANTS\nCalls_Not_E  Calls_x  PROPERTIES\n")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Config{
		{Name: "Calls_B_late_broken", Expect: Expectation{Violates, "B"}, Invariants: []string{"A", "B"}, Properties: []string{"C"},
			Lines: []string{"SPECIFICATION Spec", "CONSTANTS", `  Bug = "late"`, "INVARIANTS A", "  B", "PROPERTY C", "SYMMETRY Sym"}},
		{Name: "Calls_Not_D", Expect: Expectation{Reaches, "Not_D"}, Invariants: []string{"Not_D"},
			Lines: []string{"SPECIFICATION Spec", "CONSTANTS", `  Bug = "none"`, "INVARIANTS Not_D", "SYMMETRY Sym"}},
		{Name: "Calls_Not_E", Expect: Expectation{Reaches, "Not_E"}, Properties: []string{"Not_E"},
			Lines: []string{"SPECIFICATION Spec", "CONSTANTS", `  Bug = "none"`, "PROPERTIES Not_E", "SYMMETRY Sym"}},
	} {
		want.Module, want.Base = "Calls", "Calls_x"
		if !reflect.DeepEqual(all[i], want) {
			t.Errorf("got %+v\nwant %+v", all[i], want)
		}
	}
	for row, want := range map[string]string{
		"Calls_B_broken Calls_x":           "want a name, a base and a change",
		"Calls_B_broken Calls_y Bug=late":  "no config is named Calls_y",
		"Calls_x Calls_x Bug=late":         "two configs are named Calls_x",
		"Waits_B_broken Calls_x Bug=late":  "of another module",
		"Calls_D_broken Calls_x Bug=late":  "Calls_x does not check D",
		"Calls_B_late Calls_x Bug=late":    "for …_broken",
		"Calls_B_broken Calls_x INVARIANT": "INVARIANT: want Bug=…",
		"Calls_B_broken Calls_x Bug=none":  "removes no guard",
		"Calls_Not_D Calls_x Bug=late":     "Bug=late: want",
	} {
		if _, err := deriveAll([]Config{base}, row); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", row, err, want)
		}
	}
}

// Configs that take hours get a weaker check: they check properties of the design that their
// module defines, and expect them to hold.
func TestBigConfigsHold(t *testing.T) {
	all, err := ReadConfigs(filepath.Join(tla, bigDir))
	if err != nil {
		t.Fatal(err)
	}
	texts := modules(t)
	for _, c := range all {
		if c.Expect.Kind != Holds || c.Value("Bug") != `"none"` || texts[c.Module] == "" {
			t.Errorf("%s: a big config must hold, be of the design, and be of a module with small configs", c.Name)
		}
		for _, name := range slices.Concat(c.Invariants, c.Properties) {
			if !defines(texts[c.Module], name) {
				t.Errorf("%s checks %s, which %s does not define", c.Name, name, c.Module)
			}
		}
	}
}
