// SPDX-License-Identifier: Apache-2.0

// Command python shows an external agent in Python: the coordinator calls it, and it calls another agent.
//
// All parts are real. bin/troupe serves the agents of examples/team in a process of
// its own, and examples/python/agent.py registers with it. The demo checks each
// promise and ends with exit code 1 if one is broken.
package main

import (
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

	"github.com/troupe-run/troupe/internal/servertest"
)

// timeLimit is the maximum duration of the whole demo.
const timeLimit = time.Minute

func main() {
	word := flag.String("word", "xyzzy", "word that the scribe is asked about")
	bin := flag.String("bin", "bin/troupe", "server binary")
	python := flag.String("python", "bin/venv/bin/python", "Python that has the package troupe-sdk")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	d := &demo{ctx: ctx, bin: *bin, python: *python, word: strings.TrimSpace(*word)}
	err := d.run()
	err = errors.Join(err, d.stop())
	if err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		os.Exit(1)
	}
}

type demo struct {
	ctx       context.Context
	bin, word string
	python    string
	dir, url  string
	running   []*servertest.Process // stopped in reverse order
}

func (d *demo) run() (err error) {
	if d.word == "" {
		return errors.New("the word must not be empty: make demo-python WORD=xyzzy")
	}
	if _, err := os.Stat(d.python); err != nil {
		return fmt.Errorf("%w: make demo-python installs it", err)
	}
	if d.dir, err = os.MkdirTemp("", "troupe-python-"); err != nil {
		return err
	}
	printStep("Start a server with two agents from files.")
	if d.url, err = d.start(d.bin, "serve", "--data", filepath.Join(d.dir, "data"), "--listen", "127.0.0.1:0", "--agents", "examples/team", "--log-level", "warn"); err != nil {
		return err
	}
	printStep("Start an agent in Python, a function with the package troupe-sdk. It registers itself.")
	registered, err := d.start(d.python, "examples/python/agent.py", "--server", d.url, "--agent-id", "scribe", "--ask", "helper")
	if err != nil {
		return err
	}
	fmt.Println("  " + registered)
	printStep("Ask the coordinator to call the Python agent. During its run the Python agent calls\nthe helper, with the token of that run.")
	if err := d.command("call", "coordinator", "Ask the scribe agent what "+d.word+" means", "--stream", "--tree"); err != nil {
		return err
	}
	return d.check()
}

// start runs a program until the demo ends, and returns the first line of its
// output.
func (d *demo) start(name string, args ...string) (string, error) {
	fmt.Printf("  $ %s %s &\n", filepath.Base(name), strings.Join(args, " "))
	c := exec.CommandContext(d.ctx, name, args...)
	c.Stderr = os.Stderr
	p, err := servertest.Start(c)
	if err != nil {
		return "", err
	}
	d.running = append(d.running, p)
	return p.Line, nil
}

func (d *demo) command(args ...string) error {
	fmt.Printf("  $ troupe %s\n", strings.Join(args, " "))
	c := exec.CommandContext(d.ctx, d.bin, append(args, "--server", d.url)...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return c.Run()
}

// run is a run in the format of GET /v1/runs/{id}.
type run struct {
	Run      string   `json:"run_id"`
	Actor    string   `json:"actor"`
	Status   string   `json:"status"`
	Text     string   `json:"text"`
	Chain    []string `json:"call_chain"`
	Children []struct {
		Run string `json:"child_run_id"`
	} `json:"children"`
}

// check checks that the word passed through all three agents, each called by the
// one before.
func (d *demo) check() error {
	var list struct {
		Runs []run `json:"runs"`
	}
	if err := d.get("/v1/runs?limit=10", &list); err != nil {
		return err
	}
	var at *run
	for i := range list.Runs {
		if !strings.HasPrefix(list.Runs[i].Actor, "coordinator/") {
			continue
		}
		at = &run{}
		if err := d.get("/v1/runs/"+list.Runs[i].Run, at); err != nil {
			return err
		}
	}
	var chain []string
	for _, agent := range []string{"coordinator", "scribe", "helper"} {
		switch {
		case at == nil:
			return fmt.Errorf("no run of %s found", agent)
		case at.Status != "DONE" || !strings.HasPrefix(at.Actor, agent+"/") || !strings.Contains(at.Text, d.word):
			return fmt.Errorf("run %s of %s is %s with the answer %q: want one of %s with the word %q", at.Run, at.Actor, at.Status, at.Text, agent, d.word)
		case strings.Join(at.Chain, " ") != strings.Join(chain, " "):
			return fmt.Errorf("run %s of %s has the chain %v, want %v", at.Run, at.Actor, at.Chain, chain)
		}
		chain = append(chain, at.Actor)
		if agent == "helper" {
			break
		}
		if len(at.Children) != 1 {
			return fmt.Errorf("run %s of %s made %d calls, want one", at.Run, at.Actor, len(at.Children))
		}
		next := &run{}
		if err := d.get("/v1/runs/"+at.Children[0].Run, next); err != nil {
			return err
		}
		at = next
	}
	printStep("The chain of calls went through Python and back: %s.", strings.Join(chain, " -> "))
	return nil
}

func (d *demo) get(path string, into any) error {
	r, err := http.NewRequestWithContext(d.ctx, http.MethodGet, d.url+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", path, response.StatusCode, b)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// stop stops all processes. Each must exit with code 0.
func (d *demo) stop() error {
	var all error
	for i := len(d.running) - 1; i >= 0; i-- {
		if err := d.running[i].Stop(syscall.SIGTERM); err != nil {
			all = errors.Join(all, fmt.Errorf("process %d after SIGTERM: %w", d.running[i].Pid(), err))
		}
	}
	if d.dir != "" {
		all = errors.Join(all, os.RemoveAll(d.dir))
	}
	return all
}

func printStep(format string, args ...any) { fmt.Printf("\n"+format+"\n", args...) }
