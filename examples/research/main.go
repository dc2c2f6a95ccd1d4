// SPDX-License-Identifier: Apache-2.0

// Command research shows a coordinator that asks three agents and does not wait: it goes on talking to the user, and
// reports each answer when it comes, also those that were pending when its process was killed. One of the agents is
// written in Python. With -stay it then serves the chat page.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/troupe-run/troupe"
)

var (
	python = flag.String("python", "python3", "Python 3, for the agent history")
	stay   = flag.Bool("stay", false, "serve the chat page at the end")
	child  = flag.String("child", "", "only for this program: the data folder of the process that is killed")
	script = flag.String("history", "", "only for this program: URL of the agent history")
)

// The conversation. The process is killed after the first two messages.
var before, after = []string{"research rain", "how are you meanwhile?"}, []string{"are you still there?"}

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "research:", err)
		os.Exit(1)
	}
}

func run() error {
	if *child != "" {
		return talk(*child, before, func(*troupe.Server) error {
			process, err := os.FindProcess(os.Getpid())
			if err != nil {
				return err
			}
			return process.Kill()
		})
	}
	history, url, err := startHistory()
	if err != nil {
		return err
	}
	defer history.Process.Kill()
	dir, err := os.MkdirTemp("", "research-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	first := exec.Command(os.Args[0], "-child", dir, "-history", url)
	first.Stdout, first.Stderr = os.Stdout, os.Stderr
	if err := first.Run(); err == nil || first.ProcessState.Exited() {
		return fmt.Errorf("the first process was not killed: %w", err)
	}
	fmt.Println("\n-- kill -9; a new process opens the same folder --")
	return talk(dir, after, report)
}

// startHistory starts the agent in Python, and returns its URL.
func startHistory() (*exec.Cmd, string, error) {
	if _, err := exec.LookPath(*python); err != nil {
		return nil, "", fmt.Errorf("%s is missing, which runs the agent history: install Python 3, or name it with -python", *python)
	}
	c := exec.Command(*python, "examples/research/history.py")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := c.Start(); err != nil {
		return nil, "", err
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, "", fmt.Errorf("examples/research/history.py printed no URL: %w", err)
	}
	return c, strings.TrimSpace(url), nil
}

const session = "s"

// talk opens the agents, sends messages of the user to the coordinator, and then does the rest.
func talk(dir string, messages []string, then func(*troupe.Server) error) error {
	server, err := troupe.Open(troupe.Config{Data: dir, Agents: agents, Allow: []string{"127.0.0.1"}})
	if err != nil {
		return err
	}
	defer server.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go server.Serve(l)
	address := "http://" + l.Addr().String()
	if *script != "" {
		if err := register(address, *script); err != nil {
			return err
		}
	}
	for _, message := range messages {
		fmt.Printf("\nuser         %s\n", message)
		reply, err := server.Call(context.Background(), "coordinator", message, troupe.Session(session))
		if err != nil {
			return err
		}
		fmt.Printf("coordinator  %s\n", reply.Text)
	}
	if err := then(server); err != nil || !*stay {
		return err
	}
	fmt.Printf("\nTalk to the coordinator at %s/chat; Ctrl-C ends it.\n", address)
	select {}
}

// register registers the agent in Python. The store keeps it.
func register(address, url string) error {
	body := fmt.Sprintf(`{"agent_id":"history","endpoint":%q,"skills":["research"],"retry":"safe"}`, url)
	response, err := http.Post(address+"/v1/agents/register", "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		var b bytes.Buffer
		_, _ = b.ReadFrom(response.Body)
		return fmt.Errorf("the agent history cannot be registered: %s", b.String())
	}
	return nil
}

// report prints the answers as the coordinator reports them.
func report(server *troupe.Server) error {
	fmt.Println()
	shown, outcomes := map[string]bool{}, 0
	for deadline := time.Now().Add(20 * time.Second); len(shown) < len(researchers); time.Sleep(20 * time.Millisecond) {
		found, err := server.Sessions().Messages(context.Background(), session, "coordinator", troupe.Page{})
		if err != nil {
			return err
		}
		outcomes = 0
		for _, m := range found.All {
			if m.Origin == "delivered" {
				outcomes++
			}
			if m.Role == troupe.RoleAssistant && strings.HasPrefix(m.Text, "The agent ") && !shown[m.ID] {
				shown[m.ID] = true
				fmt.Printf("coordinator  %s\n", m.Text)
				if strings.Contains(m.Text, " has no answer: ") {
					return errors.New("an agent has no answer")
				}
			}
		}
		if time.Now().After(deadline) {
			return errors.New("not all answers came back")
		}
	}
	if outcomes != len(researchers) {
		return fmt.Errorf("%d outcomes, want one for each of %d questions", outcomes, len(researchers))
	}
	fmt.Printf("\n%d questions, %d answers, each once, over two processes.\n", len(researchers), outcomes)
	return nil
}

var researchers = []string{"weather", "prices", "history"}

var agents = []troupe.Agent{
	{Name: "coordinator", Func: coordinate},
	{Name: "weather", Skills: []string{"research"}, Func: researcher("it falls on 150 days of the year", 600*time.Millisecond)},
	{Name: "prices", Skills: []string{"research"}, Func: researcher("an umbrella costs 12 euros", 1500*time.Millisecond)},
}

// coordinate is the coordinator. Its state has the agent of each correlation.
func coordinate(t *troupe.Turn) (string, error) {
	asked, err := troupe.State[map[string]string](t)
	if err != nil {
		return "", err
	}
	if t.Correlation != "" {
		answer, err := t.Outcome.Text()
		if err != nil {
			return fmt.Sprintf("The agent %s has no answer: %v", asked[t.Correlation], err), nil
		}
		return fmt.Sprintf("The agent %s says: %s", asked[t.Correlation], answer), nil
	}
	topic, ok := strings.CutPrefix(t.Message(), "research ")
	if !ok {
		pending, err := t.Pending()
		return fmt.Sprintf("I am fine. %d answers are pending.", len(pending)), err
	}
	asked = map[string]string{}
	for _, agent := range researchers {
		correlation, err := t.Send(agent, "research", map[string]string{"topic": topic})
		if err != nil {
			return "", err
		}
		asked[correlation] = agent
	}
	return fmt.Sprintf("I have asked %s, and will tell you.", strings.Join(researchers, ", ")), troupe.SetState(t, asked)
}

// researcher returns an agent that answers after a while.
func researcher(answer string, takes time.Duration) func(*troupe.Turn) (string, error) {
	return func(t *troupe.Turn) (string, error) {
		_, err := t.Do("research", func(ctx context.Context) ([]byte, error) {
			select {
			case <-time.After(takes):
				return nil, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}, troupe.Idempotent())
		if err != nil {
			return "", err
		}
		b, err := json.Marshal(map[string]any{"output": answer, "confidence": 0.9})
		return string(b), err
	}
}
