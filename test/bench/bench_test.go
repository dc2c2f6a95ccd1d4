// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/runs"
)

// TestMain lets the test binary serve as the child process of a measurement.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == childFlag {
		os.Exit(runChild(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

// A quick run measures each row once on real components and fills all its columns.
func TestQuickRunMeasuresEveryRow(t *testing.T) {
	var out, stderr bytes.Buffer
	if code := run([]string{"-quick", "-json", "-dir", t.TempDir()}, &out, &stderr); code != 0 {
		t.Fatalf("code %d: %s", code, stderr.String())
	}
	var r result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if want := 30; len(r.Rows) != want && r.Machine.Cores > 1 {
		t.Errorf("got %d rows, want %d", len(r.Rows), want)
	}
	for _, row := range r.Rows {
		if row.Name == "" || row.Counterpart == "" || row.Ours.Unit == "" || row.Ours.Value == 0 {
			t.Errorf("incomplete row: %+v", row)
		}
		if row.Floor.Of == "ratio" && row.Ratio <= 0 {
			t.Errorf("%s: got ratio %v, want a positive one", row.Name, row.Ratio)
		}
	}
	if notes := r.Rows[slices.IndexFunc(r.Rows, func(r row) bool { return strings.HasPrefix(r.Name, "think-act loop, added to its tool, durable") })].notes(); !strings.Contains(notes, "recorded as events") || strings.Contains(notes, "not all") {
		t.Errorf("events of external calls: %s", notes)
	}
	if r.Machine.Go == "" || r.Machine.CPU == "" || r.Machine.MemoryGiB == 0 || r.Machine.Kernel == "" || r.Machine.Date == "" {
		t.Errorf("incomplete machine: %+v", r.Machine)
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"-help", 0, "Examples:"},
		{"-only ask,sums", 2, "no such study"},
		{"-rounds 4", 2, "want 5 to 101"},
		{"-sums", 2, "not defined"},
		{"ask", 2, "want flags only"},
		{"-page x.md -quick", 2, "a whole table"},
		{"-page x.md -only ask", 2, "a whole table"},
		{"-page none.md", 2, "no such file"},
		{"-page bench_test.go", 2, "want one section"},
	} {
		var out, stderr bytes.Buffer
		if code := run(strings.Fields(c.args), &out, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) || out.Len() > 0 {
			t.Errorf("%s: code %d, standard error %q, standard output %q", c.args, code, stderr.String(), out.String())
		}
	}
	if code := runChild("sums", "7"); code != 2 {
		t.Errorf("unknown population: got code %d, want 2", code)
	}
}

func TestRowVerdictUsesMedian(t *testing.T) {
	rounds := []roundCost{{ours: 100, theirs: 90}, {ours: 100, theirs: 210}, {ours: 100, theirs: 100}, {ours: 100, theirs: 110}, {ours: 1000, theirs: 10}}
	for _, c := range []struct {
		row  row
		want string
	}{
		{latencyRow("a", "x", rounds, ratioAtLeast(1)), "a|100 ns|100 ns|x|1.00|0.01 to 2.10|≥ 1.00|met"},
		{latencyRow("a", "x", rounds, ratioAtLeast(1.01)), "a|100 ns|100 ns|x|1.00|0.01 to 2.10|≥ 1.01|missed"},
		{latencyRow("a", "x", rounds, atMost(100)), "a|100 ns|100 ns|x|1.00|100 ns to 1.00 µs|≤ 100 ns|met"},
		{latencyRow("a", "x", rounds, atMost(99)), "a|100 ns|100 ns|x|1.00|100 ns to 1.00 µs|≤ 99.0 ns|missed"},
		{throughputRow("a", "x", rounds, floor{}), "a|10,000,000 /s|10,000,000 /s|x|1.00|0.01 to 2.10|–|"},
		{row{Name: "a", Counterpart: "none", Ours: figure{5, perSecond}, Floor: atLeast(5), Low: 4, High: 6}.withVerdict(), "a|5.00 /s|–|none|–|4.00 /s to 6.00 /s|≥ 5.00 /s|met"},
		{row{Name: "a", Counterpart: "none", Ours: figure{5, perSecond}, Floor: atLeast(6), Low: 4, High: 6}.withVerdict(), "a|5.00 /s|–|none|–|4.00 /s to 6.00 /s|≥ 6.00 /s|missed"},
	} {
		if got := strings.Join(c.row.cells(true), "|"); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestFigureFormat(t *testing.T) {
	for want, f := range map[string]figure{
		"–": {}, "0.00 B": {0, bytesEach}, "12.3 ns": {12.34, nanoseconds}, "1.23 µs": {1234, nanoseconds}, "12.3 ms": {12_340_000, nanoseconds},
		"300,000 /s": {300_000, perSecond}, "-1,234 B": {-1234, bytesEach}, "2.50×": {2.5, times}, "999 B": {999, bytesEach},
	} {
		if got := f.String(); got != want {
			t.Errorf("%+v: got %s, want %s", f, got, want)
		}
	}
}

func TestPageSection(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("prose\n<!-- bench:begin -->\n<!-- bench:end -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	one := latencyRow("one", "x", []roundCost{{ours: 1, theirs: 2, oursCPU: 3, theirsCPU: 4}}, ratioAtLeast(1))
	one.addNote("p50 %d", 7)
	r := result{Machine: thisMachine(), Rounds: 5, Took: 60, Rows: []row{one, latencyRow("two", "x", []roundCost{{ours: 2, theirs: 1}}, ratioAtLeast(1))}}
	if err := r.writePage(page); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"prose\n", "| one | 1.00 ns | 2.00 ns | x | 2.00 | 2.00 to 2.00 | ≥ 1.00 | met |", "- one: processor time ours 3.00 ns, counterpart 4.00 ns; p50 7.", "floors: 1 met, 1 missed: two"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the page does not contain %q:\n%s", want, b)
		}
	}
	var out bytes.Buffer
	if err := r.writeText(&out); err != nil || !strings.HasSuffix(out.String(), "\nfloors: 1 met, 1 missed: two\n") {
		t.Errorf("%v, wrong last line:\n%s", err, out.String())
	}
}

func TestMissingEventMissesFloor(t *testing.T) {
	for _, c := range []struct {
		started, done, created, result int64
		met                            bool
	}{{4, 4, 2, 2, true}, {3, 4, 2, 2, false}, {4, 3, 2, 2, false}, {4, 4, 1, 2, false}, {4, 4, 2, 1, false}, {4, 4, 1, 3, false}, {0, 0, 0, 0, false}} {
		r := row{Met: true}
		checkEventCounts(&r, map[runs.Type]int64{runs.LLMCallStarted: c.started, runs.LLMCallDone: c.done, runs.ToolCallCreated: c.created, runs.ToolResult: c.result, runs.RunDone: 9}, min(c.started+c.done, 4), min(c.created+c.result, 2))
		if r.Met != c.met {
			t.Errorf("%+v: got met %v: %s", c, r.Met, r.notes())
		}
	}
}

func TestProfileFiles(t *testing.T) {
	b := &bench{ctx: t.Context(), profile: t.TempDir(), quick: true, stderr: &bytes.Buffer{}}
	spun := 0
	if err := b.maybeProfile("Ask, 1 caller: {id}", func(n int) (time.Duration, error) { spun += n; return 0, nil }, 1000); err != nil {
		t.Fatal(err)
	}
	top, err := os.ReadFile(filepath.Join(b.profile, "ask-1-caller---id.txt"))
	if err != nil || !strings.Contains(string(top), "flat%") || spun == 0 {
		t.Errorf("%v: %s", err, top)
	}
	if info, err := os.Stat(filepath.Join(b.profile, "ask-1-caller---id.pprof")); err != nil || info.Size() == 0 {
		t.Errorf("empty or missing profile: %v", err)
	}
}

func TestAllocationComparison(t *testing.T) {
	expected := cost{10, 1000}
	for c, like := range map[cost]bool{{10, 1000}: true, {10, 1020}: true, {10, 980}: true, {10, 1021}: false, {10, 979}: false, {9, 1000}: false, {11, 1000}: false} {
		if c.matches(expected) != like {
			t.Errorf("%+v matches %+v: got %v", c, expected, !like)
		}
	}
}

func TestCallersShareOperations(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 1000} {
		performed := make([]int, 64)
		if _, err := runConcurrent(64, n, func(caller, i int) error { performed[caller]++; return nil }); err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, d := range performed {
			sum += d
		}
		if sum != n || slices.Max(performed)-slices.Min(performed) > 1 {
			t.Errorf("%d operations: uneven shares %v", n, performed)
		}
	}
	if _, err := runConcurrent(4, 100, func(caller, i int) error {
		if caller == 2 && i == 3 {
			return errLostMessage
		}
		return nil
	}); err != errLostMessage {
		t.Errorf("got error %v, want that of the caller", err)
	}
}

func TestLeavingSessions(t *testing.T) {
	keys := leavingSessions(2)
	if len(keys) != chainSessions {
		t.Fatalf("got %d sessions", len(keys))
	}
	for _, key := range keys {
		from := actor.NewID(hop(0), key)
		for l := range chainCalls {
			to := actor.NewID(hop(l+1), nextSession(from.Key))
			if dispatcher.ShardOf(from)%2 == dispatcher.ShardOf(to)%2 {
				t.Errorf("%s calls %s in its own cell", from, to)
			}
			from = to
		}
	}
	if leavingSessions(1) != nil {
		t.Error("got sessions across cells, want none with a single cell")
	}
}
