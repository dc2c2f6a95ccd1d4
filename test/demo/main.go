// SPDX-License-Identifier: Apache-2.0

// Command demo shows, in a few seconds, two agents that call each other and a streamed answer that survives a kill -9 of its server.
// With -approval it shows instead a payment that waits for a person across a kill -9, and with -team a team of
// nine agents that answers as one.
//
// All parts are real. The server is bin/troupe in a process of its own, used over
// HTTP, killed with SIGKILL and restarted on the same data folder. The demo checks
// each promise and ends with exit code 1 if one is broken.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/internal/servertest"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// timeLimit is the maximum duration of the whole demo.
const timeLimit = time.Minute

func main() {
	word := flag.String("word", "xyzzy", "word that the helper is asked to say")
	bin := flag.String("bin", "bin/troupe", "server binary")
	clean := flag.Bool("clean", false, "remove the data folder at the end")
	approval := flag.Bool("approval", false, "show a payment that a person approves")
	team := flag.Bool("team", false, "show a team that answers as one")
	payments := flag.String("payments", "", "only run the payment service of "+approvalDir+" at this address")
	ledger := flag.String("ledger", "payments.txt", "file to which -payments appends the payments")
	flag.Parse()
	if *payments != "" {
		fmt.Fprintln(os.Stderr, "demo:", servePayments(*payments, *ledger))
		os.Exit(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	d := &demo{ctx: ctx, bin: *bin, word: strings.TrimSpace(*word)}
	if d.word == "" || strings.ContainsAny(d.word, "\r\n") {
		fmt.Fprintln(os.Stderr, "demo: the word must be one non-empty line: make demo WORD=xyzzy")
		os.Exit(1)
	}
	show := d.run
	if *approval {
		show = d.runApproval
	}
	if *team {
		show = d.runTeam
	}
	err := d.prepare()
	if err == nil {
		err = show()
	}
	d.stop(syscall.SIGKILL)
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		if d.log != "" {
			fmt.Fprintln(os.Stderr, "Server log:", d.log)
		}
		os.Exit(1)
	case *clean:
		if err := os.RemoveAll(d.dir); err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			os.Exit(1)
		}
		fmt.Printf("\nThe folder %s is removed.\n", d.dir)
	default:
		fmt.Printf("\nTo show the run again:\n  %s runs show %s --tree --data %s\nTo remove its data:\n  rm -r %s\n", d.bin, d.id, d.data, d.dir)
	}
}

type demo struct {
	ctx            context.Context
	bin, word      string
	dir, data, log string
	listen, url    string
	server         *servertest.Process
	id             actor.CallID // the streamed run
}

// teamDir is the folder with the agent files.
const teamDir = "examples/team"

// prepare makes a folder for the data of the demo.
func (d *demo) prepare() (err error) {
	d.dir, err = os.MkdirTemp("", "troupe-demo-")
	d.data, d.log, d.listen = filepath.Join(d.dir, "data"), filepath.Join(d.dir, "server.log"), "127.0.0.1:0"
	return err
}

// run shows two agents that call each other, and a recovery.
func (d *demo) run() error {
	printStep("Start a server without agents. Its built-in scripted model follows simple\ncommands, slowly, and needs no API key. The data folder is\n%s.", d.data)
	if err := d.start(); err != nil {
		return err
	}
	printStep("Create two agents; only a name is required. Then send a message\nthat makes the coordinator call the helper.")
	for _, name := range []string{"helper", "coordinator"} {
		if err := d.post("/v1/agents", map[string]string{"name": name}, nil); err != nil {
			return err
		}
	}
	var first struct {
		Content string `json:"content"`
	}
	if err := d.post(messagesPath, map[string]string{"content": "Ask the helper agent to say " + d.word}, &first); err != nil {
		return err
	}
	fmt.Printf("  answer: %s\n", first.Content)
	if !strings.Contains(first.Content, d.word) {
		return fmt.Errorf("the answer %q does not contain the word %q", first.Content, d.word)
	}

	printStep("Send the message again and stream the answer. Kill the server with kill -9 in the\nmiddle of it.")
	before, err := d.streamUntilKill()
	if err != nil {
		return err
	}
	killed := d.server.Pid()
	d.stop(syscall.SIGKILL) //nolint:errcheck // a killed process never exits with code 0
	fmt.Printf("  process %d was killed after %d events\n", killed, len(before))

	printStep("Start a new process on the same data folder, now with agents from files. Nothing is\nrepaired by hand. The client resumes the stream after the last event it received.")
	began := time.Now()
	if err := d.start("--agents", teamDir); err != nil {
		return err
	}
	fmt.Printf("  ready after %v\n", time.Since(began).Round(time.Millisecond))
	after, err := d.resume(before)
	if err != nil {
		return err
	}
	if err := d.checkAnswer(before, after); err != nil {
		return err
	}

	printStep("The resumed run used the agent definitions it had started with. New runs use those\nfrom the files.")
	if err := d.command("agents", "list", "--server", d.url); err != nil {
		return err
	}
	if err := d.command("call", "coordinator", "Ask the helper agent to say "+d.word, "--session", "files", "--tree", "--server", d.url); err != nil {
		return err
	}
	printStep("Stop the server and inspect the streamed run in the data folder.")
	if err := d.stop(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	if err := d.checkStore(); err != nil {
		return err
	}
	if err := d.command("runs", "show", d.id.String(), "--tree", "--data", d.data); err != nil {
		return err
	}
	if err := d.command("doctor", d.data); err != nil {
		return err
	}
	printStep("One answer, one call to the helper, one stream of %d events without a gap,\nover two processes.", len(after))
	return nil
}

const messagesPath = "/v1/agents/coordinator/messages"

// start runs the server and waits until it prints its address. A restart uses the
// same address.
func (d *demo) start(more ...string) error {
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := append([]string{"serve", "--data", d.data, "--listen", d.listen, "--pace", "50ms"}, more...)
	fmt.Printf("  $ %s %s &\n", d.bin, strings.Join(args, " "))
	cmd := exec.CommandContext(d.ctx, d.bin, args...)
	cmd.Stderr = log
	if d.server, err = servertest.Start(cmd); err != nil {
		return err
	}
	d.url = d.server.Line
	d.listen = strings.TrimPrefix(d.url, "http://")
	fmt.Printf("  process %d listens at %s\n", d.server.Pid(), d.url)
	return nil
}

// stop sends the server a signal and waits. After SIGTERM a non-zero exit is an
// error.
func (d *demo) stop(signal syscall.Signal) error {
	if d.server == nil {
		return nil
	}
	err := d.server.Stop(signal)
	d.server = nil
	return err
}

// deltasBeforeKill is the number of deltas shown before the server is killed.
const deltasBeforeKill = 3

// streamUntilKill streams an answer and returns in the middle of it. It records the
// ID of the run.
func (d *demo) streamUntilKill() ([]runs.Event, error) {
	content := "Ask the helper agent to say " + d.word + "\nsay That was the answer of the helper. It was called once, through call_agent, in a turn that began in one process and ended in another."
	body, err := json.Marshal(map[string]string{"content": content, "session": "demo"})
	if err != nil {
		return nil, err
	}
	pieces := 0
	return d.stream(http.MethodPost, messagesPath, body, 0, func(e *runs.Event) bool {
		d.id = e.Run
		if e.Type == runs.AgentStreamDelta {
			pieces++
		}
		return pieces == deltasBeforeKill
	})
}

// resume reads the rest of the stream, after the last event received.
func (d *demo) resume(before []runs.Event) ([]runs.Event, error) {
	after, err := d.stream(http.MethodGet, "/v1/runs/"+d.id.String()+"/events", nil, before[len(before)-1].Seq, func(e *runs.Event) bool { return e.Type.Ends() })
	return append(before[:len(before):len(before)], after...), err
}

// stream reads Server-Sent Events and prints them until the callback enough returns true.
func (d *demo) stream(method, path string, body []byte, after uint64, enough func(*runs.Event) bool) (all []runs.Event, err error) {
	fmt.Printf("  $ curl -N -X %s %s%s -H 'Accept: text/event-stream'", method, d.url, path)
	request, err := http.NewRequestWithContext(d.ctx, method, d.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/event-stream")
	if body != nil {
		fmt.Printf(" -H 'Content-Type: application/json' -d '%s'", body)
		request.Header.Set("Content-Type", "application/json")
	}
	if after > 0 {
		fmt.Printf(" -H 'Last-Event-ID: %d'", after)
		request.Header.Set("Last-Event-ID", fmt.Sprint(after))
	}
	fmt.Println()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(response.Body)
		return nil, fmt.Errorf("%s %s: %d %s", method, path, response.StatusCode, b)
	}
	parser := upstream.NewParser(upstream.StreamLimits{})
	buf := make([]byte, 32<<10)
	for {
		n, readErr := response.Body.Read(buf)
		events, refusal := parser.Parse(buf[:n])
		if refusal != nil {
			return all, refusal
		}
		for _, frame := range events {
			e, err := runs.Decode([]byte(frame.Data))
			if err != nil {
				return all, err
			}
			if frame.ID != fmt.Sprint(e.Seq) || frame.Name != e.Type.String() {
				return all, fmt.Errorf("frame %s %s holds event %d %s", frame.ID, frame.Name, e.Seq, e.Type)
			}
			all = append(all, e)
			printEvents([]runs.Event{e})
			if enough(&e) {
				return all, nil
			}
		}
		if readErr != nil {
			return all, fmt.Errorf("the stream ended early: %w", readErr)
		}
	}
}

// checkAnswer checks that the answer contains the word, that the stream has no gap,
// and that its deltas add up to the text of the last event.
func (d *demo) checkAnswer(before, after []runs.Event) error {
	record, err := runs.Fold(after) // fails on a gap or a wrong order
	if err != nil {
		return err
	}
	if record.Status != runs.Done || !strings.Contains(record.Text, d.word) {
		return fmt.Errorf("the run is %s with the answer %q, want %q in it", record.Status, record.Text, d.word)
	}
	var said runs.AnswerText
	for i := range after {
		said.Apply(&after[i])
	}
	if text, streamed := said.Streamed(); !streamed || text != record.Text {
		return fmt.Errorf("the deltas add up to %q, the answer is %q", text, record.Text)
	}
	if record.Attempt < 2 || len(after) <= len(before) {
		return errors.New("the run ended before the server was killed")
	}
	fmt.Printf("\n  answer: %s\n  The attempt event discards the deltas of the interrupted attempt. The remaining\n  deltas are exactly this answer.\n", record.Text)
	return nil
}

// checkStore checks that the store holds one run of each agent for the streamed
// call.
func (d *demo) checkStore() error {
	s, err := disk.Open(d.data, "", disk.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer s.Close()
	var coordinators, helpers int
	err = store.EachRun(s, actor.DefaultTenant, runs.Filter{Root: d.id, Calls: true}, func(r *runs.Summary) {
		switch r.Actor.Agent {
		case "coordinator":
			coordinators++
		case "helper":
			helpers++
		}
	})
	if err != nil {
		return err
	}
	if coordinators != 1 || helpers != 1 {
		return fmt.Errorf("got %d runs of the coordinator and %d of the helper, want one of each", coordinators, helpers)
	}
	fmt.Println("  the helper was called exactly once")
	return nil
}

// command runs the binary as a user would and prints its output.
func (d *demo) command(args ...string) error {
	_, err := d.output(args...)
	return err
}

// output is command, and returns the output.
func (d *demo) output(args ...string) (string, error) {
	shown := slices.Clone(args)
	for i, arg := range shown {
		if strings.ContainsAny(arg, " '") {
			shown[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	fmt.Printf("\n  $ %s %s\n", d.bin, strings.Join(shown, " "))
	out, err := exec.CommandContext(d.ctx, d.bin, args...).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		fmt.Print("  ", line)
	}
	return string(out), err
}

func (d *demo) post(path string, body, answer any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return d.request(http.MethodPost, path, b, answer)
}

func (d *demo) request(method, path string, body []byte, answer any) error {
	if body != nil {
		fmt.Printf("  $ curl -X %s %s%s -H 'Content-Type: application/json' -d '%s'\n", method, d.url, path, body)
	}
	request, err := http.NewRequestWithContext(d.ctx, method, d.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode >= 300:
		return fmt.Errorf("%s %s: %d %s", method, path, response.StatusCode, b)
	case answer == nil:
		return nil
	}
	return json.Unmarshal(b, answer)
}

var stepsPrinted int

func printStep(format string, args ...any) {
	stepsPrinted++
	fmt.Printf("\n%d. "+strings.ReplaceAll(format, "\n", "\n   ")+"\n", append([]any{stepsPrinted}, args...)...)
}

func printEvents(events []runs.Event) {
	for i := range events {
		fmt.Println("  ", events[i].String())
	}
}
