// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// runView holds the fields of a run in GET /v1/runs/{id} that the commands print.
type runView struct {
	Run     string   `json:"run_id"`
	Root    string   `json:"root_run_id"`
	Actor   string   `json:"actor"`
	Status  string   `json:"status"`
	Depth   int      `json:"call_depth"`
	Chain   []string `json:"call_chain"`
	Left    int64    `json:"time_left_ms"`
	Created string   `json:"created_at"`
	Ended   string   `json:"ended_at"`
	Text    string   `json:"text"`
	Waits   []struct {
		Name  string `json:"name"`
		Until string `json:"until"`
	} `json:"waiting_for"`
	Children []struct {
		Run    string    `json:"child_run_id"`
		Target string    `json:"target"`
		Left   int64     `json:"time_left_ms"`
		Error  *runError `json:"error"`
	} `json:"children"`
	Error *runError `json:"error"`
}

type runError struct {
	Message string `json:"message"`
}

// statusText returns the status of the run with its open waits and its error.
func (r *runView) statusText() string {
	s := colour(r.Status)
	for _, w := range r.Waits {
		s += fmt.Sprintf(", waits for the signal %s until %s", w.Name, w.Until)
	}
	if r.Error != nil {
		s += ": " + r.Error.Message
	}
	return s
}

func (r *runView) print(w io.Writer) {
	fmt.Fprintf(w, "run      %s\nactor    %s\nstatus   %s\ncreated  %s\n", r.Run, r.Actor, r.statusText(), r.Created)
	if r.Ended != "" {
		fmt.Fprintf(w, "ended    %s\n", r.Ended)
	}
	if len(r.Chain) > 0 {
		fmt.Fprintf(w, "chain    %s\n", strings.Join(r.Chain, " -> "))
	}
	if r.Text != "" {
		fmt.Fprintf(w, "answer   %s\n", r.Text)
	}
}

// printTree prints a run and the runs it called, one line each.
func printTree(w io.Writer, from source, root actor.CallID) error {
	return printBranch(w, from, root, "", "")
}

func printBranch(w io.Writer, from source, id actor.CallID, prefix, childPrefix string) error {
	body, err := from.run(id)
	if err != nil {
		return err
	}
	var r runView
	if err := json.Unmarshal(body, &r); err != nil {
		return err
	}
	line := fmt.Sprintf("%s%s  %s  depth %d  time left %s", prefix, r.Actor, r.statusText(), r.Depth, formatMillis(r.Left))
	if took, ok := elapsed(r.Created, r.Ended); ok {
		line += "  took " + took.Round(100*time.Microsecond).String()
	}
	fmt.Fprintf(w, "%s  run %s\n", line, r.Run)
	for i, c := range r.Children {
		branch, indent := "├─ ", "│  "
		if i == len(r.Children)-1 {
			branch, indent = "└─ ", "   "
		}
		if c.Run == "" {
			fmt.Fprintf(w, "%s%s%s  refused: %s\n", childPrefix, branch, c.Target, c.Error.Message)
			continue
		}
		child, err := actor.ParseCallID(c.Run)
		if err == nil {
			err = printBranch(w, from, child, childPrefix+branch, childPrefix+indent)
		}
		if p, ok := err.(*problem); ok && p.status == 404 || isNotFound(err) {
			fmt.Fprintf(w, "%s%s%s  in transit  time left %s  run %s\n", childPrefix, branch, c.Target, formatMillis(c.Left), c.Run)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// isNotFound reports whether a data folder has no record of a run. The record
// exists once the callee has admitted the call.
func isNotFound(err error) bool {
	r, ok := err.(*actor.Refusal)
	return ok && r.Reason == actor.NotFound
}

func formatMillis(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).Round(100 * time.Millisecond).String()
}

func elapsed(from, to string) (time.Duration, bool) {
	a, err := runs.ParseTime(from)
	b, err2 := runs.ParseTime(to)
	return b.Sub(a), err == nil && err2 == nil
}

func readEvents(from source, id actor.CallID, after uint64, wait time.Duration) (page eventsPage, err error) {
	body, err := from.events(id, after, wait)
	if err != nil {
		return page, err
	}
	return page, json.Unmarshal(body, &page)
}

// colour wraps a status in ANSI colour codes if standard output is a terminal and
// NO_COLOR is not set.
func colour(status string) string {
	info, err := os.Stdout.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || os.Getenv("NO_COLOR") != "" {
		return status
	}
	code := map[string]string{"DONE": "32", "FAILED": "31", "CANCELLED": "31"}[status]
	if code == "" {
		code = "33"
	}
	return "\x1b[" + code + "m" + status + "\x1b[0m"
}
