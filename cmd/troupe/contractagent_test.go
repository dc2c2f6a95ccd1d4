// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Agents and a caller that were written from the printed contract alone find each of its rules: fields, statuses,
// priorities, partial results, time-outs, the circuit breaker, the hand-off and the orchestrator.
func TestContractFromPrintedTextAlone(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	out, err := exec.CommandContext(t.Context(), python, "testdata/contractagent.py", s.url).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
