// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

// crossOriginPage is a page of another origin with the script of the API's documentation. It reports
// each event to its own server. It then resumes the stream behind the first event, and sends a message
// in a request that needs no preflight.
const crossOriginPage = `<!doctype html>
<title>Page of another origin</title>
<script>
let sent = Promise.resolve()
const report = (line) => { sent = sent.then(() => fetch("/report", { method: "POST", body: line })) }
const [server, agent, key, text] = %s
const show = (event) => report((resumed ? "again " : "") + event.type)
let resumed = false
const read = async () => {
  %s
  return response
}
const run = async () => {
  const response = await read()
  const again = await fetch(server + "/v1/runs/" + response.headers.get("X-Run-Id") + "/events", {
    headers: { "Authorization": "Bearer " + key, "Accept": "text/event-stream", "Last-Event-ID": "1" } })
  resumed = true
  for (const line of (await again.text()).split("\n")) if (line.startsWith("data:")) show(JSON.parse(line.slice(5)))
}
run().catch((e) => report("refused: " + e))
  .then(() => fetch(server + "/v1/agents/" + agent + "/messages", { method: "POST", mode: "no-cors", body: JSON.stringify({ content: "unasked" }) }))
  .then(() => report("end"), (e) => report("end: " + e))
</script>
`

// A page of an origin that --origin lists streams an answer with its key in a header, by the code in the
// documentation: it has the first piece before the agent continues. The browser refuses the answer to a
// page of any other origin, and the server its messages.
func TestBrowserStreamsFromOtherOrigin(t *testing.T) {
	browser := os.Getenv("TROUPE_BROWSER")
	if browser == "" {
		var err error
		if browser, err = exec.LookPath("chromium"); err != nil {
			t.Skip("chromium not found: apt-get install chromium on Debian, or set TROUPE_BROWSER")
		}
	}
	document, err := os.ReadFile(filepath.Join("..", "..", "docs", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	section := document[strings.Index(string(document), "### Pages of other origins"):]
	code := regexp.MustCompile("(?s)```js\n(.*?)```").FindSubmatch(section)
	if code == nil {
		t.Fatal("docs/api.md has no script for pages of other origins")
	}

	release, service := make(chan struct{}), http.NewServeMux()
	service.HandleFunc("POST /invoke", func(w http.ResponseWriter, q *http.Request) {
		writeEvents(w, "event: delta\ndata: {\"text\": \"first \"}")
		select {
		case <-release:
			writeEvents(w, "event: delta\ndata: {\"text\": \"second\"}", "event: done\ndata: {}")
		case <-q.Context().Done():
		}
	})
	proceed := sync.OnceFunc(func() { close(release) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	agent := &http.Server{Handler: service}
	go func() { _ = agent.Serve(l) }()
	defer agent.Close()

	lines, content := make(chan string, 1000), ""
	pages := http.NewServeMux()
	pages.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, content)
	})
	pages.HandleFunc("POST /report", func(_ http.ResponseWriter, q *http.Request) {
		line, _ := io.ReadAll(io.LimitReader(q.Body, 1<<10))
		lines <- string(line)
	})
	listed, other := httptest.NewServer(pages), httptest.NewServer(pages)
	defer listed.Close()
	defer other.Close()

	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir, "--origin", listed.URL, "--keyless", "off", "--allow", "127.0.0.0/8")
	s.useAdminKey(dir)
	s.registerAgent(`{"agent_id":"ext","endpoint":"http://` + l.Addr().String() + `"}`)
	values, err := json.Marshal([]string{s.url, "ext", s.apiKey, "hello"})
	if err != nil {
		t.Fatal(err)
	}
	content = fmt.Sprintf(crossOriginPage, values, code[1])

	// visit loads the page from an origin until it ends, and returns what it reported.
	visit := func(origin string, each func(line string)) (reported []string) {
		t.Helper()
		profile, err := os.MkdirTemp("", "troupe-browser-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(profile)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--user-data-dir="+profile, origin+"/")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			cancel()
			_ = c.Wait()
		}()
		for {
			select {
			case line := <-lines:
				if reported = append(reported, line); strings.HasPrefix(line, "end") {
					return reported
				}
				each(line)
			case <-ctx.Done():
				t.Fatalf("the page of %s did not end, and reported %q", origin, reported)
			}
		}
	}
	reported := visit(listed.URL, func(line string) {
		if line == "agent_stream_delta" {
			proceed()
		}
	})
	stream := []string{"user_input", "run_started", "agent_invoke_started", "agent_stream_delta", "agent_stream_delta", "agent_invoke_done", "run_done"}
	want := slices.Clone(stream)
	for _, name := range stream[1:] {
		want = append(want, "again "+name)
	}
	if !slices.Equal(reported, append(want, "end")) {
		t.Errorf("a listed origin: the page reported\n%q, want\n%q", reported, append(want, "end"))
	}
	if reported := visit(other.URL, func(string) {}); len(reported) != 2 || !strings.HasPrefix(reported[0], "refused: TypeError") {
		t.Errorf("another origin: the page reported %q, want a refusal", reported)
	}
	var list struct {
		Runs []struct {
			Actor string `json:"actor"`
		} `json:"runs"`
	}
	if status, err := s.request("GET", "/v1/runs", "", "", &list); err != nil || status != 200 || len(list.Runs) != 1 {
		t.Errorf("%d %v: %+v, want the run of the listed page only", status, err, list)
	}
}
