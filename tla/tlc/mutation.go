// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const mutationsUsage = `usage: go run ./tla/tlc mutations [-n N] [-seed S] [-states N] [-limit D] [-list]

Changes the actions of the modules at random, one change at a time, and runs TLC on the
models with the fewest states, the smallest first, until one differs from its expectation.
tla/MUTATIONS.md must have a verdict on each survivor, unless few mutations are drawn. TLC
must catch at least 85 % of those that are not equivalent. A model that is not finished in time catches nothing.

  -n N         number of mutations (default 6)
  -seed S      seed of the draw (default 1)
  -states N    use only models of at most N states, by tla/RESULTS.md (default 18000)
  -limit D     maximum time for one model (default 1m)
  -list        print the mutations, run nothing

examples
  make tla ARGS='mutations -n 40 -seed 2'
`

const (
	mutationsFile   = "MUTATIONS.md"
	survivorPercent = 15 // maximum percentage of mutations that are not equivalent and that TLC does not catch
)

// A mutation is one change of a line of a module.
type mutation struct {
	module   string
	line     int // number of the changed line
	operator string
	was, is  string // the line before and after, without indentation
	text     string // the changed module
}

func (m mutation) String() string {
	return fmt.Sprintf("%s:%d %s: %s => %s", m.module, m.line, m.operator, m.was, m.is)
}

// class identifies the mutation in mutationsFile, also after lines have moved.
func (m mutation) class() string { return fmt.Sprintf("%s %s: %s", m.module, m.operator, m.was) }

// mutationOperators return all changes of a line. A guard is a conjunct that assigns no variable.
// The budgets of faults are no guards: they bound the model.
var mutationOperators = []struct {
	name  string
	apply func(line string, guard func(conjunct string) bool) []string
}{
	{"drop guard", func(line string, guard func(string) bool) []string {
		m := conjunctLine.FindStringSubmatch(line)
		if m == nil {
			return nil
		}
		var all []string
		parts := conjuncts(m[2])
		for i, p := range parts {
			if guard(p) && !strings.Contains(p, "Bug") {
				rest := slices.Delete(slices.Clone(parts), i, i+1)
				if len(rest) == 0 {
					rest = []string{"TRUE"}
				}
				all = append(all, m[1]+strings.Join(rest, " /\\ "))
			}
		}
		return all
	}},
	{"move bound", func(line string, _ func(string) bool) []string {
		return replaceEach(line, comparison, func(op string) string {
			return map[string]string{" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > "}[op]
		})
	}},
	{"omit message", func(line string, _ func(string) bool) []string {
		return replaceEach(line, messageSet, func(string) string { return "{}" })
	}},
	{"omit update", func(line string, _ func(string) bool) []string {
		if m := update.FindStringSubmatch(line); m != nil && m[3] != m[2] {
			return []string{m[1] + m[2] + "' = " + m[2] + m[4]}
		}
		return nil
	}},
	{"change step", func(line string, _ func(string) bool) []string {
		return replaceEach(line, increment, func(string) string { return "@" })
	}},
	{"swap Min and Max", func(line string, _ func(string) bool) []string {
		return replaceEach(line, extremum, func(op string) string { return map[string]string{"Min(": "Max(", "Max(": "Min("}[op] })
	}},
}

var (
	conjunctLine = regexp.MustCompile(`^(\s*(?:IN )?/\\ )([^/\\].*)$`)
	budget       = regexp.MustCompile(`\b(?:flt|crashes|Max[A-Z]\w*|Hurry)\b`)
	comparison   = regexp.MustCompile(` (?:<|<=|>|>=) `)
	messageSet   = regexp.MustCompile(`\{(?:Say|Msg|Req|Work|Ack|Probe|Ok)\([^{}]*\)\}`)
	update       = regexp.MustCompile(`^(\s*(?:IN )?/\\ )(\w+)' = (.+?)( /\\ \w+' = .+)?$`)
	increment    = regexp.MustCompile(`@ \+ 1`)
	extremum     = regexp.MustCompile(`\b(?:Min|Max)\(`)
)

// conjuncts splits an expression at its conjunctions, unless it has an operator that binds less.
func conjuncts(expr string) []string {
	depth, start := 0, 0
	var parts []string
	for i := range len(expr) {
		switch expr[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		}
		if depth == 0 && looser.MatchString(expr[i:]) {
			return []string{expr}
		}
		if depth == 0 && strings.HasPrefix(expr[i:], ` /\ `) {
			parts, start = append(parts, expr[start:i]), i+4
		}
	}
	return append(parts, expr[start:])
}

var looser = regexp.MustCompile(`^(?: => | \\/ |\bIF |\bCASE |\bLET |\\[AE] )`)

// replaceEach returns the lines in which one match of re is replaced.
func replaceEach(line string, re *regexp.Regexp, by func(string) string) []string {
	var all []string
	for _, at := range re.FindAllStringIndex(line, -1) {
		all = append(all, line[:at[0]]+by(line[at[0]:at[1]])+line[at[1]:])
	}
	return all
}

var (
	definition   = regexp.MustCompile(`^(\w+)(?:\([^)]*\))?\s*==`)
	lineComment  = regexp.MustCompile(`\s*\\\*.*$`)
	actionsBegin = regexp.MustCompile(`(?m)^Init\s*==`)
	actionsEnd   = regexp.MustCompile(`(?m)^(?:Quiet|Calm|Next)\s*==`)
)

// mutationsOf returns all mutations of the actions of a module: the definitions between Init and
// Next that span one line or have conjuncts of one line.
func mutationsOf(module, text string) []mutation {
	lines := strings.Split(text, "\n")
	begin, end := actionsBegin.FindStringIndex(text), actionsEnd.FindStringIndex(text)
	if begin == nil || end == nil {
		return nil
	}
	first, last := strings.Count(text[:begin[0]], "\n"), strings.Count(text[:end[0]], "\n")
	for first++; first < last && (lines[first] == "" || lines[first][0] == ' '); first++ {
	}
	actions := actionNames(lines)
	var all []mutation
	for i := first; i < last; i++ {
		line := lineComment.ReplaceAllString(lines[i], "")
		if strings.TrimSpace(line) == "" || continues(lines, i) || defectOnly.MatchString(line) || defectBranch.MatchString(lines[i-1]) {
			continue
		}
		guard := func(conjunct string) bool {
			return !strings.Contains(conjunct, "'") && !strings.Contains(conjunct, "UNCHANGED") && !budget.MatchString(conjunct) &&
				!slices.ContainsFunc(identifier.FindAllString(conjunct, -1), func(name string) bool { return actions[name] })
		}
		for _, op := range mutationOperators {
			if op.name != "drop guard" && budget.MatchString(line) {
				continue
			}
			for _, changed := range op.apply(line, guard) {
				mutated := slices.Clone(lines)
				mutated[i] = changed
				all = append(all, mutation{module, i + 1, op.name, strings.TrimSpace(line), strings.TrimSpace(changed), strings.Join(mutated, "\n")})
			}
		}
	}
	return all
}

// defectOnly matches a line that holds only with a defect, defectBranch one whose next line is
// reached only with a defect.
var (
	defectOnly   = regexp.MustCompile(`/\\ Bug = "\w+"`)
	defectBranch = regexp.MustCompile(`/\\ Bug = "\w+".*->$`)
)

var identifier = regexp.MustCompile(`\b[A-Za-z]\w*`)

// continues reports whether the expression of a line ends on a later line.
func continues(lines []string, i int) bool {
	indent := func(s string) int { return len(s) - len(strings.TrimLeft(s, " ")) }
	return i+1 < len(lines) && strings.TrimSpace(lines[i+1]) != "" && indent(lines[i+1]) > indent(lines[i]) && indent(lines[i]) > 0
}

// actionNames returns the operators that change the state, by themselves or through others.
func actionNames(lines []string) map[string]bool {
	bodies, name := map[string]string{}, ""
	for _, line := range lines {
		line = lineComment.ReplaceAllString(line, "")
		if m := definition.FindStringSubmatch(line); m != nil {
			name = m[1]
			line = line[len(m[0]):]
		}
		bodies[name] += line + "\n"
	}
	actions := map[string]bool{}
	for changed := true; changed; {
		changed = false
		for name, body := range bodies {
			if actions[name] {
				continue
			}
			if strings.Contains(body, "'") || strings.Contains(body, "UNCHANGED") ||
				slices.ContainsFunc(identifier.FindAllString(body, -1), func(n string) bool { return actions[n] }) {
				actions[name], changed = true, true
			}
		}
	}
	return actions
}

// drawMutations draws n different mutations: first a module, then an operator that applies to it,
// then a place.
func drawMutations(modules map[string]string, n int, seed uint64) ([]mutation, error) {
	pools := map[string]map[string][]mutation{}
	for _, module := range slices.Sorted(maps.Keys(modules)) {
		pools[module] = map[string][]mutation{}
		for _, m := range mutationsOf(module, modules[module]) {
			pools[module][m.operator] = append(pools[module][m.operator], m)
		}
	}
	r := rand.New(rand.NewPCG(seed, 0))
	var all []mutation
	for len(all) < n {
		if len(pools) == 0 {
			return nil, fmt.Errorf("want %d mutations, there are %d", n, len(all))
		}
		module := pick(r, slices.Sorted(maps.Keys(pools)))
		op := pick(r, slices.Sorted(maps.Keys(pools[module])))
		of := pools[module][op]
		i := r.IntN(len(of))
		if m := of[i]; m.defined() {
			all = append(all, m)
		}
		if of = slices.Delete(of, i, i+1); len(of) > 0 {
			pools[module][op] = of
		} else if delete(pools[module], op); len(pools[module]) == 0 {
			delete(pools, module)
		}
	}
	return all, nil
}

// defined reports whether the module defines the operator that the mutation adds, if it adds one.
func (m mutation) defined() bool {
	if m.operator != "swap Min and Max" {
		return true
	}
	return strings.Contains(m.text, "\nMin(") && strings.Contains(m.text, "\nMax(")
}

func pick(r *rand.Rand, of []string) string { return of[r.IntN(len(of))] }

// smallConfigs returns the configs of a module that hold and have at most statesMax states, those
// with the fewest first, and then the goals.
func smallConfigs(all []Config, found map[string]figures, module string, statesMax int) []Config {
	small := slices.DeleteFunc(slices.Clone(all), func(c Config) bool {
		return c.Module != module || c.Expect.Kind == Violates || found[rowKey(c)].distinct > statesMax
	})
	slices.SortStableFunc(small, func(a, b Config) int {
		if a.Expect.Kind != b.Expect.Kind {
			return int(a.Expect.Kind) - int(b.Expect.Kind)
		}
		return found[rowKey(a)].distinct - found[rowKey(b)].distinct
	})
	return small
}

func mutations(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("mutations", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), mutationsUsage) }
	n := flags.Int("n", 6, "")
	seed := flags.Uint64("seed", 1, "")
	statesMax := flags.Int("states", 18_000, "")
	limit := flags.Duration("limit", time.Minute, "")
	list := flags.Bool("list", false, "")
	if err := flags.Parse(args); err == flag.ErrHelp {
		return 0
	} else if err != nil {
		return 2
	}
	all, err := ReadConfigs(specDir)
	if err != nil {
		return fail(1, err)
	}
	found, err := readTable(filepath.Join(specDir, "RESULTS.md"))
	if err != nil {
		return fail(1, err)
	}
	texts := map[string]string{}
	for _, c := range all {
		if text, err := os.ReadFile(filepath.Join(specDir, c.Module+".tla")); err != nil {
			return fail(1, err)
		} else if small := smallConfigs(all, found, c.Module, *statesMax); len(small) > 0 && small[0].Expect.Kind == Holds {
			texts[c.Module] = string(text)
		}
	}
	drawn, err := drawMutations(texts, *n, *seed)
	if err != nil {
		return fail(1, err)
	}
	if *list {
		for _, m := range drawn {
			fmt.Println(m)
		}
		return 0
	}
	text, err := os.ReadFile(filepath.Join(specDir, mutationsFile))
	if err != nil {
		return fail(1, err)
	}
	java, jar, err := Checker(ctx, cacheDir)
	if err != nil {
		return fail(1, err)
	}
	checker := TLC{Java: java, Jar: jar, Dir: specDir, Limit: *limit}
	verdicts, errs := make([]string, *n), make([]error, *n)
	slots := make(chan struct{}, parallelRuns)
	var running sync.WaitGroup
	for i, m := range drawn {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			verdicts[i], errs[i] = checker.runMutation(ctx, m, smallConfigs(all, found, m.module, *statesMax))
			fmt.Printf("%3d %v\n    %s\n", i+1, m, cmp.Or(verdicts[i], "survives"))
		})
	}
	running.Wait()
	if err := cmp.Or(errs...); err != nil {
		return fail(1, err)
	}
	judged, caught, equivalent, unjudged := readVerdicts(string(text)), 0, 0, 0
	for i, m := range drawn {
		if verdicts[i] != "" {
			caught++
			continue
		}
		verdict := judgement(judged, m.class())
		switch verdict {
		case "":
			unjudged++
			verdict = "no verdict in tla/" + mutationsFile
		case "equivalent":
			equivalent++
		}
		fmt.Printf("survives: %v: %s\n", m, verdict)
	}
	fmt.Printf("%d mutations drawn with seed %d: %d caught; %d survive, %d of these equivalent and %d without a verdict\n",
		*n, *seed, caught, *n-caught, equivalent, unjudged)
	switch most := missesMax(*n-equivalent, survivorPercent); {
	case *n-caught-equivalent > most:
		return fail(1, fmt.Errorf("want at most %d survivors that are not equivalent", most))
	case unjudged > 0 && *n >= judgedFrom:
		return fail(1, fmt.Errorf("give each survivor a verdict in tla/%s, or add a property or a model that catches it", mutationsFile))
	}
	return 0
}

// runMutation returns the first deviation of a config from its expectation, or "" if no config
// catches the mutation.
func (t TLC) runMutation(ctx context.Context, m mutation, configs []Config) (string, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	dir, err := os.MkdirTemp("", "tlcmutation")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, os.DirFS(t.Dir)); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, m.module+".tla"), []byte(m.text), 0o644); err != nil {
		return "", err
	}
	t.Dir, t.Output = dir, dir
	for _, c := range configs {
		r := t.Run(ctx, c)
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if mismatch := r.Mismatch(); mismatch != "" && !strings.HasPrefix(mismatch, "not finished") {
			return c.Name + ": " + mismatch, nil
		}
	}
	return "", nil
}
