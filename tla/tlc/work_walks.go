// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// workSteps is the length of a walk through Work. With Bug = "none" in workConfig the
// model is correct. Any other value adds a defect. brokenWalks is the maximum number of
// violating walks kept per defect. goodWalks is the maximum number of walks of the
// correct model kept with the option -out.
const (
	workSteps   = 26
	brokenWalks = 4
	goodWalks   = 40
)

const workConfig = `SPECIFICATION WalkSpec
CONSTANTS
  Tools = {1, 2}
  Args = {"x", "y"}
  Policies = {"allow", "ask", "block"}
  Begun = {"RUNNING"}
  Safe = {1}
  MaxEdit = 1
  MaxCancel = 0
  MaxCrash = 1
  Bug = %q
  Steps = %d
CONSTRAINT Walked
CHECK_DEADLOCK FALSE
`

// workWalk is one walk, in the format read by the test of package specs.
type workWalk struct {
	Bug   string
	Good  bool
	Steps []json.RawMessage
}

// walksOfWork draws n walks of the design and n of each defect. It writes the walks to the file
// out. If out is empty, the Go specs check the walks instead.
func (t TLC) walksOfWork(ctx context.Context, n, seed int, out string) int {
	configs, err := ReadConfigs(t.Dir)
	if err != nil {
		return fail(1, err)
	}
	bugs := []string{"none"}
	for _, c := range configs {
		if c.Module == "Work" && (c.Expect == Expectation{Violates, "OnlySucceededAdvances"} || c.Expect == Expectation{Violates, "ApprovalOnce"}) {
			bugs = append(bugs, strings.Trim(c.Value("Bug"), `"`))
		}
	}
	var all bytes.Buffer
	for _, bug := range bugs {
		lines, err := t.randomWalks(ctx, n, seed, workSteps, fmt.Sprintf(workConfig, bug, workSteps), "WorkWalk", "Work")
		if err != nil {
			return fail(1, err)
		}
		good, broken, err := selectWalks(&all, bug, lines, out != "")
		if err != nil {
			return fail(1, err)
		}
		fmt.Printf("%d walks through Work with Bug = %q: TLC finds no violation in %d\n", good+broken, bug, good)
		if good+broken != n || bug == "none" && broken > 0 {
			return fail(1, fmt.Errorf("got %d walks, want %d; a walk of the design (Bug = \"none\") must not violate a property", good+broken, n))
		}
	}
	path := out
	if path == "" {
		if path, err = filepath.Abs(filepath.Join(cacheDir, "work_walks.json")); err != nil {
			return fail(1, err)
		}
	}
	if err := os.WriteFile(path, all.Bytes(), 0o644); err != nil || out != "" {
		if err != nil {
			return fail(1, err)
		}
		return 0
	}
	if err := goTest(ctx, "./specs", "^TestWorkAgreesWithTLC$", "-work-walks", path); err != nil {
		return fail(1, fmt.Errorf("the Go specs disagree with TLC: %w", err))
	}
	return 0
}

// selectWalks writes walks for one value of Bug to a buffer. For "none" it writes all
// walks, or the first goodWalks if limited is true. For a defect it writes the first
// brokenWalks that violate a property. It removes steps without a visible change. The
// results good and broken count all walks without and with a violation, written or not.
func selectWalks(to *bytes.Buffer, bug string, lines []byte, limited bool) (good, broken int, err error) {
	scan := bufio.NewScanner(bytes.NewReader(lines))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		w := workWalk{Bug: bug}
		if err := json.Unmarshal([]byte("["+scan.Text()+"]"), &[]any{&w.Good, &w.Steps}); err != nil {
			return 0, 0, err
		}
		if w.Good {
			good++
		} else {
			broken++
		}
		if w.Good != (bug == "none") || !w.Good && broken > brokenWalks || w.Good && limited && good > goodWalks {
			continue
		}
		w.Steps = slices.CompactFunc(w.Steps, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
		line, err := json.Marshal(w)
		if err != nil {
			return 0, 0, err
		}
		to.Write(append(line, '\n'))
	}
	return good, broken, scan.Err()
}
