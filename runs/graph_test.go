// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var dotFile = flag.String("dot", "", "state graph of tla/Work_graph.cfg as dumped by TLC; rewrites testdata/work_edges.txt")

const (
	edgesFile = "testdata/work_edges.txt"
	absent    = "none" // state of a run, tool call or approval that does not exist yet
)

// tableEdges returns the transitions that a table allows, as "machine from -> to".
// It queries every pair of states, including invalid ones.
func tableEdges[S interface {
	~uint8
	String() string
}](machine string, states []S, transition func(from, to S) error) []string {
	all := append([]S{0}, append(states, S(len(states)+1), 255)...)
	name := func(s S) string {
		if s == 0 {
			return absent
		}
		return s.String()
	}
	var edges []string
	for _, from := range all {
		for _, to := range all {
			if transition(from, to) == nil {
				edges = append(edges, fmt.Sprintf("%s %s -> %s", machine, name(from), name(to)))
			}
		}
	}
	return edges
}

// TestTransitionsMatchModel compares the tables with the transitions of runs, tool
// calls and approvals that TLC found in the model. Both graphs MUST be equal.
func TestTransitionsMatchModel(t *testing.T) {
	sum := hashFiles(t, "../tla/Work.tla", "../tla/Work_graph.cfg")
	if *dotFile != "" {
		text := "model " + sum + "\n" + strings.Join(transitionsOf(t, readFile(t, *dotFile)), "\n") + "\n"
		if err := os.WriteFile(edgesFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	head, rest, _ := strings.Cut(strings.TrimRight(readFile(t, edgesFile), "\n"), "\n")
	if head != "model "+sum {
		t.Errorf("%s belongs to another model; tla/README.md describes how to regenerate it", edgesFile)
	}
	model := strings.Split(rest, "\n")
	tables := slices.Concat(tableEdges("run", Statuses(), Transition), tableEdges("tool", ToolStatuses(), ToolTransition),
		tableEdges("approval", ApprovalStatuses(), ApprovalTransition))
	slices.Sort(tables)
	for _, edge := range tables {
		if !slices.Contains(model, edge) {
			t.Errorf("transition in the tables, but not in the model: %s", edge)
		}
	}
	for _, edge := range model {
		if !slices.Contains(tables, edge) {
			t.Errorf("transition in the model, but not in the tables: %s", edge)
		}
	}
	if !slices.IsSorted(model) || len(slices.Compact(slices.Clone(model))) != len(tables) {
		t.Errorf("%d transitions in the tables, %d in %s", len(tables), len(model), edgesFile)
	}
}

var (
	node     = regexp.MustCompile(`(?m)^(-?\d+) \[label="(.*?)"(?:,style = filled)?\];?$`)
	step     = regexp.MustCompile(`(?m)^(-?\d+) -> (-?\d+)`)
	variable = regexp.MustCompile(`/\\\\ (\w+) = `)
	status   = regexp.MustCompile(`st \|-> \\"(\w+)\\"`)
	quoted   = regexp.MustCompile(`\\"(\w+)\\"`)
)

// transitionsOf reduces TLC's state graph to the transitions of each run, tool
// call and approval.
func transitionsOf(t *testing.T, text string) []string {
	t.Helper()
	type state struct {
		run        string
		tool, appr []string
	}
	states := map[string]state{}
	for _, m := range node.FindAllStringSubmatch(text, -1) {
		var s state
		at := variable.FindAllStringSubmatchIndex(m[2], -1)
		for i, v := range at {
			end := len(m[2])
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			value := m[2][v[1]:end]
			switch m[2][v[2]:v[3]] {
			case "run":
				s.run = quoted.FindStringSubmatch(value)[1]
			case "tool":
				s.tool = submatches(status, value)
			case "appr":
				s.appr = approvals(value)
			}
		}
		states[m[1]] = s
	}
	seen := map[string]bool{}
	add := func(machine, from, to string) {
		if from != to {
			seen[fmt.Sprintf("%s %s -> %s", machine, from, to)] = true
		}
	}
	steps := step.FindAllStringSubmatch(text, -1)
	for _, m := range steps {
		from, ok1 := states[m[1]]
		to, ok2 := states[m[2]]
		if !ok1 || !ok2 || len(from.tool) != len(to.tool) || len(from.appr) != len(to.appr) || len(to.tool) == 0 {
			t.Fatalf("%s: unexpected format of a state", m[0])
		}
		add("run", from.run, to.run)
		for i := range to.tool {
			add("tool", from.tool[i], to.tool[i])
			add("approval", from.appr[i], to.appr[i])
		}
	}
	t.Logf("%d states, %d steps", len(states), len(steps))
	edges := make([]string, 0, len(seen))
	for edge := range seen {
		edges = append(edges, edge)
	}
	slices.Sort(edges)
	return edges
}

// approvals parses the approvals of each tool call, a TLA+ value such as
// << <<>>, <<[st |-> …]>> >>. In this model a tool call has at most one approval.
func approvals(value string) []string {
	var list []string
	for _, m := range regexp.MustCompile(`<<[\\n ]*(?:\[[^\]]*\][\\n ]*)?>>`).FindAllString(value, -1) {
		if one := submatches(status, m); one != nil {
			list = append(list, one...)
		} else {
			list = append(list, absent)
		}
	}
	return list
}

func submatches(re *regexp.Regexp, text string) []string {
	var found []string
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func hashFiles(t *testing.T, paths ...string) string {
	t.Helper()
	h := sha256.New()
	for _, path := range paths {
		h.Write([]byte(readFile(t, path)))
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

func TestToolAndApprovalStatuses(t *testing.T) {
	for _, s := range ToolStatuses() {
		if again, err := ParseToolStatus(s.String()); err != nil || again != s {
			t.Errorf("%s parses as %v, %v", s, again, err)
		}
		if s.Ended() != (len(toolTransitions[s]) == 0) {
			t.Errorf("%s: got Ended %v, but transitions to %v", s, s.Ended(), toolTransitions[s])
		}
		if s.Advances() != (s.String() == "SUCCEEDED") {
			t.Errorf("%s: got Advances %v", s, s.Advances())
		}
	}
	for _, s := range ApprovalStatuses() {
		if again, err := ParseApprovalStatus(s.String()); err != nil || again != s {
			t.Errorf("%s parses as %v, %v", s, again, err)
		}
		if s.Ended() != (len(approvalTransitions[s]) == 0) {
			t.Errorf("%s: got Ended %v, but transitions to %v", s, s.Ended(), approvalTransitions[s])
		}
	}
	for _, text := range []string{"", "created", "DONE", "unknown(0)"} {
		if s, err := ParseToolStatus(text); err == nil {
			t.Errorf("%q parses as the tool call's %s", text, s)
		}
		if s, err := ParseApprovalStatus(text); err == nil {
			t.Errorf("%q parses as the approval's %s", text, s)
		}
	}
	want := "a tool call cannot go from BLOCKED to DISPATCHED; an approval cannot go from REJECTED to APPROVED"
	got := fmt.Sprint(ToolTransition(ToolStatusBlocked, ToolStatusDispatched), "; ", ApprovalTransition(ApprovalStatusRejected, ApprovalStatusApproved))
	if got != want {
		t.Errorf("got errors %q, want %q", got, want)
	}
}
