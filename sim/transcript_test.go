// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/upstream"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the transcripts in testdata")

// TestTranscripts executes the transcripts in testdata. A transcript consists of blocks:
// commands, a line ----, and the resulting events in columns. All choices are benign, so
// the result is deterministic.
//
//	# comment
//	world nodes=2 cells=1 agents=ana,bo declared=dora external=xan safe=xia fault=ModelError depth=5 pending=128 outstanding=10 timeout=30s
//	ask ana/main 10s [key]: script   submits a request; the commands below refer to the last one
//	run 500ms                        advances the time
//	answer                           runs until the reply has arrived
//	signal, cancel                   signals or cancels the run of the request
//	crash n1                         crashes the node, which restarts by itself
//	settle                           runs until the simulation is idle
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runTranscript(t, string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("transcript differs (accept with -rewrite):\n%s", firstDifference(string(text), got))
			}
		})
	}
}

func runTranscript(t *testing.T, text string) string {
	var s transcriptRun
	var out strings.Builder
	for i, block := range strings.Split(strings.TrimRight(text, "\n"), "\n\n") {
		if i > 0 {
			out.WriteString("\n")
		}
		commands, _, _ := strings.Cut(block+"\n", "----\n")
		for line := range strings.Lines(commands) {
			if line = strings.TrimSuffix(line, "\n"); line != "" {
				out.WriteString(line + "\n")
				s.runCommand(t, line)
			}
		}
		if s.columns.Len() > 0 {
			out.WriteString("----\n" + s.columns.String())
			s.columns.Reset()
		}
	}
	return out.String()
}

// transcriptRun is the execution of a transcript.
type transcriptRun struct {
	sim         *Simulation
	columns     bytes.Buffer
	lastRequest Request
}

func (s *transcriptRun) runCommand(t *testing.T, line string) {
	t.Helper()
	verb, rest, _ := strings.Cut(line, " ")
	var violation *Violation
	switch verb {
	case "#":
		return
	case "world":
		s.newSimulation(t, rest)
	case "ask":
		head, script, ok := strings.Cut(rest, ": ")
		words := append(strings.Fields(head), "")
		left, err := time.ParseDuration(words[1])
		if !ok || err != nil {
			t.Fatalf("%s: want ask actor time [key]: script", line)
		}
		s.lastRequest = s.sim.Submit(words[0], script, left, words[2])
	case "run":
		d, err := time.ParseDuration(rest)
		if err != nil {
			t.Fatal(err)
		}
		violation = s.sim.RunFor(d)
	case "answer":
		var reply actor.Reply
		reply, violation = s.sim.AwaitReply(s.lastRequest, time.Minute)
		text := actor.TextOf(reply.Parts)
		if reply.Refusal != nil {
			text = reply.Refusal.Error()
		}
		fmt.Fprintf(&s.columns, "%s: %s\n", reply.Status, text)
	case "signal":
		s.sim.Signal(s.lastRequest)
	case "cancel":
		s.sim.Cancel(s.lastRequest)
	case "crash":
		s.sim.CrashNode(rest)
	case "settle":
		violation = s.sim.Settle()
		fmt.Fprintf(&s.columns, "idle\n")
	default:
		t.Fatalf("%q: unknown command", line)
	}
	if violation != nil {
		t.Fatalf("%s: %v", line, violation)
	}
}

func (s *transcriptRun) newSimulation(t *testing.T, settings string) {
	p := Plan{Limits: dispatcher.DefaultLimits()}
	nodes, cells := 1, 1
	for _, word := range strings.Fields(settings) {
		name, value, _ := strings.Cut(word, "=")
		n, err := strconv.Atoi(value)
		switch name {
		case "agents":
			err = nil
			for _, agent := range strings.Split(value, ",") {
				p.Agents = append(p.Agents, actor.Definition{Name: agent, Behavior: ScriptAgent()})
			}
		case "declared":
			err = nil
			p.Agents = append(p.Agents, compileAgent(NewReplayedEntropy(nil), declaredSpec(value, upstream.ScriptName, 4)))
		case "external", "safe":
			err = nil
			retry := agents.RetryNever
			if name == "safe" {
				retry = agents.RetrySafe
			}
			p.Agents = append(p.Agents, compileAgent(NewReplayedEntropy(nil), externalSpec(value, retry)))
		case "fault":
			err = nil
			odds, parseErr := ParseOdds(value + ":1")
			if parseErr != nil {
				t.Fatal(parseErr)
			}
			p.Odds[odds.Fault] = odds.Per
		case "nodes":
			nodes = n
		case "cells":
			cells = n
		case "depth":
			p.Limits.AgentCallDepthMax = n
		case "pending":
			p.Limits.MaxPendingPerActor = n
		case "outstanding":
			p.Limits.AgentConcurrentCallsMax = n
		case "timeout":
			p.Limits.AgentCallTimeoutDefault, err = time.ParseDuration(value)
		default:
			t.Fatalf("world: unknown setting %q", word)
		}
		if err != nil {
			t.Fatalf("world: %q: %v", word, err)
		}
	}
	for range nodes {
		p.Cells = append(p.Cells, cells)
	}
	p.Groups = 2 * nodes * cells
	s.sim = New(Options{Seed: 1, Entropy: NewReplayedEntropy(nil), Plan: &p, Columns: NewColumns(&s.columns, 110)})
	if violation := s.sim.RunFor(10 * time.Millisecond); violation != nil {
		t.Fatal(violation)
	}
	s.columns.Truncate(bytes.IndexByte(s.columns.Bytes(), '\n') + 1) // the start of the nodes is not shown
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		a, b := "(end)", "(end)"
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			return fmt.Sprintf("line %d: want\n%s\ngot\n%s", i+1, a, b)
		}
	}
	return ""
}
