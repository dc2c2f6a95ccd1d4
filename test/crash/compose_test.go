// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

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
	all, anchors := map[string]composed{}, map[string][]string{}
	for _, block := range regexp.MustCompile(`(?m)^  (\w+):(?: [&#].*)?\n((?:    .*\n|\n)+)`).FindAllStringSubmatch(string(b), -1) {
		var c composed
		if m := regexp.MustCompile(`(?m)^    command: (\[.*\])$`).FindStringSubmatch(block[2]); m != nil {
			if err := json.Unmarshal([]byte(replace.Replace(m[1])), &c.command); err != nil {
				t.Fatalf("%s: %v", block[1], err)
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^      (TROUPE_\w+): (.*)$`).FindAllStringSubmatch(block[2], -1) {
			c.env = append(c.env, m[1]+"="+replace.Replace(m[2]))
		}
		if m := regexp.MustCompile(`(?m)^    <<: \*(\w+)$`).FindStringSubmatch(block[2]); m != nil {
			c.env = append(c.env, anchors[m[1]]...)
		}
		if m := regexp.MustCompile(`^  \w+: &(\w+)`).FindStringSubmatch(block[0]); m != nil {
			anchors[m[1]] = c.env
		}
		all[block[1]] = c
	}
	return all
}

// The commands of deploy/compose.yaml start a cluster that answers through its ingress, also once the orchestrator that the
// ingress named first was killed.
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
	url := postgrestest.Start(t).Database()
	services := readCompose(t, strings.NewReplacer("/var/lib/troupe", state, "postgres://troupe@postgres/troupe", url, "/agents", agents))
	image := []string{"TROUPE_DATA=" + filepath.Join(state, "data"), "TROUPE_LISTEN=127.0.0.1:0", "TROUPE_KEYLESS=off"}
	command := func(c composed, args ...string) *exec.Cmd {
		cmd := exec.Command(bin, args...)
		cmd.Env = append(append(os.Environ(), image...), c.env...)
		cmd.Stderr = os.Stderr
		return cmd
	}
	first, second, ingress := services["orchestrator1"], services["orchestrator2"], services["ingress"]
	for _, of := range []composed{first, second} {
		if len(of.command) == 0 || len(of.env) == 0 || len(ingress.command) == 0 {
			t.Fatalf("services: %v", services)
		}
	}
	key, err := command(first, "keys", "create", "--data", filepath.Join(state, "data-1"), "--scope", "admin").Output()
	if err != nil {
		t.Fatal(err)
	}
	killed, err := servertest.Start(command(first, first.command...))
	if err != nil {
		t.Fatal(err)
	}
	defer killed.Stop(syscall.SIGKILL) //nolint:errcheck // it was killed
	left, err := servertest.Start(command(second, second.command...))
	if err != nil {
		t.Fatal(err)
	}
	defer left.Stop(syscall.SIGTERM) //nolint:errcheck // it has served
	front, err := servertest.Start(command(ingress, ingress.command...))
	if err != nil {
		t.Fatal(err)
	}
	defer front.Stop(syscall.SIGTERM) //nolint:errcheck // it has served
	get := func(path, want string) error {
		req, err := http.NewRequest(http.MethodGet, front.Line+path, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // it was read
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			return fmt.Errorf("%s: %d %.300s, error %w", path, resp.StatusCode, body, err)
		}
		return nil
	}
	if err := errors.Join(get("/readyz", ""), get("/v1/agents", `"agent_id"`)); err != nil {
		t.Error(err)
	}
	members := func(want string) error {
		list, err := command(second, "nodes", "list").Output() // the address of the database is the service's
		if err != nil || !regexp.MustCompile(want).Match(list) {
			return fmt.Errorf("nodes list: %s, error %w, want %s", list, err, want)
		}
		return nil
	}
	if err := members(`data-1/LINK(?s:.*)data-2/LINK`); err != nil {
		t.Error(err)
	}
	_ = killed.Stop(syscall.SIGKILL)
	for until := time.Now().Add(takeoverMax); ; {
		err := errors.Join(get("/readyz", ""), get("/v1/agents", `"agent_id"`), members(`data-2/LINK +16 `))
		if err == nil {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%v after a kill: %v", takeoverMax, err)
		}
		<-time.After(50 * time.Millisecond)
	}
}
