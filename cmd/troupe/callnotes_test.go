// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A call prints the failed attempts to reach its model, also if another agent asks the model.
func TestCallPrintsFailedAttempts(t *testing.T) {
	dir := t.TempDir()
	config, text, files := filepath.Join(dir, "troupe.toml"), "", ">> boss.toml\nname = \"boss\""
	for _, name := range []string{"a", "b", "c"} { // each has a circuit breaker of its own
		text += "[models." + name + "]\nurl = \"http://127.0.0.1:1/v1\"\nretry_delay = \"1500ms\"\nretry_delay_max = \"1500ms\"\nretry_jitter = false\nretry_time = \"4s\"\n"
		files += "\n>> " + name + ".toml\nname = \"" + name + "\"\nmodel = \"" + name + "\""
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "data"), "--config", config, "--agents", writeFiles(t, files))
	for want, args := range map[string][]string{
		"model a cannot be reached: connection refused; attempt 3 after 1.5s\n": {"a", "hello", "--stream"},
		"model b cannot be reached: connection refused; attempt 3 after 1.5s\n": {"b", "hello", "--no-stream"},
		"model c cannot be reached: connection refused; attempt 3 after 1.5s\n": {"boss", "ask the c agent hello"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			if _, out, stderr := runProgram(t, append(append([]string{"call"}, args...), "--server", s.url)...); strings.Count(stderr, want) != 1 {
				t.Errorf("%v: stdout %s\nstderr %s\nwant once %s", args, out, stderr, want)
			}
		})
	}
}
