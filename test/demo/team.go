// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/runs"
)

// kdapDir is the folder with the agents of the demo of a team, and kdapCodes are their codes.
const kdapDir = "examples/kdap"

var kdapCodes = []string{"ORC", "ANL", "AUD", "CHA", "SPO", "DOC", "PRF", "CST", "CHG"}

// runTeam shows a team that answers as one, across a kill -9 between two steps of its work.
func (d *demo) runTeam() error {
	printStep("Start a server with the nine agents of %s. Eight own capabilities, and\nthe ninth talks with the user. Their scripted model needs no API key.", kdapDir)
	if err := d.start("--agents", kdapDir); err != nil {
		return err
	}
	if err := d.expectOutput("ANL_NPV", "capabilities", "list", "--server", d.url); err != nil {
		return err
	}

	printStep("A user asks for a business case. It takes five steps, one after the other. Kill the\nserver with kill -9 when the second of them has answered.")
	const path, content = "/v1/agents/orc/messages", "Help me build a business case for market entry"
	body, err := json.Marshal(map[string]string{"content": content, "session": "case"})
	if err != nil {
		return err
	}
	answered := 0
	before, err := d.stream(http.MethodPost, path, body, 0, func(e *runs.Event) bool {
		d.id = e.Run
		if e.Type == runs.AgentChildDone {
			answered++
		}
		return answered == 2
	})
	if err != nil {
		return err
	}
	killed := d.server.Pid()
	d.stop(syscall.SIGKILL) //nolint:errcheck // a killed process never exits with code 0
	fmt.Printf("  process %d was killed\n", killed)

	printStep("Start a new process on the same data folder. It goes on with the third step, and asks\nfor none twice that has answered.")
	if err := d.start("--agents", kdapDir); err != nil {
		return err
	}
	after, err := d.resume(before)
	if err != nil {
		return err
	}
	if err := checkSteps(after, 5); err != nil {
		return err
	}

	printStep("Four agents look at a market at the same time. Two of them differ; the answer says in\nwhat, and which value is used.")
	if err := d.expectOutput("0.12 is used: its confidence is higher", "call", "orc", "Please look at the market", "--session", "case", "--tree", "--server", d.url); err != nil {
		return err
	}
	printStep("What is not understood is asked back.")
	if err := d.expectOutput("Which of these do you mean?", "call", "orc", "Show me figures", "--session", "case", "--server", d.url); err != nil {
		return err
	}

	printStep("The conversation as the user reads it. It names no agent and no capability.")
	if err := d.checkConversation("/v1/sessions/case/messages?agent_id=orc"); err != nil {
		return err
	}
	if err := d.stop(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	if err := d.command("doctor", d.data); err != nil {
		return err
	}
	printStep("One answer from five agents, each asked once, over two processes.")
	return nil
}

// checkSteps checks that the run ended with an answer, and that each of its steps was asked once.
func checkSteps(events []runs.Event, want int) error {
	record, err := runs.Fold(events) // fails on a gap or a wrong order
	if err != nil {
		return err
	}
	if record.Status != runs.Done {
		return fmt.Errorf("the run is %s with the answer %q", record.Status, record.Text)
	}
	var asked []string
	for i := range events {
		if events[i].Type != runs.AgentCalledChild {
			continue
		}
		_, code, _ := strings.Cut(events[i].Text, `"capability_code":"`)
		code, _, _ = strings.Cut(code, `"`)
		if slices.Contains(asked, code) {
			return fmt.Errorf("%s was asked for twice", code)
		}
		asked = append(asked, code)
	}
	if len(asked) != want {
		return fmt.Errorf("asked for %s, want %d steps", strings.Join(asked, ", "), want)
	}
	fmt.Printf("\n  asked once each: %s\n", strings.Join(asked, ", "))
	return nil
}

// checkConversation prints the messages of a session, and checks that none of them names an agent.
func (d *demo) checkConversation(path string) error {
	var page struct {
		Messages []struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"messages"`
	}
	if err := d.request(http.MethodGet, path, nil, &page); err != nil {
		return err
	}
	if len(page.Messages) != 6 {
		return fmt.Errorf("the conversation has %d messages, want 6", len(page.Messages))
	}
	for _, m := range page.Messages {
		fmt.Printf("\n  %s: %s\n", m.Role, strings.ReplaceAll(m.Content, "\n", "\n    "))
		for _, code := range kdapCodes {
			if strings.Contains(m.Content, code) {
				return fmt.Errorf("the user reads %s", code)
			}
		}
	}
	return nil
}
