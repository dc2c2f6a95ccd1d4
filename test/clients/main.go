// SPDX-License-Identifier: Apache-2.0

// Command clients checks that third-party clients can read a stream across a kill -9 of its server: curl, Python's standard library, an EventSource from npm, and a browser's own.
//
// Each client starts to read while a run is in progress. The server is then killed
// and restarted on the same address and data folder. The run continues, and so does
// each client. An EventSource reconnects by itself. The others are started again
// with the ID of the last event they received. Each client must receive every event
// exactly once, in order.
//
// Clients of the channel protocol, with the packages websockets of Python and ws of npm, invoke agents, approve,
// perform a client tool, cancel and resume, while their connections are cut at random bytes and the server is
// killed. The chat page does the same in a browser. The package openai of npm asks the models of a server.
//
// Before the streams, haproxy and nginx forward to servers on loopback, and no request
// without a key may pass them.
package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed" // the clients' own programs
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/internal/servertest"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// timeLimit is the maximum duration of the whole test, including the downloads of
// npm and pip.
const timeLimit = 8 * time.Minute

var (
	//go:embed read.py
	readPython string
	//go:embed read.mjs
	readNode string
	//go:embed read.html
	readBrowser string
)

func main() {
	bin := flag.String("bin", "bin/troupe", "server binary")
	shots := flag.String("shots", "", "folder for screenshots of the chat page; empty: none is kept")
	only := flag.Bool("channel", false, "check clients of the channel protocol only")
	chat := flag.Bool("chat", false, "check the chat page only")
	console := flag.Bool("console", false, "check the console only")
	openAI := flag.Bool("openai", false, "check the client of the OpenAI API only, which needs npm alone")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	h := &harness{ctx: ctx, bin: *bin, shots: *shots, channelOnly: *only || *chat || *console, chatOnly: *chat, consoleOnly: *console, openAIOnly: *openAI, release: make(chan struct{}), releases: &releases{}}
	err := h.run()
	h.close()
	if err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

// harness holds the server, the external agent, and the clients.
type harness struct {
	ctx     context.Context
	bin     string
	dir     string
	listen  string
	url     string
	server  *servertest.Process
	agent   *http.Server
	release chan struct{} // closed when the agent may finish its answer
	readers []*reader

	key         string // sent with requests, if not empty
	shots       string
	channelOnly bool
	chatOnly    bool
	consoleOnly bool
	openAIOnly  bool
	releases    *releases // of the answers of the agent for channels
	channels    func() error
}

// reader is one client and the events it received.
type reader struct {
	name       string
	start      func(run string, after uint64) error // called again after a broken stream if reconnects is false
	reconnects bool                                 // resumes a broken stream by itself
	stop       func()

	mu      sync.Mutex
	seen    []string // ID and name of each event
	changed chan struct{}
}

func newReader(name string) *reader {
	return &reader{name: name, stop: func() {}, changed: make(chan struct{}, 1)}
}

// record records an event, such as "7 run_done".
func (r *reader) record(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, strings.TrimSpace(line))
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *reader) events() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.seen...)
}

// await waits until the received events satisfy ok.
func (r *reader) await(ctx context.Context, what string, ok func(seen []string) bool) error {
	for !ok(r.events()) {
		select {
		case <-r.changed:
		case <-ctx.Done():
			return fmt.Errorf("%s: no %s among the events received: %v", r.name, what, r.events())
		}
	}
	return nil
}

func (h *harness) run() (err error) {
	if h.dir, err = os.MkdirTemp("", "troupe-clients-"); err != nil {
		return err
	}
	if h.openAIOnly {
		npm, err := exec.LookPath("npm")
		if err != nil {
			return fmt.Errorf("missing: npm: on Debian, apt-get install npm")
		}
		node, err := h.fetchNode(npm)
		if err != nil {
			return err
		}
		return h.checkOpenAI(npm, node)
	}
	if err := h.findClients(); err != nil {
		return err
	}
	if err := h.startAgent(); err != nil {
		return err
	}
	if err := h.channels(); err != nil || h.channelOnly {
		return err
	}
	if err := h.checkProxies(); err != nil {
		return err
	}
	if err := h.startServer("127.0.0.1:0"); err != nil {
		return err
	}
	if err := h.post("/v1/agents/register", map[string]any{"agent_id": "teller", "endpoint": "http://" + h.agent.Addr, "retry": "safe"}); err != nil {
		return err
	}
	id, err := h.startRun()
	if err != nil {
		return err
	}
	fmt.Printf("run %s is in progress at %s\n", id, h.url)
	for _, r := range h.readers {
		if err := r.start(id, 0); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	for _, r := range h.readers {
		if err := r.await(h.ctx, "delta", func(seen []string) bool { return strings.HasSuffix(last(seen), runs.AgentStreamDelta.String()) }); err != nil {
			return err
		}
		fmt.Printf("  %-22s received %d events\n", r.name, len(r.events()))
	}
	_ = h.server.Stop(syscall.SIGKILL)
	fmt.Println("kill -9, then the server starts again")
	if err := h.startServer(h.listen); err != nil {
		return err
	}
	close(h.release)
	for _, r := range h.readers {
		if !r.reconnects {
			seen := r.events()
			after, _, _ := strings.Cut(last(seen), " ")
			n, err := strconv.ParseUint(after, 10, 64)
			if err == nil {
				err = r.start(id, n)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
		}
	}
	for _, r := range h.readers {
		if err := r.await(h.ctx, "terminal event", func(seen []string) bool { return strings.HasSuffix(last(seen), " "+runs.RunDone.String()) }); err != nil {
			return err
		}
	}
	want, err := h.events(id)
	if err != nil {
		return err
	}
	for _, r := range h.readers {
		how := "resumed with Last-Event-ID"
		if r.reconnects {
			how = "reconnected by itself"
		}
		if got := r.events(); strings.Join(got, "\n") != strings.Join(want, "\n") {
			return fmt.Errorf("%s received\n%s\nwant\n%s", r.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		fmt.Printf("  %-22s %s: %d events, no gap, no duplicate\n", r.name, how, len(want))
	}
	fmt.Printf("%d clients read one stream over two processes\n", len(h.readers))
	return nil
}

func last(seen []string) string {
	if len(seen) == 0 {
		return ""
	}
	return seen[len(seen)-1]
}

// findClients locates the client programs. Its error names the package of each
// missing one.
func (h *harness) findClients() error {
	var missing []string
	path := func(name, from string) string {
		p, err := exec.LookPath(name)
		if err != nil {
			missing = append(missing, name+": on Debian, apt-get install "+from)
		}
		return p
	}
	curl, python, npm, chromium := path("curl", "curl"), path("python3", "python3"), path("npm", "npm"), path("chromium", "chromium")
	for _, name := range []string{"haproxy", "nginx"} {
		if _, err := findProxy(name); err != nil {
			missing = append(missing, name+": on Debian, apt-get install "+name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing: %s", strings.Join(missing, "; "))
	}
	node, err := h.fetchNode(npm)
	if err != nil {
		return err
	}
	h.channels = func() error {
		if !h.channelOnly {
			if err := h.checkOpenAI(npm, node); err != nil {
				return err
			}
		}
		return h.checkChannels(python, node, npm, chromium)
	}
	h.readers = []*reader{h.curl(curl), h.program("Python's urllib", false, python, "-c", readPython),
		h.program("npm's eventsource", true, node, filepath.Join(h.dir, "npm", "read.mjs")), h.browser(chromium)}
	return nil
}

// fetchNode installs an EventSource and the Node.js it requires with npm.
func (h *harness) fetchNode(npm string) (string, error) {
	dir := filepath.Join(h.dir, "npm")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	for name, text := range map[string]string{"package.json": `{"private":true,"type":"module"}`, "read.mjs": readNode} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	fmt.Println("npm install node@22 eventsource@5")
	c := exec.CommandContext(h.ctx, npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "node@22", "eventsource@5")
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm: %w: %s", err, out)
	}
	return filepath.Join(dir, "node_modules", ".bin", "node"), nil
}

// process starts a client process and passes each line of its output to take.
func (h *harness) process(r *reader, take func(line string), name string, args ...string) error {
	r.stop()
	ctx, cancel := context.WithCancel(h.ctx)
	c := exec.CommandContext(ctx, name, args...)
	out, err := c.StdoutPipe()
	if err != nil {
		cancel()
		return err
	}
	if err := c.Start(); err != nil {
		cancel()
		return err
	}
	ended := make(chan struct{})
	r.stop = func() { cancel(); <-ended }
	go func() {
		defer close(ended)
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				break
			}
			take(line)
		}
		_ = c.Wait()
	}()
	return nil
}

// program returns a client that prints the ID and name of each event.
func (h *harness) program(name string, alone bool, command string, args ...string) *reader {
	r := newReader(name)
	r.reconnects = alone
	r.start = func(run string, after uint64) error {
		return h.process(r, r.record, command, append(args, h.url+"/v1/runs/"+run+"/events", strconv.FormatUint(after, 10))...)
	}
	return r
}

// curl returns a client that prints the raw stream. The harness parses it.
func (h *harness) curl(command string) *reader {
	r := newReader("curl -N")
	r.start = func(run string, after uint64) error {
		parser := upstream.NewParser(upstream.StreamLimits{})
		args := []string{"-sN", h.url + "/v1/runs/" + run + "/events", "-H", "Accept: text/event-stream"}
		if after > 0 {
			args = append(args, "-H", "Last-Event-ID: "+strconv.FormatUint(after, 10))
		}
		return h.process(r, func(line string) {
			events, _ := parser.Parse([]byte(line))
			for _, e := range events {
				r.record(e.ID + " " + e.Name)
			}
		}, command, args...)
	}
	return r
}

// browser returns a client that loads a page with the browser's own EventSource. A
// reverse proxy gives page and server the same origin. When the server aborts a
// connection, the proxy aborts the connection to the browser.
func (h *harness) browser(command string) *reader {
	r := newReader("the browser's own")
	r.reconnects = true
	r.start = func(run string, _ uint64) error {
		server, err := url.Parse(h.url)
		if err != nil {
			return err
		}
		front := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: nil,
			Rewrite:      func(p *httputil.ProxyRequest) { p.SetURL(server) },
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }}
		mux := http.NewServeMux()
		mux.Handle("/v1/", front)
		mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, readBrowser)
		})
		mux.HandleFunc("/saw", func(_ http.ResponseWriter, q *http.Request) {
			line, _ := io.ReadAll(io.LimitReader(q.Body, 1<<10))
			r.record(string(line))
		})
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		page := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
		go func() { _ = page.Serve(listener) }()
		err = h.process(r, func(string) {}, command, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
			"--user-data-dir="+filepath.Join(h.dir, "browser"), "http://"+listener.Addr().String()+"/#/v1/runs/"+run+"/events")
		stop := r.stop
		r.stop = func() { stop(); _ = page.Close() }
		return err
	}
	return r
}

// startAgent starts the external agent. The agent streams one piece of its answer, and the rest
// after the channel release is closed.
func (h *harness) startAgent() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /streamer/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /streamer/invoke", h.stream)
	mux.HandleFunc("POST /invoke", func(w http.ResponseWriter, q *http.Request) {
		run := q.Header.Get("x-run-id")
		w.Header().Set("Content-Type", "text/event-stream")
		send := func(name string, data map[string]string) {
			b, _ := json.Marshal(data, json.Deterministic(true))
			_, _ = w.Write(runs.Frame{Name: name, Data: string(b)}.Append(nil))
			w.(http.Flusher).Flush()
		}
		send("delta", map[string]string{"text": "This answer is streamed ", "run_id": run})
		select {
		case <-h.release:
		case <-q.Context().Done():
			return
		}
		send("delta", map[string]string{"text": "to the end", "run_id": run})
		send("done", nil)
	})
	h.agent = &http.Server{Addr: listener.Addr().String(), Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = h.agent.Serve(listener) }()
	return nil
}

func (h *harness) startServer(listen string) (err error) {
	cmd := exec.CommandContext(h.ctx, h.bin, "serve", "--data", filepath.Join(h.dir, "data"), "--listen", listen, "--log-level", "error")
	cmd.Stderr = os.Stderr
	if h.server, err = servertest.Start(cmd); err != nil {
		return err
	}
	h.url = h.server.Line
	h.listen = strings.TrimPrefix(h.url, "http://")
	return nil
}

// startRun starts a run and disconnects after its first event.
func (h *harness) startRun() (string, error) {
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/agents/teller/messages", strings.NewReader(`{"content":"start"}`))
	if err != nil {
		return "", err
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Accept", "text/event-stream")
	response, err := http.DefaultClient.Do(q)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", fmt.Errorf("the run did not start: %d, %w", response.StatusCode, err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			e, err := runs.Decode([]byte(strings.TrimSpace(data)))
			return e.Run.String(), err
		}
	}
}

func (h *harness) post(path string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(h.ctx, http.MethodPost, h.url+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/json")
	if h.key != "" {
		q.Header.Set("Authorization", "Bearer "+h.key)
	}
	response, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if answer, _ := io.ReadAll(response.Body); response.StatusCode >= 300 {
		return fmt.Errorf("POST %s: %d %s", path, response.StatusCode, answer)
	}
	return nil
}

// events returns the events of a run as the server lists them.
func (h *harness) events(run string) ([]string, error) {
	q, err := http.NewRequestWithContext(h.ctx, http.MethodGet, h.url+"/v1/runs/"+run+"/events", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var page struct {
		Events []struct {
			Seq  int    `json:"seq"`
			Type string `json:"type"`
		} `json:"events"`
	}
	if err := json.UnmarshalRead(response.Body, &page); err != nil {
		return nil, err
	}
	var all []string
	for _, e := range page.Events {
		all = append(all, fmt.Sprintf("%d %s", e.Seq, e.Type))
	}
	return all, nil
}

func (h *harness) close() {
	for _, r := range h.readers {
		r.stop()
	}
	if h.server != nil {
		_ = h.server.Stop(syscall.SIGTERM)
	}
	if h.agent != nil {
		_ = h.agent.Close()
	}
	_ = os.RemoveAll(h.dir)
}
