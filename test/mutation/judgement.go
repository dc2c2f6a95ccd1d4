// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
)

// judgements are the verdicts of the file survivors.txt, by key of the mutant.
type judgements map[string]string

// readJudgements reads the file. Each line has the place, the operator, the line before
// and after, and the verdict: open, or equivalent: and the reason.
func readJudgements(path string) (judgements, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := judgements{}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if line = strings.TrimSuffix(line, "\n"); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.Split(line, "\t")
		if len(columns) != 5 {
			return nil, fmt.Errorf("%s:%d: want 5 columns separated by tabs, got %d", path, n, len(columns))
		}
		key, verdict := strings.Join(columns[:4], "\t"), columns[4]
		if reason, ok := strings.CutPrefix(verdict, "equivalent: "); verdict != "open" && (!ok || strings.TrimSpace(reason) == "") {
			return nil, fmt.Errorf("%s:%d: want the verdict open or equivalent: REASON, got %q", path, n, verdict)
		}
		if _, ok := all[key]; ok {
			return nil, fmt.Errorf("%s:%d: the mutant is listed twice", path, n)
		}
		all[key] = verdict
	}
	return all, nil
}

// isEquivalent reports whether the mutant behaves like the unchanged program.
func (j judgements) isEquivalent(s *site) bool { return strings.HasPrefix(j[s.key()], "equivalent: ") }

// stale returns the keys that no mutant of the tree has.
func (j judgements) stale(byOperator map[string][]*site) (keys []string) {
	known := map[string]bool{}
	for _, all := range byOperator {
		for _, s := range all {
			known[s.key()] = true
		}
	}
	for _, key := range sortedKeys(j) {
		if !known[key] {
			keys = append(keys, key)
		}
	}
	return keys
}
