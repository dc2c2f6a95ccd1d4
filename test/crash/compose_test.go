// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-run/troupe/internal/postgrestest"
	"github.com/troupe-run/troupe/internal/servertest"
)

// composed are the parts of a service of deploy/compose.yaml that are tried without containers.
type composed struct {
	command []string
	env     []string
}

func readCompose(t *testing.T, replace *strings.Replacer) map[string]composed {
	t.Helper()
	b, err := os.ReadFile("../../deploy/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]composed{}
	for _, block := range regexp.MustCompile(`(?m)^  (\w+):\n((?:    .*\n|\n)+)`).FindAllStringSubmatch(string(b), -1) {
		var c composed
		if m := regexp.MustCompile(`(?m)^    command: (\[.*\])$`).FindStringSubmatch(block[2]); m != nil {
			if err := json.Unmarshal([]byte(replace.Replace(m[1])), &c.command); err != nil {
				t.Fatalf("%s: %v", block[1], err)
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^      (TROUPE_\w+): (.*)$`).FindAllStringSubmatch(block[2], -1) {
			c.env = append(c.env, m[1]+"="+replace.Replace(m[2]))
		}
		all[block[1]] = c
	}
	return all
}

// The commands of deploy/compose.yaml start a server that answers through its ingress.
func TestPostgresCompose(t *testing.T) {
	state := t.TempDir()
	bin := filepath.Join(state, "troupe")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/troupe").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	agents, err := filepath.Abs("../../examples/kdap")
	if err != nil {
		t.Fatal(err)
	}
	services := readCompose(t, strings.NewReplacer("/var/lib/troupe", state, "postgres://troupe@postgres/troupe", postgrestest.Start(t).Database(), "/agents", agents))
	image := []string{"TROUPE_DATA=" + filepath.Join(state, "data"), "TROUPE_LISTEN=127.0.0.1:0", "TROUPE_KEYLESS=off"}
	command := func(c composed, args ...string) *exec.Cmd {
		cmd := exec.Command(bin, args...)
		cmd.Env = append(append(os.Environ(), image...), c.env...)
		cmd.Stderr = os.Stderr
		return cmd
	}
	orchestrator, ingress := services["orchestrator"], services["ingress"]
	if len(orchestrator.command) == 0 || len(orchestrator.env) == 0 || len(ingress.command) == 0 {
		t.Fatalf("services: %v", services)
	}
	key, err := command(orchestrator, "keys", "create", "--data", filepath.Join(state, "data"), "--scope", "admin").Output()
	if err != nil {
		t.Fatal(err)
	}
	behind, err := servertest.Start(command(orchestrator, orchestrator.command...))
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Stop(syscall.SIGTERM) //nolint:errcheck // it has served
	front, err := servertest.Start(command(ingress, ingress.command...))
	if err != nil {
		t.Fatal(err)
	}
	defer front.Stop(syscall.SIGTERM) //nolint:errcheck // it has served
	for path, want := range map[string]string{"/readyz": "", "/v1/agents": `"agent_id"`} {
		req, err := http.NewRequest(http.MethodGet, front.Line+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d %.300s, error %v", path, resp.StatusCode, body, err)
		}
	}
}
