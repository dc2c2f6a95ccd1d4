// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// raceEnabled reports whether the test binary was built with the race detector.
var raceEnabled bool

// hashesEnv is the environment variable that passes a child process the path of the
// file for its hashes.
const hashesEnv = "SIM_HASHES_TO"

func seedHashes() string {
	var b strings.Builder
	for seed := range uint64(3) {
		r := RunSeed(Options{Seed: seed + 1})
		fmt.Fprintf(&b, "seed %d %s %v\n", r.Seed, r.Hash, r.Violation)
	}
	return b.String()
}

// TestHashesEqualAcrossProcesses checks that a run does not depend on the process,
// the number of threads, the garbage collector or the build mode.
func TestHashesEqualAcrossProcesses(t *testing.T) {
	want := seedHashes()
	if path := os.Getenv(hashesEnv); path != "" {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := []string{self, "-test.run=^" + t.Name() + "$"}
	processes := map[string][]string{"GOMAXPROCS=1 GOGC=off": child, "GOMAXPROCS=2 GOGC=10": child}
	if raceEnabled { // a process without the detector must produce the same hashes
		processes["GOFLAGS=-buildvcs=false"] = []string{"go", "test", "-count=1", "-run=^" + t.Name() + "$", "."}
	}
	for env, args := range processes {
		t.Run(env, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "hashes")
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Env = append(append(os.Environ(), strings.Fields(env)...), hashesEnv+"="+path)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Errorf("%v\n%swant\n%s", err, got, want)
			}
		})
	}
}
