// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"testing"
)

func TestVersionOf(t *testing.T) {
	const sha = "1e1c7330a9d64cbb1e1c7330a9d64cbb1e1c7330"
	for _, c := range []struct {
		module, revision, modified, commit, want string
	}{
		{"(devel)", "", "", "", nextRelease},
		{"", "", "", "", nextRelease},
		{"(devel)", sha, "false", "", nextRelease + " (1e1c7330a9d6)"},
		{"v0.0.0-20261123020000-1e1c7330a9d6+dirty", sha, "true", "", nextRelease + " (1e1c7330a9d6, modified)"},
		{"(devel)", "", "", sha, nextRelease + " (1e1c7330a9d6)"},
		{"v1.2.3", "", "", "", "v1.2.3"},
		{"(devel)", "", "", "abc", nextRelease + " (abc)"},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Version: c.module}}
		if c.revision != "" {
			info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: c.revision}, {Key: "vcs.modified", Value: c.modified}}
		}
		if got := versionOf(info, c.commit); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
}

// The binary of make build names its commit, and one built outside a repository, such as that of
// the tests, its version.
func TestBuiltProgramPrintsVersion(t *testing.T) {
	program := filepath.Join(t.TempDir(), "troupe")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w -X main.commit=1e1c7330a9d64cbb", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for want, command := range map[string]*exec.Cmd{`^v[0-9.]+-dev \(1e1c7330a9d6\)\n$`: exec.Command(program, "--version"), `^v[0-9.]+-dev\n$`: programCmd("--version")} {
		if out, err := command.Output(); err != nil || !regexp.MustCompile(want).Match(out) {
			t.Errorf("%q, %v, want %s", out, err, want)
		}
	}
}

// The address that a server prints can be used by clients on its machine.
func TestPrintedURLCanBeUsed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if code, _, stderr := runProgram(t, "keys", "create", "--data", dir); code != 0 {
		t.Fatal(stderr)
	}
	for _, any := range []string{"0.0.0.0:0", "[::]:0"} {
		s := startServer(t, dir, "--listen", any)
		var health struct{}
		if status, err := s.request("GET", "/healthz", "", "", &health); status != 200 {
			t.Errorf("%s prints %s: status %d, %v", any, s.url, status, err)
		}
		s.stop(9)
	}
}
