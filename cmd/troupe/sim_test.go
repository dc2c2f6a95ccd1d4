// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/sim"
)

func runSim(t *testing.T, args ...string) (out, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	if code := run(append([]string{"sim", "--dir", t.TempDir()}, args...), streams{&o, &e}); code != 0 {
		t.Fatalf("troupe sim %v: exit code %d:\n%s%s", args, code, o.String(), e.String())
	}
	return o.String(), e.String()
}

var lastLine = regexp.MustCompile(`seed \d+ ok steps=\d+ calls=\d+ faults=\d+ hash=([0-9a-f]{64})\n$`)

func parseHash(t *testing.T, text string) string {
	t.Helper()
	m := lastLine.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("last line: want an ok line with a hash, got %q", text[max(0, len(text)-200):])
	}
	return m[1]
}

func TestSimSeedDeterminesHash(t *testing.T) {
	columns, _ := runSim(t, "--seed", "7")
	hash := parseHash(t, columns)
	if events, stderr := runSim(t, "--seed", "7", "--events"); parseHash(t, stderr) != hash {
		t.Errorf("seed 7: hash %s in columns, %s as events", hash, stderr)
	} else if again, err := sim.HashLog(strings.NewReader(events)); err != nil || again != hash {
		t.Errorf("hash of the events: %s (%v), want %s as in the last line", again, err, hash)
	}
	if other, _ := runSim(t, "--seed", "8"); parseHash(t, other) == hash {
		t.Error("seeds 7 and 8 have the same hash")
	}
	t.Setenv("SEED", "7")
	if env, _ := runSim(t); parseHash(t, env) != hash {
		t.Error("SEED=7 in the environment: want the hash of --seed 7")
	}
}

func TestSimPrintsRandomSeed(t *testing.T) {
	t.Setenv("SEED", "")
	os.Unsetenv("SEED")
	out, _ := runSim(t)
	first, _, _ := strings.Cut(out, "\n")
	seed, ok := strings.CutPrefix(first, "seed ")
	if !ok || !strings.Contains(out, "\n"+first+" ok ") {
		t.Fatalf("first line %q, last %q; want the same seed", first, out[max(0, len(out)-200):])
	}
	if again, _ := runSim(t, "--seed", seed); parseHash(t, again) != parseHash(t, out) {
		t.Errorf("seed %s has different hashes when drawn and when given", seed)
	}
}

// The simulated disk and Pebble produce the same history, including crashes.
func TestSimStoresAgree(t *testing.T) {
	out, _ := runSim(t, "--runs", "2", "--store", "pebble")
	if !strings.Contains(out, "2 seeds ok, 0 violations") || strings.Contains(out, "a crash and restart in 0\n") {
		t.Error(out)
	}
}

func TestSimFaultFlag(t *testing.T) {
	out, _ := runSim(t, "--runs", "4", "--faults", "none", "--fault", "NetworkDelay:0.5")
	for _, line := range strings.Split(out, "\n") {
		words := strings.Fields(line)
		if len(words) == 3 && words[0] == "fault" && (words[1] == "NetworkDelay") == (words[2] == "0") {
			t.Error(line)
		}
	}
	var o, e bytes.Buffer
	if code := run([]string{"sim", "--fault", "NetworkDelay"}, streams{&o, &e}); code != exitUsage || !strings.Contains(e.String(), "kind:probability") {
		t.Errorf("fault without probability: exit code %d, stderr %s", code, e.String())
	}
}

// Cells stepped directly and cells behind real mailboxes and supervision produce the
// same history, including panics.
func TestSimEnginesAgree(t *testing.T) {
	out, _ := runSim(t, "--runs", "4", "--engine", "proto")
	if !strings.Contains(out, "4 seeds ok, 0 violations") {
		t.Error(out)
	}
	if m := regexp.MustCompile(`point +cell restarted +(\d+)`).FindStringSubmatch(out); m == nil || m[1] == "0" {
		t.Errorf("want at least one restarted cell, got\n%s", out)
	}
	one, _ := runSim(t, "--seed", "7", "--engine", "proto")
	if direct, _ := runSim(t, "--seed", "7"); parseHash(t, one) != parseHash(t, direct) {
		t.Error("seed 7 has different hashes with the two engines")
	}
}

// Without a number of seeds, the budget ends the run, and the summary is printed.
func TestSimBudget(t *testing.T) {
	out, _ := runSim(t, "--budget", "300ms", "--twice", "0", "--seed", "1")
	m := regexp.MustCompile(`(\d+) steps of (\d+) seeds, 0 of them twice, in ([0-9.]+) s: .* simulated each second`).FindStringSubmatch(out)
	if m == nil || m[1] == "0" || m[2] == "0" {
		t.Fatalf("want a summary with seeds and rates, got\n%s", out)
	}
	if !regexp.MustCompile(`\d+ steps/s on each of \d+ cores, all specs on; the floor of 300000 is (met|missed)`).MatchString(out) {
		t.Error(out)
	}
	if once, _ := runSim(t, "--runs", "2", "--seed", "100", "--twice", "1"); !strings.Contains(once, " of 2 seeds, 1 of them twice") {
		t.Errorf("seeds 100 and 101: want one of them run twice, got\n%s", once)
	}
	for _, args := range [][]string{{"--budget=-1s"}, {"--runs=-1"}, {"--runs", "1", "--twice", "101"}, {"--registry", "on", "--plain"}, {"--runs", "2", "--events"}, {"--budget", "1s", "--html", "x.html"}} {
		var o, e bytes.Buffer
		if code := run(append([]string{"sim"}, args...), streams{&o, &e}); code != exitUsage || !strings.Contains(e.String(), "want") {
			t.Errorf("troupe sim %v: exit code %d, stderr %s", args, code, e.String())
		}
	}
}

// --registry decides for all seeds whether agents and keys are registered during
// the run.
func TestSimRegistry(t *testing.T) {
	plans := func(setting string, seeds int) (with, without int) {
		for seed := 0; seed < seeds && (setting != "drawn" || with == 0 || without == 0); seed++ {
			out, _ := runSim(t, "--registry", setting, "--seed", fmt.Sprint(seed+10), "--faults", "none")
			if strings.Contains(out, "troupe/registry") {
				with++
			} else {
				without++
			}
		}
		return with, without
	}
	if with, without := plans("on", 1); without > 0 {
		t.Errorf("on: %d of %d seeds have no registry", without, with+without)
	}
	if with, without := plans("off", 1); with > 0 {
		t.Errorf("off: %d of %d seeds have a registry", with, with+without)
	}
	if with, without := plans("drawn", 12); with == 0 || without == 0 {
		t.Errorf("drawn: %d seeds have a registry and %d none", with, without)
	}
}

// The command to rerun a seed has the flags of the original run.
func TestRerunCommand(t *testing.T) {
	for want, c := range map[string]SimCmd{
		"troupe sim --seed 7 --runs 1 --twice 100":                       {},
		"troupe sim --seed 7 --store pebble --faults none":               {Store: "pebble", Faults: "none"},
		"troupe sim --seed 7 --runs 1 --twice 100 --registry off":        {Registry: "off"},
		"troupe sim --project x --seed 7 --strategy uniform --fault a:1": {Project: "x", Strategy: "uniform", Fault: []string{"a:1"}},
	} {
		c.Store, c.Engine, c.Faults, c.Strategy, c.Registry = cmp.Or(c.Store, "memory"), cmp.Or(c.Engine, "direct"), cmp.Or(c.Faults, "drawn"), cmp.Or(c.Strategy, "drawn"), cmp.Or(c.Registry, "drawn")
		if got := c.rerunCommand(7); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// Two runs that differ leave a folder, and the command that repeats both is printed.
func TestNondeterminismPrintsRerunCommand(t *testing.T) {
	c := SimCmd{Store: "pebble", Engine: "direct", Faults: "drawn", Strategy: "drawn", Registry: "drawn", Dir: t.TempDir()}
	var out, stderr bytes.Buffer
	o := sim.Options{Seed: 2, Faultless: true}
	r := sim.RunTwice(o, sim.Options{Seed: 3, Faultless: true})
	err := c.reportFailure(&out, &stderr, o, r)
	dir, dirErr := sim.FailureDir(c.Dir, o, r)
	if err == nil || dirErr != nil || !strings.Contains(out.String(), "FAILED "+sim.Deterministic) || !strings.HasSuffix(out.String(), dir+" has the first log; troupe sim --seed 2 --store pebble runs both again\n") {
		t.Errorf("error %v, output %s", err, out.String())
	}
	out.Reset()
	if code := run([]string{"replay", dir}, streams{&out, &stderr}); code != exitFailed || !strings.Contains(stderr.String(), "two runs of this seed differed") {
		t.Errorf("replay: exit code %d: %s%s", code, out.String(), stderr.String())
	}
}

func TestSeedProgressLine(t *testing.T) {
	s := seedProgress{runs: 100}
	for seed := range uint64(10) {
		s.sum.Add(sim.Result{Seed: seed, Repeated: seed < 5, Stats: sim.Stats{Steps: 1000, Workload: time.Minute}})
	}
	want := "10 of 100 seeds, 0 failed, 5.0 seeds/s, 7500 steps/s, 7m30s simulated each second"
	if line := s.line(2 * time.Second); line != want {
		t.Errorf("got %s\nwant %s", line, want)
	}
	s.runs, s.budget = 0, 10*time.Minute
	if line := s.line(2 * time.Second); !strings.HasPrefix(line, "10 in 2s of 10m0s seeds") {
		t.Error(line)
	}
}

// Progress in a file is one line per minute.
func TestSeedProgressWithoutTerminal(t *testing.T) {
	var out bytes.Buffer
	s := newSeedProgress(&out, 100, 0)
	for after := range 250 {
		if !s.update(s.start.Add(time.Duration(after) * time.Second)) {
			t.Fatal("stopped without a budget")
		}
	}
	s.clear()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 || strings.ContainsAny(out.String(), "\r\033") || !strings.HasPrefix(lines[3], "0 of 100 seeds, 0 failed") {
		t.Errorf("want 4 lines, got %q", lines)
	}
}

// The totals of long simulations are printed even if they miss their minimum.
func TestSimLongPrintsTotals(t *testing.T) {
	for _, flag := range []string{"--registry=drawn", "--plain"} {
		testLongTotals(t, flag)
	}
}

func testLongTotals(t *testing.T, flag string) {
	t.Helper()
	out, _ := runSim(t, "--long", flag, "--runs", "1", "--seed", "7", "--twice", "0")
	m := regexp.MustCompile(`long worlds: (\S+) each on average \(at least 1h0m0s\), (\d+) steps each \(at least 10000\) and \S+ in all; 0 minutes without a client's request, 0 worlds with a tenth`).FindStringSubmatch(out)
	if m == nil || m[2] == "0" || !strings.HasPrefix(m[1], "1h") {
		t.Error(out)
	}
}
