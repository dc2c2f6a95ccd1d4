// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A server on loopback needs no key and warns of proxies. With --keyless=off, or
// keyless in its configuration, it asks for keys and does not warn.
func TestKeylessFlag(t *testing.T) {
	config := filepath.Join(t.TempDir(), "troupe.toml")
	if err := os.WriteFile(config, []byte("keyless = \"off\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want int
	}{{nil, 200}, {[]string{"--keyless=on"}, 200}, {[]string{"--keyless=off"}, 401}, {[]string{"--config", config}, 401}, {[]string{"--config", config, "--keyless=on"}, 200}} {
		s := startServer(t, filepath.Join(t.TempDir(), "data"), c.args...)
		response, err := http.Get(s.url + "/v1/agents")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		s.stop(syscall.SIGTERM)
		log, err := os.ReadFile(s.log)
		warns := strings.Count(string(log), "a proxy on this machine that adds no header lets everyone in") == 1
		if err != nil || response.StatusCode != c.want || warns != (c.want == 200) {
			t.Errorf("%v: %d, want %d; log %s, %v", c.args, response.StatusCode, c.want, log, err)
		}
	}
	if code, _, message := runProgram(t, "serve", "--keyless=maybe"); code != 2 || !strings.Contains(message, "must be one of") {
		t.Errorf("exit code %d: %s", code, message)
	}
}
