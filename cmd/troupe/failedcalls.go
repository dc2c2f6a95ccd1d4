// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/runs"
)

// failedText returns why a call of a run has failed, "" if it has not. A response of the contract may say so in its text.
func failedText(e *runs.Event) string {
	if e.Refusal != nil {
		if e.Refusal.Reason == actor.Unavailable { // its name in records, Internal, would read as a bug
			return e.Refusal.Detail
		}
		return e.Refusal.Error()
	}
	var response struct {
		Status  string `json:"status"`
		Code    string `json:"error_code"`
		Message string `json:"error_message"`
	}
	if e.Type == runs.AgentChildDone && contract.IsToolError(e.Text) {
		return e.Text
	}
	if e.Type != runs.AgentChildDone || !strings.HasPrefix(e.Text, "{") || json.Unmarshal([]byte(e.Text), &response) != nil || !strings.EqualFold(response.Status, "ERROR") {
		return ""
	}
	return strings.TrimSpace(response.Code + " " + response.Message)
}

// printFailedCalls prints the calls of a run that have failed, each with its reason: what an orchestrator tells its user has
// none that only operators should read.
func printFailedCalls(out io.Writer, from source, id actor.CallID) error {
	called := map[actor.CallID]actor.ID{}
	for after := uint64(0); ; {
		page, err := readEvents(from, id, after, 0)
		if err != nil || len(page.Events) == 0 {
			return err
		}
		for _, raw := range page.Events {
			e, err := runs.Decode(raw)
			if err != nil {
				return err
			}
			switch text := oneLine(failedText(&e)); {
			case e.Type == runs.AgentCalledChild:
				called[e.Child] = e.Actor
			case e.Type == runs.AgentChildDone && text != "":
				fmt.Fprintf(out, "failed   %s: %s  run %s\n", called[e.Child], text, e.Child)
			case e.Type == runs.AgentCallRefused && text != "":
				fmt.Fprintf(out, "failed   %s: %s\n", e.Name, text)
			}
		}
		if after = page.Next; page.Ended {
			return nil
		}
	}
}
