// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// newTrial returns a trial of mutants of which the first ones are found by a layer.
func newTrial(t *testing.T, mutants int, found map[layer]int) *trial {
	t.Helper()
	f := &file{pkg: &pkg{dir: "p"}, path: "p/p.go", src: []byte("a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n")}
	tr := &trial{rows: rows{path: filepath.Join(t.TempDir(), "rows.json"), all: map[string]map[layer]row{}}}
	for n := range mutants {
		m := mutant{name: fmt.Sprintf("drawn:%d", n), dirs: []string{"p"}, site: &site{file: f, function: "f", operator: "statement", start: 2 * n, end: 2*n + 1, ordinal: 1}}
		tr.mutants = append(tr.mutants, m)
		for _, l := range layers {
			killer := ""
			if n < found[l] {
				killer = "ASpec"
			}
			if err := tr.rows.add(row{Mutant: m.name, Layer: l, Killer: killer}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return tr
}

func TestFloorsIgnoreEquivalentMutants(t *testing.T) {
	tr := newTrial(t, 10, map[layer]int{byWorlds: 6, byMoreWorlds: 8, byOwnTests: 9})
	var out strings.Builder
	if tr.print(&out, 1, judgements{}) {
		t.Errorf("90 %% of the mutants are found, and the floor of 95 %% is met:\n%s", &out)
	}
	verdicts := judgements{tr.mutants[9].site.key(): "equivalent: for this test"}
	out.Reset()
	if !tr.print(&out, 1, verdicts) {
		t.Errorf("every mutant but an equivalent one is found, and a floor is missed:\n%s", &out)
	}
	verdicts[tr.mutants[8].site.key()] = "equivalent: although it is found"
	out.Reset()
	tr.print(&out, 1, verdicts)
	if !strings.Contains(out.String(), "drawn:8 is found by ASpec: remove it from "+judgementsPath) {
		t.Errorf("no line about a found mutant with a verdict:\n%s", &out)
	}
	out.Reset()
	few := newTrial(t, 10, map[layer]int{byWorlds: 5, byOwnTests: 10})
	if few.print(&out, 1, judgements{}) {
		t.Errorf("5 of 10 mutants are found by worlds alone:\n%s", &out)
	}
	for _, m := range few.mutants {
		if delete(few.rows.all[m.name], byMoreWorlds); few.foundBy(m, []layer{byWorlds}) == "" {
			delete(few.rows.all[m.name], byWorlds)
		}
	}
	out.Reset()
	if !few.print(&out, 1, judgements{}) || strings.Count(out.String(), "at least") != 2 {
		t.Errorf("the shares of incomplete layers are judged:\n%s", &out)
	}
}

func TestRowsContinueInTheSameVersion(t *testing.T) {
	dir := t.TempDir()
	r, err := openRows(dir, version{"v1", "t1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.add(row{Mutant: "drawn:3", Layer: byWorlds, Killer: "ASpec"}); err != nil {
		t.Fatal(err)
	}
	if err := r.add(row{Mutant: "drawn:3", Layer: byAllTests, Killer: "TestA"}); err != nil {
		t.Fatal(err)
	}
	if r, err = openRows(dir, version{"v1", "t1"}); err != nil || r.killer("drawn:3", byWorlds) != "ASpec" || r.killer("drawn:3", byAllTests) != "TestA" || r.has("drawn:3", byOwnTests) {
		t.Errorf("reopened: %v, %v", r.all, err)
	}
	for range 2 {
		if r, err = openRows(dir, version{"v1", "t2"}); err != nil || r.killer("drawn:3", byWorlds) != "ASpec" || r.has("drawn:3", byAllTests) {
			t.Errorf("with other tests, only the outcomes of worlds hold: %v, %v", r.all, err)
		}
	}
	if r, err = openRows(dir, version{"v2", "t2"}); err != nil || r.has("drawn:3", byWorlds) {
		t.Errorf("rows of other sources are kept: %v, %v", r.all, err)
	}
}

// A layer of worlds that was stopped between two parts is not complete.
func TestPortionsCoverTheirLayer(t *testing.T) {
	for l, want := range map[layer][]uint64{byWorlds: numbers(1, worldsMax), byMoreWorlds: numbers(worldsMax+1, moreWorldsMax), byOwnTests: nil} {
		if got := slices.Concat(portions(l)...); !slices.Equal(got, want) || len(portions(l)) == 0 {
			t.Errorf("%s: got seeds %v, want %v", l, got, want)
		}
	}
	tr := newTrial(t, 1, nil)
	m := tr.mutants[0]
	if err := tr.rows.add(row{Mutant: m.name, Layer: byWorlds, Next: 31}); err != nil {
		t.Fatal(err)
	}
	if tr.measured(m, []layer{byWorlds}) || !tr.measured(m, []layer{byOwnTests}) {
		t.Error("a layer with seeds left counts as complete")
	}
}

// A test changes the version of the tests, and a source file that of both.
func TestVersionsFollowTheirSources(t *testing.T) {
	root := writeModule(t, "package p\n")
	write := func(path string) version {
		if err := writeIfChanged(filepath.Join(root, path), []byte("package p // changed")); err != nil {
			t.Fatal(err)
		}
		v, err := fingerprint(root)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	first := write("docs/p.go")
	if second := write("p/p_test.go"); second.program != first.program || second.tests == first.tests {
		t.Errorf("a changed test: %v, then %v", first, second)
	}
	if third := write("p/testdata/a.txt"); third.program != first.program {
		t.Errorf("a changed file for tests: %v, then %v", first, third)
	}
	if last := write("p/p.go"); last.program == first.program {
		t.Errorf("a changed program keeps the version %v", last)
	}
}

func TestJudgementsAreChecked(t *testing.T) {
	read := func(text string) (judgements, error) {
		path := filepath.Join(t.TempDir(), "survivors.txt")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return readJudgements(path)
	}
	const key = "p.f\tstatement\ta\t"
	for _, bad := range []string{key + "\n", key + "\tequivalent\n", key + "\tequivalent: \n", "p.f\topen\n", key + "\topen\n" + key + "\topen\n"} {
		if all, err := read(bad); err == nil {
			t.Errorf("%q is read as %v", bad, all)
		}
	}
	all, err := read("# comment\n" + key + "\topen\np.g\tguard\tx\ty\tequivalent: a reason\n")
	if err != nil {
		t.Fatal(err)
	}
	s := newTrial(t, 1, nil).mutants[0].site
	if s.key() != key {
		t.Fatalf("key %q", s.key())
	}
	if stale := all.stale(map[string][]*site{"statement": {s}}); len(stale) != 1 || stale[0] != "p.g\tguard\tx\ty" {
		t.Errorf("stale: %q", stale)
	}
}

// The file of the repository can be read.
func TestSurvivorsFile(t *testing.T) {
	if _, err := readJudgements("survivors.txt"); err != nil {
		t.Error(err)
	}
}

// A mutant that computes or allocates without end does not outlive its limit. Reserved
// addresses that hold no memory, which a browser needs, are not limited.
func TestProcessLimits(t *testing.T) {
	const limit = memoryMaxKB << 10
	switch os.Getenv("MUTANT") {
	case "endless":
		for n := 0; ; n++ {
			_ = n
		}
	case "greedy":
		t.Fatal(len(make([]byte, limit)))
	case "reserving":
		if _, err := syscall.Mmap(-1, 0, 2*limit, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE); err != nil {
			t.Fatal(err)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := process{path: self, args: []string{"-test.run=^TestProcessLimits$"}, env: []string{"MUTANT=endless"}}
	_, stderr, err := p.run(context.Background(), 0)
	if !errors.Is(err, errEndless) || ended(stderr, err) != errEndless.Error() {
		t.Errorf("an endless program ends with %v: %s", err, stderr)
	}
	p.env[0] = "MUTANT=greedy"
	_, stderr, err = p.run(context.Background(), time.Minute)
	// The race detector reserves its shadow of the memory first, and ends the program itself.
	detector := strings.Contains(string(stderr), "ThreadSanitizer failed to allocate")
	if !detector && !strings.Contains(ended(stderr, err), "out of memory") {
		t.Errorf("a program that allocates %d bytes ends with %v: %s", limit, err, stderr)
	}
	p.env[0] = "MUTANT=reserving"
	if stdout, stderr, err := p.run(context.Background(), time.Minute); err != nil {
		t.Errorf("a program that reserves addresses ends with %v: %s%s", err, stdout, stderr)
	}
}

func TestParse(t *testing.T) {
	at := time.Date(2026, 5, 4, 23, 0, 0, 0, time.UTC)
	c, err := parse([]string{"-seed", "today", "-layers", "worlds,own tests"}, at)
	if err != nil || c.seed != 20260504 || len(c.layers) != 2 || c.layers[1] != byOwnTests {
		t.Errorf("got %+v, %v", c, err)
	}
	for _, bad := range [][]string{{"-seed", "x"}, {"-draw", "0"}, {"-draw", "1001"}, {"-layers", "none"}, {"more"}} {
		if c, err := parse(bad, at); err == nil {
			t.Errorf("%q is parsed as %+v", bad, c)
		}
	}
}
