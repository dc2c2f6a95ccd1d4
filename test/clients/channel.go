// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	_ "embed" // the clients' own programs
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/fasthttp/websocket"
	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/internal/servertest"
)

var (
	//go:embed channel.py
	channelPython string
	//go:embed channel.mjs
	channelNode string
	//go:embed chat.mjs
	chatBrowser string
	//go:embed console.mjs
	consoleBrowser string
)

// cutsMin is the number of connections of a client that are cut at a random byte.
const cutsMin = 50

// cutBytesMax is the maximum number of bytes of a connection that is cut. It is larger than a handshake and a
// few messages, so that a client makes progress.
const cutBytesMax = 6000

// channelTest is a server for clients of the channel protocol, with the agents and tools that they use.
type channelTest struct {
	*harness
	dir    string
	listen string
	args   []string
	server *servertest.Process
	cutter *cutter
}

// checkChannels runs a client of each kind, one after the other, and then the chat page in a browser.
// With chatOnly it runs the chat page only.
func (h *harness) checkChannels(python, node, npm, chromium string) error {
	venv := filepath.Join(h.dir, "venv")
	fmt.Println("npm install ws@8 playwright-core@1")
	installs := [][]string{{npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "ws@8", "playwright-core@1"}}
	if !h.chatOnly && !h.consoleOnly {
		fmt.Println("pip install websockets")
		installs = append(installs, []string{python, "-m", "venv", venv},
			[]string{filepath.Join(venv, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check", "websockets>=13"})
	}
	for _, args := range installs {
		c := exec.CommandContext(h.ctx, args[0], args[1:]...)
		c.Dir = filepath.Join(h.dir, "npm")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	programs := map[string]string{"channel.py": channelPython, "channel.mjs": channelNode, "chat.mjs": chatBrowser, "console.mjs": consoleBrowser}
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(h.dir, "npm", name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	at := func(name string) string { return filepath.Join(h.dir, "npm", name) }
	switch {
	case h.chatOnly:
		return h.checkChat(node, at("chat.mjs"), chromium)
	case h.consoleOnly:
		return h.checkConsole(node, at("console.mjs"), chromium)
	}
	for _, client := range []struct{ name, program, file string }{
		{"Python's websockets", filepath.Join(venv, "bin", "python"), "channel.py"}, {"npm's ws", node, "channel.mjs"},
	} {
		if err := h.checkChannel(client.name, client.program, at(client.file)); err != nil {
			return fmt.Errorf("%s: %w", client.name, err)
		}
	}
	if err := h.checkChat(node, at("chat.mjs"), chromium); err != nil {
		return err
	}
	return h.checkConsole(node, at("console.mjs"), chromium)
}

// start starts the server, again after the first time.
func (t *channelTest) start() (err error) {
	if t.listen == "" {
		t.listen = "127.0.0.1:0"
	}
	cmd := exec.CommandContext(t.ctx, t.bin, append([]string{"serve", "--data", t.dir, "--listen", t.listen, "--log-level", "error"}, t.args...)...)
	cmd.Stderr = os.Stderr
	if t.server, err = servertest.Start(cmd); err == nil {
		t.listen = strings.TrimPrefix(t.server.Line, "http://")
		t.url = t.server.Line
	}
	return err
}

// createKey creates the key of all requests.
func (t *channelTest) createKey() error {
	out, err := exec.CommandContext(t.ctx, t.bin, "keys", "create", "--data", t.dir, "--scope", "admin").Output()
	if err != nil {
		return fmt.Errorf("keys create: %w", err)
	}
	t.key = strings.TrimSpace(string(out))
	return nil
}

func (t *channelTest) stop() {
	if t.server != nil {
		_ = t.server.Stop(syscall.SIGKILL)
	}
}

// declare declares the tools and agents.
func (t *channelTest) declare() error {
	for _, one := range []struct {
		path string
		body map[string]any
	}{
		{"/v1/tools", map[string]any{"tool_name": "user.ask", "kind": "client_tool"}},
		{"/v1/tools", map[string]any{"tool_name": "user.pay", "kind": "client_tool", "policy": "require_approval"}},
		{"/v1/agents", map[string]any{"name": "concierge", "tools": []string{"user.ask", "user.pay"}}},
		{"/v1/agents/register", map[string]any{"agent_id": "streamer", "endpoint": "http://" + t.agent.Addr + "/streamer", "retry": "safe"}},
		{"/v1/agents/register", map[string]any{"agent_id": "foreign", "endpoint": "http://" + t.agent.Addr + "/streamer", "limits": map[string]any{"retry_attempts": 1}}},
	} {
		if err := t.post(one.path, one.body); err != nil {
			return err
		}
	}
	return nil
}

// checkChannel runs a client whose connections are cut. It must receive every message of its session once.
func (h *harness) checkChannel(name, program, file string) error {
	inner := *h
	t := &channelTest{harness: &inner, dir: filepath.Join(h.dir, "channel-"+filepath.Base(file))}
	defer t.stop()
	if err := t.createKey(); err != nil { // the port in Host is that of the cutter, so keys are required
		return err
	}
	if err := t.start(); err != nil {
		return err
	}
	if err := t.declare(); err != nil {
		return err
	}
	var err error
	if t.cutter, err = newCutter(t.listen); err != nil {
		return err
	}
	defer t.cutter.listener.Close()
	got, err := t.drive(program, file, "ws://"+t.cutter.listener.Addr().String()+"/v1/ws", t.key)
	if err != nil {
		return err
	}
	want, err := t.messages("s1")
	if err != nil {
		return err
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			return fmt.Errorf("message %d of %d is\n%s\nwant %d messages, and there\n%s", i, len(got), nth(got, i), len(want), nth(want, i))
		}
	}
	fmt.Printf("  %-22s %d messages over %d cuts and a kill -9: no gap, no duplicate\n", name, len(got), t.cutter.cuts.Load())
	return nil
}

func nth(all []string, i int) string {
	if i < len(all) {
		return all[i]
	}
	return "(none)"
}

// drive runs a client program, which requests by lines of its output: "stop" kills the server, "start" starts it, "restart" does both,
// "release" lets the agent finish, "cuts" asks for the number of cut connections. The lines that begin
// with "m " are the messages that it received.
func (t *channelTest) drive(program string, args ...string) (got []string, err error) {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	c := exec.CommandContext(ctx, program, args...)
	c.Dir, c.Stderr = filepath.Join(t.harness.dir, "npm"), os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	ended := false
	defer func() {
		if cancel(); !ended {
			_ = c.Wait()
		}
	}()
	for lines := bufio.NewReader(out); ; {
		line, readErr := lines.ReadString('\n')
		if readErr != nil {
			ended = true
			return got, c.Wait()
		}
		answer := "done"
		switch word, rest, _ := strings.Cut(strings.TrimSpace(line), " "); word {
		case "m":
			got = append(got, rest)
			continue
		case "stop":
			t.stop()
		case "start":
			err = t.start()
		case "restart":
			t.stop()
			err = t.start()
		case "release":
			t.releases.Add(1)
		case "cuts":
			answer = fmt.Sprint(t.cutter.cuts.Load() >= cutsMin)
		default:
			fmt.Printf("  %s\n", strings.TrimSpace(line))
			continue
		}
		if err != nil {
			return got, err
		}
		if _, err := io.WriteString(in, answer+"\n"); err != nil {
			return got, err
		}
	}
}

// messages returns the messages of a session, read on one connection.
func (t *channelTest) messages(session string) (all []string, err error) {
	conn, _, err := websocket.DefaultDialer.DialContext(t.ctx, "ws://"+t.listen+"/v1/ws", http.Header{"Authorization": {"Bearer " + t.key}})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.WriteMessage(websocket.TextMessage, []byte(`{"type":"hello","resume":{"session_id":"`+session+`"}}`)); err != nil {
		return nil, err
	}
	for {
		_, body, err := conn.ReadMessage()
		if err != nil {
			return nil, err
		}
		var m struct {
			Run   string `json:"run_id"`
			State string `json:"state"`
		}
		switch err := json.Unmarshal(body, &m); {
		case err != nil:
			return nil, err
		case m.State == "LIVE":
			return all, nil
		case m.Run != "":
			all = append(all, string(body))
		}
	}
}

// checkChat drives the chat page of a server that requires an API key.
func (h *harness) checkChat(node, file, chromium string) error {
	inner := *h
	t := &channelTest{harness: &inner, dir: filepath.Join(h.dir, "channel-chat"), args: []string{"--keyless", "off", "--allow", "127.0.0.0/8", "--pace", "40ms", "--config", filepath.Join(h.dir, "chat.toml")}}
	defer t.stop()
	config := "[chat]\nagents = [\"streamer\", \"concierge\", \"none\", \"foreign\"]\ndefault = \"concierge\"\ntitle = \"Front desk\"\ntokens = false\n"
	if err := os.WriteFile(filepath.Join(h.dir, "chat.toml"), []byte(config), 0o644); err != nil {
		return err
	}
	if err := t.createKey(); err != nil {
		return err
	}
	if err := t.start(); err != nil {
		return err
	}
	if err := t.declare(); err != nil {
		return err
	}
	foreign, err := writeForeign(h.dir)
	if err != nil {
		return err
	}
	shots := filepath.Join(h.dir, "shots")
	if h.shots != "" {
		shots = h.shots
	}
	if _, err := t.drive(node, file, t.url, t.key, chromium, shots, foreign); err != nil {
		return fmt.Errorf("the chat page: %w", err)
	}
	fmt.Printf("  %-22s key, answer, queue, approval, device tool, cancel, kill -9, unsent messages, failures, answers of foreign agents, 106 conversations, rename, delete, both themes, 320 to 406 px\n", "the chat page")
	return nil
}

// checkConsole drives the console of a server that requires an API key.
func (h *harness) checkConsole(node, file, chromium string) error {
	inner := *h
	t := &channelTest{harness: &inner, dir: filepath.Join(h.dir, "console"), args: []string{"--keyless", "off", "--allow", "127.0.0.0/8", "--config", filepath.Join(h.dir, "console.toml")}}
	defer t.stop()
	if err := os.WriteFile(filepath.Join(h.dir, "console.toml"), []byte("[limits]\nstream_events_max = 20000\n"), 0o600); err != nil {
		return err
	}
	if err := t.createKey(); err != nil {
		return err
	}
	if err := t.start(); err != nil {
		return err
	}
	if err := t.declare(); err != nil {
		return err
	}
	shots := cmp.Or(h.shots, filepath.Join(h.dir, "shots"))
	if _, err := t.drive(node, file, t.url, t.key, chromium, shots); err != nil {
		return fmt.Errorf("the console: %w", err)
	}
	fmt.Printf("  %-22s key, exact arguments, scripts in texts, decisions here and elsewhere, keyboard, filters, replay, kill -9, 10,000 events, dark at 390 px\n", "the console")
	return nil
}

// stream answers as an external agent: a number gives as many pieces, "hold" a piece and the rest after the next
// release, "endless" one piece and no end, "fail" an error, "code" a block of code, "states N"
// as many states, and "foreign NAME" what others send.
func (h *harness) stream(w http.ResponseWriter, q *http.Request) {
	var in struct {
		Input struct {
			Content string `json:"content"`
		} `json:"input_message"`
	}
	body, _ := io.ReadAll(io.LimitReader(q.Body, 4<<20))
	if err := json.Unmarshal(body, &in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if name, ok := strings.CutPrefix(in.Input.Content, "foreign "); ok {
		f, err := readForeign(filepath.Join(foreignAgents, filepath.Base(name)+".txt"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		w.Header()["Content-Type"] = nil
		if f.media != "" {
			w.Header().Set("Content-Type", f.media)
		}
		_, _ = io.WriteString(w, f.body)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	delta := func(text string) {
		fmt.Fprintf(w, "event: delta\ndata: {\"text\": %q}\n\n", text)
		w.(http.Flusher).Flush()
	}
	switch in.Input.Content {
	case "fail":
		fmt.Fprint(w, "event: error\ndata: {\"code\": \"boom_7\", \"message\": \"socket hang up\"}\n\n")
		return
	case "code":
		delta("```js\nlet a = 1;\n```\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n")
		fmt.Fprint(w, "event: done\ndata: {}\n\n")
		return
	}
	var count int
	if _, err := fmt.Sscanf(in.Input.Content, "states %d", &count); err == nil { // events that are not joined, as pieces are
		for i := range count {
			fmt.Fprintf(w, "event: state\ndata: {\"state\": \"step %d\"}\n\n", i)
		}
		fmt.Fprint(w, "event: done\ndata: {}\n\n")
		return
	}
	if _, err := fmt.Sscan(in.Input.Content, &count); err != nil {
		delta("the first piece ")
		released := h.releases.Load()
		for in.Input.Content != "hold" || h.releases.Load() == released {
			if q.Context().Err() != nil || !h.releases.await(q.Context()) {
				return
			}
		}
		delta("and the last one")
	}
	for i := range count {
		delta(fmt.Sprintf("piece %d ", i))
	}
	fmt.Fprint(w, "event: done\ndata: {}\n\n")
}

// releases counts the releases of answers that are held.
type releases struct {
	mu      sync.Mutex
	count   int64
	changed chan struct{}
}

func (r *releases) Add(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count += n
	close(r.channel())
	r.changed = nil
}

func (r *releases) Load() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

func (r *releases) channel() chan struct{} {
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

// await waits for the next release. It reports false if ctx has ended.
func (r *releases) await(ctx context.Context) bool {
	r.mu.Lock()
	changed := r.channel()
	r.mu.Unlock()
	select {
	case <-changed:
		return true
	case <-ctx.Done():
		return false
	}
}

// cutter forwards connections to a server and cuts the first ones at a random byte of either direction.
type cutter struct {
	listener net.Listener
	server   string
	cuts     atomic.Int64
}

func newCutter(server string) (*cutter, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cutter{listener: listener, server: server}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go c.forward(conn)
		}
	}()
	return c, nil
}

// forward forwards a connection in both directions until one end closes it or the cut.
func (c *cutter) forward(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	defer server.Close()
	left := &atomic.Int64{}
	left.Store(1 << 60)
	if c.cuts.Load() < cutsMin {
		left.Store(rand.Int64N(cutBytesMax))
	}
	ended := make(chan struct{}, 2)
	for _, ends := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			defer func() { ended <- struct{}{} }()
			buffer := make([]byte, 512)
			for {
				n, err := ends[0].Read(buffer)
				rest := left.Add(-int64(n))
				if rest < 0 {
					n = max(0, n+int(rest))
				}
				if _, writeErr := ends[1].Write(buffer[:n]); err != nil || writeErr != nil {
					return
				}
				if rest < 0 {
					c.cuts.Add(1)
					if tcp, ok := client.(*net.TCPConn); ok && rand.IntN(2) == 0 {
						_ = tcp.SetLinger(0) // a reset instead of an end
					}
					return
				}
			}
		}()
	}
	<-ended
}
