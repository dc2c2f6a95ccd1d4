// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A backup has recorded prompts, made with a server or without one, and a restore leaves out those of sessions that
// were deleted since, also if the server was killed before it removed them.
func TestBackupsHavePrompts(t *testing.T) {
	r := startRecording(t, "all")
	dir := filepath.Dir(r.data)
	check := func(code int, want string, args ...string) string {
		t.Helper()
		got, out, stderr := runProgram(t, args...)
		if got != code || !strings.Contains(out+stderr, want) {
			t.Fatalf("%v: exit code %d\n%s%s\nwant %d and %s", args, got, out, stderr, code, want)
		}
		return strings.TrimSpace(out)
	}
	runs := map[string]string{}
	for _, session := range []string{"gone", "killed", "stays"} {
		runs[session] = r.send("front", session, "please pay SENTINEL-"+session)
	}
	online := check(0, "", "backup", "one", "--data", r.data)
	r.stop(syscall.SIGTERM)
	offline := check(0, "", "backup", "two", "--data", r.data)
	r.server = r.start(t)
	if status, _ := r.request("DELETE", "/v1/sessions/gone", "", "", new(any)); status != 204 && status != 200 {
		t.Fatal(status)
	}
	before := filepath.Join(dir, "before")
	if err := os.CopyFS(before, os.DirFS(filepath.Join(r.data, "prompts"))); err != nil {
		t.Fatal(err)
	}
	if status, _ := r.request("DELETE", "/v1/sessions/killed", "", "", new(any)); status != 204 && status != 200 {
		t.Fatal(status)
	}
	r.stop(syscall.SIGKILL)
	// as if it was killed before it noted the deletion and removed the files
	forgets := filepath.Join(r.data, "forgets.jsonl")
	b, err := os.ReadFile(forgets)
	lines := strings.SplitAfter(string(b), "\n")
	if err != nil || len(lines) != 3 || strings.Contains(string(b), "gone") {
		t.Fatalf("got %q %v, want a line for each deletion", b, err)
	}
	if err := os.WriteFile(forgets, []byte(lines[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(r.data, "prompts")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(r.data, "prompts"), os.DirFS(before)); err != nil {
		t.Fatal(err)
	}
	r.server = r.start(t)
	waitUntil(t, "the files of the deleted session leave", func() bool {
		return len(grepFolder(t, filepath.Join(r.data, "prompts"), "SENTINEL-killed")) == 0
	})
	r.stop(syscall.SIGTERM)

	for name, backup := range map[string]string{"online": online, "offline": offline} {
		if found := grepFolder(t, backup, "4111-1111"); len(found) > 1 { // the store has the definition of the agent
			t.Errorf("%s: a pattern is in %v", name, found)
		}
		for flag, want := range map[string]int{"--forgets=" + forgets: 0, "--accept-forgotten": 1} {
			data := filepath.Join(dir, name+"-"+flag[2:5])
			check(1, "--accept-forgotten", "restore", backup, "--data", data)
			check(0, "restored into", "restore", backup, "--data", data, flag)
			for _, session := range []string{"gone", "killed"} {
				if got := len(grepFolder(t, filepath.Join(data, "prompts"), "SENTINEL-"+session)); got != want {
					t.Errorf("%s, %s: the prompts of %s are in %d files, want %d", name, flag, session, got, want)
				}
			}
			check(0, "please pay SENTINEL-stays", "runs", "prompts", "--data", data, runs["stays"])
			if want == 0 {
				check(0, "no recorded prompts", "runs", "prompts", "--data", data, runs["gone"])
			}
		}
	}
	// the restored server goes on
	r.data = filepath.Join(dir, "online-for")
	r.server = r.start(t)
	if _, page := r.prompts(runs["stays"], ""); len(page.Prompts) != 2 {
		t.Errorf("the restored server has %+v", page)
	}
	again := r.send("front", "gone", "a new message")
	if _, page := r.prompts(again, ""); len(page.Prompts) == 0 {
		t.Errorf("the restored server has %+v", page)
	}
}
