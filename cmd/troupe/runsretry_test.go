// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A retry while the model of a run is still absent fails and names the cause. The list has the run on one line.
func TestRetryWithAbsentModel(t *testing.T) {
	asked, release := make(chan struct{}, 8), make(chan struct{})
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer model.Close()
	defer close(release)
	dir := filepath.Join(t.TempDir(), "data")
	files := writeFiles(t, ">> a.toml\nname = \"a\"\nmodel = \"m\"\nprompt = \"x\"")
	config := filepath.Join(filepath.Dir(dir), "troupe.toml")
	if err := os.WriteFile(config, []byte("[models.m]\nurl = \""+model.URL+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, dir, "--agents", files, "--config", config)
	code, out, stderr := runProgram(t, "call", "a", "x", "--async", "--server", s.url)
	if code != 0 {
		t.Fatal(stderr)
	}
	run := strings.TrimSpace(out)
	<-asked
	s.stop(syscall.SIGKILL)
	s = startServer(t, dir, "--agents", files)
	waitUntil(t, "the run to be parked", func() bool {
		_, out, _ := runProgram(t, "runs", "show", run, "--server", s.url)
		return strings.Contains(out, "PARKED")
	})
	if code, out, stderr := runProgram(t, "runs", "retry", run, "--server", s.url); code != exitFailed || !strings.Contains(stderr, `is parked again: `) ||
		!strings.Contains(stderr, `unknown model "m"`) || !strings.Contains(stderr, "runs cancel") {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
}
