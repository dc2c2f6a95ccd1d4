// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// The settings of the chat page are read with the agents, so only by clients that may read those.
func TestChatSettingsAreListedWithTheAgents(t *testing.T) {
	tokens := false
	d := startGatewayWith(t, Config{Chat: &ChatPage{Agents: []string{"echo"}, Default: "echo", Title: "Front desk", Tokens: &tokens}}, echoAgent("echo", actor.Journaled))
	if _, _, body := d.do("GET", "/v1/agents", ""); !strings.Contains(body, `"chat":{"agents":["echo"],"default":"echo","title":"Front desk","tokens":false}`) {
		t.Error(body)
	}
	if _, _, body := d.do("GET", "/chat", ""); strings.Contains(body, "Front desk") || strings.Contains(body, "echo") {
		t.Error("the page, which needs no key, has settings")
	}
	plain := startGateway(t, echoAgent("echo", actor.Journaled))
	if _, _, body := plain.do("GET", "/v1/agents", ""); strings.Contains(body, "chat") {
		t.Error(body)
	}
}

// The pages and their files load only one another, with a policy that forbids everything else. Browsers use
// their copies while the files are unchanged.
func TestPagesLoadTheirOwnFilesOnly(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	get := func(target string, headers ...string) (int, http.Header, string) {
		t.Helper()
		status, header, body := d.do("GET", target, "", headers...)
		return status, header, body
	}
	loaded := regexp.MustCompile(`(?:src|href)="([^"]*)"|from "([^"]*)"`)
	seen, next := map[string]bool{}, []string{"/"} // it names all other pages
	for len(next) > 0 {
		target := next[0]
		if next = next[1:]; seen[target] || strings.HasPrefix(target, "#") {
			continue
		}
		seen[target] = true
		status, header, body := get(target)
		if status != 200 || header.Get("Content-Type") == "" || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", target, status, header)
		}
		for _, part := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
			if !strings.Contains(header.Get("Content-Security-Policy"), part) {
				t.Errorf("%s: policy %q, want %q", target, header.Get("Content-Security-Policy"), part)
			}
		}
		if status, _, body := get(target, "If-None-Match", header.Get("ETag")); status != 304 || body != "" {
			t.Errorf("%s with its tag: %d, %d bytes", target, status, len(body))
		}
		for _, m := range loaded.FindAllStringSubmatch(body, -1) {
			to := m[1] + m[2]
			if strings.HasPrefix(to, "./") {
				to = path.Join(path.Dir(target), to)
			}
			next = append(next, to)
		}
		for _, wrong := range []string{"innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function", "style=\"", "<style", " onclick=\"", "javascript:"} {
			if strings.Contains(body, wrong) {
				t.Errorf("%s contains %s", target, wrong)
			}
		}
	}
	for name := range webTable {
		if path.Ext(name) != ".html" && !seen["/assets/"+name] {
			t.Errorf("no page loads %s", name)
		}
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		target := "/docs/" + filepath.Base(page)
		_, header, body := get(target)
		want, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if !seen[target] || header.Get("Content-Type") != "text/plain; charset=utf-8" || body != string(want) {
			t.Errorf("%s: named %v, %v, %d bytes, want %d", target, seen[target], header, len(body), len(want))
		}
	}
	for _, target := range []string{"/docs//", "/docs/docs.go", "/docs/none.md", "/docs/..", "/index.html", "/assets/front.html", "/assets/chat.html", "/assets/console.html", "/assets/none.js", "/assets/..", "/chat/x", "/assets/"} {
		if status, _, _ := get(target); status != 404 && status != 400 {
			t.Errorf("%s: %d", target, status)
		}
	}
	for _, page := range webPages {
		_, _, want := get(page)
		if status, _, body := get(page + "/"); status != 200 || body != want {
			t.Errorf("%s/: %d %.200s", page, status, body)
		}
	}
}

// runScript runs a script of testdata with Node.js, and returns its output. The script uses a module of the pages, from a folder
// with all of them as the server serves them. Without Node.js the test is skipped.
func runScript(t *testing.T, script, module, input string, args ...string) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs Node.js")
	}
	dir := t.TempDir()
	for name, f := range webTable {
		if path.Ext(name) != ".js" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), f.content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command(node, append([]string{"--experimental-default-type=module", filepath.Join("testdata", script+".mjs"), "file://" + filepath.Join(dir, module)}, args...)...)
	command.Stdin = strings.NewReader(input)
	command.Env = append(os.Environ(), "TZ=UTC", "LC_ALL=en_GB.UTF-8")
	var problems strings.Builder
	command.Stderr = &problems
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, problems.String())
	}
	return string(out)
}
