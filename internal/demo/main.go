// SPDX-License-Identifier: Apache-2.0

// Command demo shows a newcomer, in a few seconds, a call between two agents that outlives a kill -9 of its server.
//
// Everything in it is real: the server is bin/troupe in a process of its own,
// asked over HTTP, killed with SIGKILL and started again on the folder that it
// left. What must hold is checked, and the demo ends with code 1 where it does not.
package main

import (
	"bufio"
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
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// within is how long the whole of it may take.
const within = time.Minute

func main() {
	word := flag.String("word", "xyzzy", "what the coordinator is to ask the helper")
	bin := flag.String("bin", "bin/troupe", "the server")
	clean := flag.Bool("clean", false, "remove the data folder at the end")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	d := &demo{ctx: ctx, bin: *bin, word: strings.TrimSpace(*word)}
	err := d.run()
	d.stop(syscall.SIGKILL)
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		if d.log != "" {
			fmt.Fprintln(os.Stderr, "The server's log is", d.log)
		}
		os.Exit(1)
	case *clean:
		if err := os.RemoveAll(d.dir); err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			os.Exit(1)
		}
		fmt.Printf("\nThe folder %s is removed.\n", d.dir)
	default:
		fmt.Printf("\nTo see the run again:\n  %s runs show %s --tree --data %s\nTo forget it:\n  rm -r %s\n", d.bin, d.id, d.data, d.dir)
	}
}

type demo struct {
	ctx            context.Context
	bin, word      string
	dir, data, log string
	server         *exec.Cmd
	url            string
	id             actor.CallID
}

func (d *demo) run() (err error) {
	if d.word == "" {
		return errors.New("want a word: make demo WORD=xyzzy")
	}
	if d.dir, err = os.MkdirTemp("", "troupe-demo-"); err != nil {
		return err
	}
	d.data, d.log = filepath.Join(d.dir, "data"), filepath.Join(d.dir, "server.log")

	say("A server with two agents. Its data folder is %s.", d.data)
	if err := d.start(); err != nil {
		return err
	}
	say("The coordinator is told %q. It asks the helper through call_agent, and then\nwaits for the signal go.", d.word)
	if err := d.tell(); err != nil {
		return err
	}
	before, err := d.await(runs.WaitOpened)
	if err != nil {
		return err
	}
	show(before)

	say("Whatever is shown is on disk, so now comes kill -9.")
	killed := d.server.Process.Pid
	d.stop(syscall.SIGKILL)
	fmt.Printf("  process %d is dead\n", killed)

	say("The same command again. Nothing is repaired by hand.")
	began := time.Now()
	if err := d.start(); err != nil {
		return err
	}
	fmt.Printf("  it answers after %v\n", time.Since(began).Round(time.Millisecond))

	say("The signal go.")
	if err := d.post("/v1/runs/"+d.id.String()+":signal", map[string]string{"name": "go"}, nil); err != nil {
		return err
	}
	after, err := d.await(runs.RunDone, runs.RunFailed, runs.RunCancelled)
	if err != nil {
		return err
	}
	show(after[len(before):])
	if err := d.check(before, after); err != nil {
		return err
	}
	say("The server is told to stop. What the folder holds of the run:")
	if err := d.stop(syscall.SIGTERM); err != nil {
		return fmt.Errorf("the server was told to stop: %w", err)
	}
	if err := d.count(); err != nil {
		return err
	}
	if err := d.command("runs", "show", d.id.String(), "--tree", "--data", d.data); err != nil {
		return err
	}
	if err := d.command("runs", "events", d.id.String(), "--data", d.data); err != nil {
		return err
	}
	say("One answer, one call to the helper, one stream of %d events without a gap,\nover two processes.", len(after))
	return nil
}

// start runs the server and waits until it says where it answers.
func (d *demo) start() error {
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"serve", "--ready", "--data", d.data, "--listen", "127.0.0.1:0"}
	fmt.Printf("  $ %s %s &\n", d.bin, strings.Join(args, " "))
	d.server = exec.CommandContext(d.ctx, d.bin, args...)
	d.server.Stderr = log
	out, err := d.server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := d.server.Start(); err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the server does not come up: %w", d.stop(syscall.SIGTERM))
	}
	d.url = strings.TrimSpace(line)
	fmt.Printf("  process %d answers at %s\n", d.server.Process.Pid, d.url)
	return nil
}

// stop sends the server a signal and waits for its end; after SIGTERM that has to be a good one.
func (d *demo) stop(signal syscall.Signal) error {
	if d.server == nil || d.server.Process == nil {
		return nil
	}
	_ = d.server.Process.Signal(signal)
	err := d.server.Wait()
	d.server = nil
	return err
}

// tell gives the coordinator its word and takes down the run's id.
func (d *demo) tell() error {
	var out struct {
		Run    string `json:"run_id"`
		Detail string `json:"detail"`
	}
	if err := d.post("/v1/agents/coordinator/messages", map[string]string{"content": d.word, "session": "demo"}, &out); err != nil {
		return err
	}
	var err error
	d.id, err = actor.ParseCallID(out.Run)
	fmt.Printf("  202: %s\n  run %s\n", out.Detail, out.Run)
	return err
}

// await reads the run's events until one is of a wanted type.
func (d *demo) await(wanted ...runs.Type) (all []runs.Event, err error) {
	for {
		var page struct {
			Events []jsontext.Value `json:"events"`
		}
		if err := d.get(fmt.Sprintf("/v1/runs/%s/events?after=%d&wait_ms=10000", d.id, len(all)), &page); err != nil {
			return nil, err
		}
		for _, raw := range page.Events {
			e, err := runs.Decode(raw)
			if err != nil {
				return nil, err
			}
			all = append(all, e)
			for _, t := range wanted {
				if e.Type == t {
					return all, nil
				}
			}
		}
	}
}

// check sees that the answer holds the word, and that the second process went on
// where the first had stopped.
func (d *demo) check(before, after []runs.Event) error {
	for i := range before {
		if !bytes.Equal(runs.Encode(before[i]), runs.Encode(after[i])) {
			return fmt.Errorf("event %d was %v, and is now %v", i+1, &before[i], &after[i])
		}
	}
	record, err := runs.Fold(after) // in order, without a gap
	if err != nil {
		return err
	}
	if record.Status != runs.Done || !strings.Contains(record.Text, d.word) {
		return fmt.Errorf("the run is %s and says %q, without the word %q", record.Status, record.Text, d.word)
	}
	fmt.Printf("\n  answer: %s\n", record.Text)
	return nil
}

// count looks into the store for every run there ever was.
func (d *demo) count() error {
	s, err := disk.Open(d.data, "", disk.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer s.Close()
	all, err := store.Runs(s, actor.DefaultTenant, 1000, false)
	if err != nil {
		return err
	}
	var coordinators, helpers int
	for _, r := range all {
		switch r.Actor.Agent {
		case "coordinator":
			coordinators++
		case "helper":
			helpers++
		}
	}
	if coordinators != 1 || helpers != 1 {
		return fmt.Errorf("%d runs of the coordinator and %d of the helper: want one of each", coordinators, helpers)
	}
	fmt.Println("  the helper was asked exactly once")
	return nil
}

// command runs the binary as a person would, and shows what it prints.
func (d *demo) command(args ...string) error {
	fmt.Printf("\n  $ %s %s\n", d.bin, strings.Join(args, " "))
	out, err := exec.CommandContext(d.ctx, d.bin, args...).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		fmt.Print("  ", line)
	}
	return err
}

func (d *demo) post(path string, body, answer any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return d.ask(http.MethodPost, path, b, answer)
}

func (d *demo) get(path string, answer any) error { return d.ask(http.MethodGet, path, nil, answer) }

func (d *demo) ask(method, path string, body []byte, answer any) error {
	if body != nil {
		fmt.Printf("  %s %s  %s\n", method, path, body)
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

var steps int

func say(format string, args ...any) {
	steps++
	fmt.Printf("\n%d. "+strings.ReplaceAll(format, "\n", "\n   ")+"\n", append([]any{steps}, args...)...)
}

func show(events []runs.Event) {
	for i := range events {
		fmt.Println("  ", events[i].String())
	}
}
