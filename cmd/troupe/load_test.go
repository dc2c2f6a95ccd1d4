// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// runLoad runs `troupe load` in this process.
func runLoad(args ...string) (code int, out, stderr string) {
	var o, e bytes.Buffer
	code = run(append([]string{"load"}, args...), streams{&o, &e})
	return code, o.String(), e.String()
}

func TestLoadEveryPlace(t *testing.T) {
	for _, place := range []string{"dispatcher", "gateway"} {
		for _, durability := range []string{"none", "durable"} {
			for _, agent := range []string{"noop", "chain", "fan"} {
				var code int
				var out, stderr string
				for _, duration := range []string{"150ms", "2s", "20s"} { // the machine may be busy
					code, out, stderr = runLoad("--place", place, "--durability", durability, "--agent", agent, "--callers", "2", "--for", duration, "--json")
					if code == 0 || !strings.Contains(stderr, "no call completed") {
						break
					}
				}
				var r struct {
					Name     string
					Done     int
					Refusals []any
				}
				if err := json.Unmarshal([]byte(out), &r, json.MatchCaseInsensitiveNames(true)); err != nil || code != 0 {
					t.Fatalf("%s %s %s: exit code %d, error %v\n%s%s", place, durability, agent, code, err, out, stderr)
				}
				if r.Done == 0 || len(r.Refusals) > 0 {
					t.Errorf("%s: %d completed, refusals %v", r.Name, r.Done, r.Refusals)
				}
			}
		}
	}
}

func TestLoadReportsRefusals(t *testing.T) {
	code, out, stderr := runLoad("--place", "gateway", "--durability", "none", "--agent", "slow", "--sessions", "1", "--timeout", "1500ms", "--rate", "2000", "--callers", "400", "--for", "900ms")
	// One call is admitted and is still running when the load ends. No call has
	// completed, and that is an error.
	if code != exitFailed || !strings.Contains(stderr, "no call completed") {
		t.Errorf("exit code %d, stderr %s", code, stderr)
	}
	if !strings.Contains(out, "agent_busy (callee)") {
		t.Errorf("want the scope of the refusals, got\n%s", out)
	}
}

// With --url the memory and the processor are those of the load generator, and none is given for the server.
func TestLoadOfServerNamesItsOwnMemory(t *testing.T) {
	s := startServerWithBuiltins(t, filepath.Join(t.TempDir(), "data"))
	args := []string{"--url", s.url, "--agent", "helper", "--callers", "1", "--for", "100ms"}
	code, out, stderr := runLoad(args...)
	if code != 0 || !strings.Contains(out, "memory of the load generator, not of the server: ") {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
	if rows := strings.Split(out, "\n"); len(rows) < 3 || strings.Count(rows[2], "| – |") == 0 || strings.TrimSpace(strings.Split(rows[2], "|")[3]) != "–" {
		t.Errorf("want no rate per second of processor, got\n%s", out)
	}
	if code, out, _ := runLoad(append(args, "--json")...); code != 0 || !strings.Contains(out, `"remote":true`) && !strings.Contains(out, `"remote": true`) {
		t.Errorf("exit code %d, %s", code, out)
	}
	if _, out, _ := runLoad("--place", "dispatcher", "--durability", "none", "--callers", "1", "--for", "100ms"); strings.Contains(out, "generator") {
		t.Errorf("a temporary node: %s", out)
	}
}

func TestLoadRejectsInvalidFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--agent", "nobody", "--callers", "1"}, "the temporary node has"},
		{[]string{"--url", "http://127.0.0.1:1"}, "requires --callers or --rate"},
		{[]string{"--url", "http://127.0.0.1:1", "--agent", "x", "--callers", "1"}, "refused"},
		{[]string{"--callers=-1"}, "more than 0"},
		{[]string{"--callers", "1", "--for", "1ms"}, "--for"},
		{[]string{"--rate", "1", "--sessions", "0"}, "--sessions"},
		{[]string{"--callers", "100000", "--for", "100ms", "--place", "dispatcher"}, "want 1 to 16384"},
	} {
		if code, _, stderr := runLoad(c.args...); code == 0 || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: exit code %d, stderr %s; want %q", c.args, code, stderr, c.want)
		}
	}
}
