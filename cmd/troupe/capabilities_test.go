// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A capability is changed by the file that show prints, for the agents in it.
func TestCapabilityIsChangedByItsFile(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s := startServer(t, data)
	for _, body := range []string{`{"name":"ann","provides":[{"code":"ANL_NPV","description":"worth today"}]}`, `{"name":"bob"}`} {
		if code, err := s.request("POST", "/v1/agents", body, "", new(any)); code != 201 || err != nil {
			t.Fatal(code, err)
		}
	}
	run := func(want string, args ...string) string {
		t.Helper()
		code, out, stderr := runProgram(t, append([]string{"capabilities"}, append(args, "--server", s.url)...)...)
		if (code != 0) != strings.HasPrefix(want, "!") || !strings.Contains(stderr+out, strings.TrimPrefix(want, "!")) {
			t.Fatalf("%v: %d %s%s, want %s", args, code, out, stderr, want)
		}
		return out
	}
	file := filepath.Join(t.TempDir(), "npv.json")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shown := run("worth today", "show", "ANL_NPV")
	write(shown)
	run("capability ANL_NPV is changed", "add", file) // the time, which is now named
	run("capability ANL_NPV is unchanged", "add", file)
	write(strings.NewReplacer(`"ann"`, `"ann","bob"`, "worth today", "worth now").Replace(shown))
	run("capability ANL_NPV is changed", "add", file)
	if out := run("worth now", "list"); !strings.Contains(out, "ann, bob") {
		t.Errorf("got %s", out)
	}
	write(`{"capability_code":"anl","description":"d"}`)
	run("!capability_code", "add", file)
	write("[[provides]]\ncode = \"ANL_NPV\"\n")
	run("!npv.json: want a JSON object as PUT /v1/capabilities in docs/api.md", "add", file)
	write(`{"capability_code":"ANL_NPV"}`)
	run("!description", "add", file)
	run("capability ANL_NPV is deleted", "delete", "ANL_NPV")
	run("!no registered capability", "delete", "ANL_NPV")
	run("no capabilities", "list")
	for user, want := range map[string]string{"": "no schedule of your user: --user", "zoe": "no schedule of the user zoe: --user"} { // others may have one
		if code, out, stderr := runProgram(t, "schedules", "list", "--server", s.url, "--user", user); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%d %s%s, want %s", code, out, stderr, want)
		}
	}

	// The owner of the folder needs no key, with a server and without one.
	write(shown)
	run("capability ANL_NPV is created", "add", file, "--data", data)
	s.stop(syscall.SIGTERM)
	write(strings.Replace(shown, "worth today", "worth then", 1))
	run("capability ANL_NPV is changed", "add", file, "--data", data)
	s = startServer(t, data)
	run("worth then", "list")
}
