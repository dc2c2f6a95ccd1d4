// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The remedy in an error fits the mistake and can be run as printed.
func TestMistakesPrintRemedies(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "data")
	s := startServer(t, dir)
	s.putAgent(`{"name":"My Scout","agent_id":"scout"}`)
	file := filepath.Join(parent, "x.toml")
	if err := os.WriteFile(file, []byte(`name = "x"`), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(parent, "other")
	limits, tables := filepath.Join(parent, "limits"), filepath.Join(parent, "tables")
	for path, text := range map[string]string{limits: "[limits]\ncall_depth = \"3\"\n", tables: "[nonsense]\nx = 1\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args  []string
		input string
		want  string
		not   string
	}{
		{[]string{"call", "My Scout", "hi", "--server", s.url}, "", `"My Scout": want the agent's ID, of letters, digits, '.', '_' and '-' (see: troupe agents list --server ` + s.url + ")", "escapes"},
		{[]string{"agents", "show", "My Scout", "--server", s.url}, "", `"My Scout": want the agent's ID`, "escapes"},
		{[]string{"agents", "delete", "a/b", "--server", s.url}, "", `"a/b": want the agent's ID`, "escapes"},
		{[]string{"call", "scout", "-", "--server", s.url}, "\xff", "message: want UTF-8", "jsontext"},
		{[]string{"call", "scout", "-", "--server", s.url}, strings.Repeat("x", 1<<20+1), "message: standard input has more than 1048576 bytes", "@@"},
		{[]string{"capabilities", "add", other + ".json", "--server", s.url}, "", "no such file or directory", "@@"},
		{[]string{"call", "scout", "hi", "--server", strings.Replace(s.url, "http:", "https:", 1)}, "", "use --server " + s.url, ""},
		{[]string{"check", file}, "", "is not a folder; its folder is " + parent, ""},
		{[]string{"doctor", dir}, "", "troupe backup NAME --data " + dir, "backup DIR"},
		{[]string{"serve", "--data", dir, "--listen", "127.0.0.1:0"}, "", "stop that process, or choose another --data", ""},
		{[]string{"serve", "--data", other, "--listen", "0.0.0.0:0"}, "", "troupe keys create --data " + other + "`", "DIR"},
		{[]string{"serve", "--data", other, "--origin", "https://console.example/", "--listen", "256.0.0.0:0"}, "", "such as https://console.example", "256"},
		{[]string{"serve", "--data", other, "--hosts", "https://console.example", "--listen", "256.0.0.0:0"}, "", "--hosts: got ", "256"},
		{[]string{"call", "scout", "hello", "world", "--server", s.url}, "", "unexpected argument world; put a message of several words in quotes", ""},
		{[]string{"call", "scout", "hello", "--timeout", "5", "--server", s.url}, "", "add a unit, such as 5s", ""},
		{[]string{"keys", "create", "--expires", "30d", "--server", s.url}, "", "write days as hours, such as 720h", ""},
		{[]string{"serve", "--data", other, "--log-level", "loud"}, "", "want debug, info, warn or error", ""},
		{[]string{"serve", "--data", other, "--config", other + ".toml"}, "", "does not exist; create it, or omit --config", ""},
		{[]string{"serve", "--data", other, "--config", limits}, "", "want a whole number without quotes", ""},
		{[]string{"serve", "--data", other, "--config", tables}, "", "nonsense.x is unknown; want [models.NAME], [limits], [auth], [agent_call], [approvals], [budget], [builtin], [chat], [memory], [otel], [[policy]], [policy_default], [prices], [record] or [[webhook]] as tables", ""},
		{[]string{"serve", "--data", other, "--write-buffer-mib", "0"}, "", "--write-buffer-mib: want 1 to 1024, got 0", ""},
		{[]string{"runs", "list", "--limit", "500", "--server", s.url}, "", "--limit: want 1 to 200, got 500", ""},
		{[]string{"runs", "list", "--limit", "0", "--server", s.url}, "", "--limit: want 1 to 200, got 0", ""},
		{[]string{"agents", "register", "x", "http://[::1", "--server", s.url}, "", "endpoint: invalid URL; want one like http://127.0.0.1:9001", ""},
		{[]string{"agents", "register", "x", "localhost:9001", "--server", s.url}, "", "write it like http://127.0.0.1:9001", ""},
	} {
		cmd := programCmd(c.args...)
		cmd.Stdin = strings.NewReader(c.input)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code <= 0 || !strings.Contains(string(out), c.want) || c.not != "" && strings.Contains(string(out), c.not) {
			t.Errorf("%.100q: want %q without %q, got exit code %d and %.400s", c.args, c.want, c.not, code, out)
		}
	}
}
