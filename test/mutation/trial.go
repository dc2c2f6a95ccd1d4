// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A layer is one way to find a mutant.
type layer string

// The layers, in the order in which they run.
const (
	byWorlds     layer = "worlds"      // the first seeds
	byOwnTests   layer = "own tests"   // the tests of the mutant's package
	byAllTests   layer = "all tests"   // the tests of all other pure packages and of the simulator
	byMoreWorlds layer = "more worlds" // the following seeds
)

var layers = []layer{byWorlds, byOwnTests, byAllTests, byMoreWorlds}

const (
	worldsMax     = 300
	moreWorldsMax = 2000
	comparedSeeds = 20 // seeds whose hashes must equal those of the unchanged program
)

// testedPackages are the packages whose tests may find a mutant.
var testedPackages = slices.Concat(mutatedPackages, []string{"history", "specs", "specs/linear", "sim"})

// A trial runs the mutants of one draw.
type trial struct {
	tree    *tree
	dir     string // holds the build, the rows and what the seeds reach
	mutants []mutant
	rows    rows
	worlds  string            // path of the program that simulates
	tests   map[string]tested // by package
	reached map[uint64][]int  // numbers of the mutants that a seed evaluates
	report  func(format string, args ...any)
}

// A mutant is selected by its name in the environment variable MUTANT.
type mutant struct {
	name string
	dirs []string // folders of its packages
	site *site    // nil for a kept mutant
}

// tested is the test program of a package.
type tested struct {
	path string
	args []string
	cpu  time.Duration // limit of its processor time
}

// A version identifies the sources that decide about mutants.
type version struct{ program, tests string }

// fingerprint returns the version of the sources below root.
func fingerprint(root string) (version, error) {
	program, tests := sha256.New(), sha256.New()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", ".cache", "cmd", "host", "docs", "examples", "rapid"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".mod", ".sum", ".txt", ".json"}, filepath.Ext(path)) || strings.HasPrefix(rel, "test"+string(filepath.Separator)) {
			return nil
		}
		text, err := os.ReadFile(path)
		h := program
		if strings.HasSuffix(rel, "_test.go") || strings.Contains(rel, string(filepath.Separator)+"testdata"+string(filepath.Separator)) {
			h = tests
		}
		fmt.Fprintf(h, "%s %x\n", rel, sha256.Sum256(text))
		return err
	})
	return version{hex.EncodeToString(program.Sum(nil)), hex.EncodeToString(tests.Sum(nil))}, err
}

// build compiles the programs with all mutants of the draw, and checks that they behave
// like the unchanged program as long as no mutant is selected.
func (t *trial) build(ctx context.Context) error {
	overlay, err := t.tree.writeOverlay(t.dir, t.sites())
	if err != nil {
		return err
	}
	t.worlds = filepath.Join(t.dir, "worlds")
	unchanged := filepath.Join(t.dir, "worlds-unchanged")
	if err := t.compile(ctx, "build", "-overlay", overlay, "-o", t.worlds, "./test/mutation/worlds"); err != nil {
		return err
	}
	if err := t.compile(ctx, "build", "-o", unchanged, "./test/mutation/worlds"); err != nil {
		return err
	}
	want, err := t.evaluate(ctx, unchanged, numbers(1, comparedSeeds))
	if err != nil {
		return err
	}
	got, err := t.evaluate(ctx, t.worlds, numbers(1, comparedSeeds))
	if err != nil {
		return err
	}
	for i := range want {
		if got[i].Hash != want[i].Hash {
			return fmt.Errorf("seed %d has the hash %s with mutants, of which none is selected, and %s without", want[i].Seed, got[i].Hash, want[i].Hash)
		}
	}
	t.report("%d mutants in one build; without a selection, %d seeds have the hashes of the unchanged program", len(t.mutants), len(want))
	return nil
}

func (t *trial) sites() (all []*site) {
	for _, m := range t.mutants {
		all = append(all, m.site)
	}
	return all
}

func (t *trial) compile(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", slices.Insert(args, 1, "-tags", "mutants")...)
	cmd.Dir = t.tree.root
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, output)
	}
	return nil
}

// numbers returns the numbers from first to last.
func numbers(first, last uint64) (all []uint64) {
	for n := first; n <= last; n++ {
		all = append(all, n)
	}
	return all
}

// reach is a line of the output of worlds -reach.
type reach struct {
	Seed    uint64
	Mutants []int
	Hash    string
}

// evaluate simulates seeds without a mutant, and returns what each evaluates.
func (t *trial) evaluate(ctx context.Context, program string, seeds []uint64) ([]reach, error) {
	input, _ := json.Marshal(seeds)
	p := process{path: program, args: []string{"-reach", fmt.Sprint(len(t.mutants))}, dir: t.dir, stdin: bytes.NewReader(input), env: []string{"MUTANT="}}
	stdout, stderr, err := p.run(ctx, time.Hour)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, stderr)
	}
	var all []reach
	for d := json.NewDecoder(bytes.NewReader(stdout)); d.More(); {
		var r reach
		if err := d.Decode(&r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// measureReach finds out which mutants these seeds evaluate. A mutant that a seed does
// not evaluate cannot change its simulation. It continues where it stopped before.
func (t *trial) measureReach(ctx context.Context, seeds []uint64) error {
	path := filepath.Join(t.dir, "reach.json")
	if t.reached == nil {
		t.reached = map[uint64][]int{}
		if err := readLines(path, func(r reach) { t.reached[r.Seed] = r.Mutants }); err != nil {
			return err
		}
	}
	seeds = slices.DeleteFunc(slices.Clone(seeds), func(s uint64) bool { _, ok := t.reached[s]; return ok })
	const chunk = 50
	for part := range slices.Chunk(seeds, 2*chunk) {
		half := len(part) / 2
		type result struct {
			all []reach
			err error
		}
		other := make(chan result, 1)
		go func() {
			all, err := t.evaluate(ctx, t.worlds, part[:half])
			other <- result{all, err}
		}()
		all, err := t.evaluate(ctx, t.worlds, part[half:])
		first := <-other
		if err := errors.Join(err, first.err); err != nil {
			return err
		}
		for _, r := range slices.Concat(first.all, all) {
			t.reached[r.Seed] = r.Mutants
			if err := appendLine(path, r); err != nil {
				return err
			}
		}
		t.report("reach: seed %d", part[len(part)-1])
	}
	return nil
}

// runWorlds simulates those seeds that evaluate the mutant n, until one fails. The first
// seed after these is next; 0: the layer has no others.
func (t *trial) runWorlds(ctx context.Context, l layer, n int, seeds []uint64, next uint64) error {
	if t.mutants[n].site != nil {
		seeds = slices.DeleteFunc(slices.Clone(seeds), func(s uint64) bool { return !slices.Contains(t.reached[s], n) })
	}
	before := t.rows.all[t.mutants[n].name][l]
	r := row{Mutant: t.mutants[n].name, Layer: l, Reached: before.Reached + len(seeds), Worlds: before.Worlds, Next: next}
	start := time.Now()
	if len(seeds) > 0 {
		input, _ := json.Marshal(seeds)
		p := process{path: t.worlds, dir: t.dir, stdin: bytes.NewReader(input), env: []string{"MUTANT=" + t.mutants[n].name}}
		stdout, stderr, err := p.run(ctx, time.Hour)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var outcome struct {
			Worlds       int
			Seed         uint64
			Spec, Detail string
		}
		if err != nil {
			r.Killer = ended(stderr, err) // such as a stack overflow, which a simulation cannot survive
		} else if err := json.Unmarshal(stdout, &outcome); err != nil {
			return err
		} else if outcome.Spec != "" {
			r.Killer, r.Seed, r.Detail = outcome.Spec, outcome.Seed, firstLine(outcome.Detail)
		}
		r.Worlds += outcome.Worlds
	}
	if r.Killer != "" {
		r.Next = 0
	}
	r.Seconds = before.Seconds + time.Since(start).Seconds()
	return t.record(n, r)
}

// buildTests compiles the tests of a package and runs them without a mutant. Tests that
// fail so are left out.
func (t *trial) buildTests(ctx context.Context, dir string) (tested, error) {
	if p, ok := t.tests[dir]; ok {
		return p, nil
	}
	p := tested{path: filepath.Join(t.dir, strings.ReplaceAll(dir, "/", "_")+".test"), args: []string{"-test.failfast", "-test.timeout=30m"}}
	args := []string{"test", "-c", "-o", p.path, "./" + dir}
	if len(t.sites()) > 0 && t.mutants[0].site != nil {
		args = slices.Insert(args, 1, "-overlay", filepath.Join(t.dir, "overlay.json"))
	}
	if err := t.compile(ctx, args...); err != nil {
		return p, err
	}
	if usesRapid(filepath.Join(t.tree.root, dir)) {
		p.args = append(p.args, "-rapid.nofailfile", "-rapid.seed=1")
	}
	start := time.Now()
	for {
		cpu, failed, err := t.runTests(ctx, dir, p, "", time.Hour)
		if err != nil {
			return p, err
		}
		if failed == "" {
			p.cpu = 30*time.Second + 3*cpu
			break
		}
		t.report("%s: %s fails without a mutant and is left out", dir, failed)
		if !strings.HasPrefix(failed, "Test") || strings.Count(strings.Join(p.args, " "), "-test.skip") > 5 {
			return p, fmt.Errorf("the tests of %s do not pass without a mutant: %s", dir, failed)
		}
		if i := slices.IndexFunc(p.args, func(a string) bool { return strings.HasPrefix(a, "-test.skip=") }); i >= 0 {
			p.args[i] += "|^" + failed + "$"
		} else {
			p.args = append(p.args, "-test.skip=^"+failed+"$")
		}
	}
	t.report("tests of %s: %.1f s without a mutant", dir, time.Since(start).Seconds())
	t.tests[dir] = p
	return p, nil
}

// usesRapid reports whether a test in this folder has the flags of rapid.
func usesRapid(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	return slices.ContainsFunc(files, func(path string) bool {
		text, _ := os.ReadFile(path)
		return bytes.Contains(text, []byte(`"pgregory.net/rapid"`))
	})
}

var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (Test\w+)`)
var runningTest = regexp.MustCompile(`\.(Test\w+)\(`)

// runTests runs the tests of a package with a mutant. It returns the name of the first
// failed test, or the reason why the tests ended.
func (t *trial) runTests(ctx context.Context, dir string, p tested, mutant string, cpuMax time.Duration) (cpu time.Duration, failed string, err error) {
	start := time.Now()
	stdout, stderr, err := process{path: p.path, args: p.args, dir: filepath.Join(t.tree.root, dir), env: []string{"MUTANT=" + mutant}}.run(ctx, cpuMax)
	cpu = time.Since(start)
	if ctx.Err() != nil {
		return cpu, "", ctx.Err()
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return cpu, "", nil
	case !errors.As(err, &exit):
		return cpu, "", err
	}
	if m := failedTest.FindSubmatch(stdout); m != nil {
		return cpu, string(m[1]), nil
	}
	why := ended(append(stderr, stdout...), err)
	if m := runningTest.FindSubmatch(append(stderr, stdout...)); m != nil {
		return cpu, string(m[1]) + ": " + why, nil
	}
	return cpu, why, nil
}

// runTestsOf runs the tests of packages with the mutant n, until one fails.
func (t *trial) runTestsOf(ctx context.Context, l layer, n int, dirs []string) error {
	r := row{Mutant: t.mutants[n].name, Layer: l}
	start := time.Now()
	for _, dir := range dirs {
		p, err := t.buildTests(ctx, dir)
		if err != nil {
			return err
		}
		_, failed, err := t.runTests(ctx, dir, p, r.Mutant, p.cpu)
		if err != nil {
			return err
		}
		if failed != "" {
			r.Killer = dir + "." + failed
			break
		}
	}
	r.Seconds = time.Since(start).Seconds()
	return t.record(n, r)
}

// record keeps the outcome of a layer, and prints it.
func (t *trial) record(n int, r row) error {
	outcome := "survives"
	if r.Killer != "" {
		outcome = "found by " + r.Killer
	}
	if r.Next > 0 {
		outcome += " so far"
	}
	if r.Layer == byWorlds || r.Layer == byMoreWorlds {
		outcome += fmt.Sprintf(", %d of %d worlds", r.Worlds, r.Reached)
	}
	place := ""
	if s := t.mutants[n].site; s != nil {
		place = fmt.Sprintf("%s:%d %s", s.file.path, s.line(), s.operator)
	}
	t.report("%-12s %-10s %-40s %6.1f s  %s", r.Layer, r.Mutant, place, r.Seconds, outcome)
	return t.rows.add(r)
}

// portions returns the seeds of a layer in parts. Each part runs for every mutant before
// the next one, so that a trial that is stopped has measured all of them. A layer of tests
// has one part without seeds.
func portions(l layer) [][]uint64 {
	switch l {
	case byWorlds:
		return [][]uint64{numbers(1, 30), numbers(31, 100), numbers(101, worldsMax)}
	case byMoreWorlds:
		return [][]uint64{numbers(worldsMax+1, 600), numbers(601, 1200), numbers(1201, moreWorldsMax)}
	}
	return [][]uint64{nil}
}

// run runs one layer for every mutant for which it is not complete, the survivors of
// earlier layers first. If survivors is true, it runs for them alone.
func (t *trial) run(ctx context.Context, l layer, survivors bool) error {
	all := portions(l)
	for i, seeds := range all {
		next := uint64(0)
		if i+1 < len(all) {
			next = all[i+1][0]
		}
		if err := t.runPortion(ctx, l, seeds, next, survivors); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) runPortion(ctx context.Context, l layer, seeds []uint64, next uint64, survivors bool) error {
	order := numbers(0, uint64(len(t.mutants)-1))
	slices.SortStableFunc(order, func(a, b uint64) int {
		return cmp.Compare(min(1, len(t.foundBy(t.mutants[a], layers))), min(1, len(t.foundBy(t.mutants[b], layers))))
	})
	for _, n := range order {
		m := t.mutants[n]
		if t.rows.has(m.name, l) || !t.needs(m, l) || survivors && !t.survives(m) {
			continue
		}
		var err error
		switch l {
		case byWorlds, byMoreWorlds:
			if t.rows.all[m.name][l].Next > seeds[0] {
				continue
			}
			if m.site != nil {
				if err := t.measureReach(ctx, seeds); err != nil {
					return err
				}
			}
			err = t.runWorlds(ctx, l, int(n), seeds, next)
		case byOwnTests:
			err = t.runTestsOf(ctx, l, int(n), m.dirs)
		case byAllTests:
			err = t.runTestsOf(ctx, l, int(n), slices.DeleteFunc(slices.Clone(testedPackages), func(d string) bool { return slices.Contains(m.dirs, d) }))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// needs reports whether a layer is of interest: more worlds unless fewer find the
// mutant, all tests unless those of its package do.
func (t *trial) needs(m mutant, l layer) bool {
	switch l {
	case byMoreWorlds:
		return t.rows.killer(m.name, byWorlds) == ""
	case byAllTests:
		return t.rows.killer(m.name, byOwnTests) == "" && t.rows.killer(m.name, byWorlds) == ""
	}
	return true
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
