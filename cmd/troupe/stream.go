// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// reconnectsMax is the maximum number of consecutive reconnects without a new event.
const reconnectsMax = 20

// follow sends a request that is answered with a stream of a run's events, and calls fn
// for each event, with its text as received. It returns after the last event of the run. A broken stream is
// resumed after the last event received, up to reconnectsMax times without progress. An error of
// fn ends it. The run is zero if no server named it.
func (c client) follow(ctx context.Context, method, path string, body []byte, fn func(e runs.Event, received string) error, header ...string) (run actor.CallID, err error) {
	var seen uint64
	ended := false
	var failed error // of fn
	for quiet := 0; ; quiet++ {
		of, wait, err := c.streamOnce(ctx, method, path, body, seen, func(e runs.Event, received string) error {
			run, seen, ended, quiet = e.Run, e.Seq, e.Type.Ends(), 0
			failed = fn(e, received)
			return failed
		}, header...)
		if run.IsZero() {
			run = of
		}
		var p *problem
		switch {
		case failed != nil:
			return run, failed
		case ended && err == nil:
			return run, nil
		case errors.As(err, &p) || run.IsZero() || ctx.Err() != nil:
			if err == nil {
				err = fmt.Errorf("server %s: the stream ended before its first event", c.server)
			}
			return run, err
		case quiet >= reconnectsMax:
			return run, fmt.Errorf("the stream of run %s broke %d times (%w); to follow the run:\n  %s", run, quiet, err,
				c.flags.hint("runs events", []string{run.String()}, "--follow", "--after", strconv.FormatUint(seen, 10)))
		}
		header = nil
		method, path, body = http.MethodGet, "/v1/runs/"+run.String()+"/events", nil
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return run, ctx.Err()
		}
	}
}

// streamOnce reads the events of one connection. It returns the run that the header of the
// response names, and the delay before the next connection.
func (c client) streamOnce(ctx context.Context, method, path string, body []byte, seen uint64, fn func(e runs.Event, received string) error, header ...string) (run actor.CallID, wait time.Duration, err error) {
	wait = time.Second
	header = append(header[:len(header):len(header)], "Accept", "text/event-stream")
	if seen > 0 {
		header = append(header, "Last-Event-ID", strconv.FormatUint(seen, 10))
	}
	r, err := c.newRequest(ctx, method, path, body, header...)
	if err != nil {
		return run, wait, err
	}
	response, err := c.send(r)
	if err != nil {
		return run, wait, c.connectionError(err)
	}
	defer response.Body.Close()
	if media := response.Header.Get("Content-Type"); response.StatusCode >= 300 || !strings.HasPrefix(media, "text/event-stream") {
		answer, err := io.ReadAll(io.LimitReader(response.Body, responseBytesMax))
		if err != nil {
			return run, wait, c.connectionError(err)
		}
		return run, wait, c.problem(response.StatusCode, answer)
	}
	run, _ = actor.ParseCallID(response.Header.Get("X-Run-Id"))
	parser := upstream.NewParser(upstream.StreamLimits{Line: runs.EventBytesMax, Event: runs.EventBytesMax, Total: 1 << 40})
	chunk := make([]byte, 32<<10)
	for {
		n, readErr := response.Body.Read(chunk)
		frames, refusal := parser.Parse(chunk[:n])
		if hint := parser.Retry(); hint > 0 {
			wait = min(hint, 10*time.Second)
		}
		for _, f := range frames {
			e, err := runs.Decode([]byte(f.Data))
			if err != nil { // the user of an app sees a part of an event
				e, err = runs.DecodePart([]byte(f.Data))
			}
			if err != nil {
				continue // a control frame, or an event of a later version
			}
			if err := fn(e, f.Data); err != nil {
				return run, wait, err
			}
		}
		switch {
		case refusal != nil:
			return run, wait, refusal
		case errors.Is(readErr, io.EOF):
			return run, wait, nil
		case readErr != nil:
			return run, wait, c.connectionError(readErr)
		}
	}
}

// answerPrinter renders the events of a run as the text of its answer, with notes on
// its progress. Printed text cannot be withdrawn. If printed text becomes invalid, a
// note follows with the valid text.
type answerPrinter struct {
	answer  runs.AnswerText
	midLine bool         // the last text printed did not end its line
	holder  actor.CallID // run below whose approval was the last one required
	invoked bool         // an external agent answers
	flags   UserFlags
}

// render returns the text that an event adds to the answer, and a note for standard
// error.
func (t *answerPrinter) render(e *runs.Event) (text, note string) {
	shown := ""
	switch e.Type { // the user of an app sees no more than the type of most events
	case runs.RunDone:
		shown = t.answer.Text()
	case runs.AgentInvokeStarted:
		t.invoked = true
	case runs.LLMCallStarted:
		if e.Name == "" && t.invoked { // a request of the external agent, whose answer goes on
			return "", ""
		}
	case runs.ApprovalRequired:
		if e.Approval == "" {
			text = t.endLine()
			t.midLine = false
			return text, fmt.Sprintf("run %s waits for a person; to see its state:\n  %s", e.Run, t.flags.hint("runs show", []string{e.Run.String()}))
		}
	case runs.AgentStateChanged, runs.WaitOpened, runs.ApprovalDecision, runs.ApprovalExpired, runs.RunPaused:
		if e.Name == "" {
			return "", ""
		}
	}
	current := t.answer.Apply(e)
	switch e.Type {
	case runs.AgentStreamDelta:
		text = e.Text
	case runs.LLMCallStarted, runs.AgentInvokeStarted:
		if e.StartsAnswer() {
			text = t.endLine()
		}
	case runs.Attempt:
		if !current {
			text, note = t.endLine(), "the text above is invalid; the corrected text follows"
		}
	case runs.AgentStateChanged:
		note = e.Name + " changed to " + e.Text
	case runs.WaitOpened:
		text = t.endLine()
		note = fmt.Sprintf("run %s waits for the signal %s; to continue:\n  %s", e.Run, e.Name, t.flags.hint("runs signal", []string{e.Run.String(), e.Name}))
	case runs.ApprovalRequired:
		text, t.holder = t.endLine(), e.Child
		note = (&approvalView{ID: e.Approval, Kind: e.Kind, Tool: e.Name, Summary: e.Text}).request(t.flags, e.Run.String())
	case runs.ApprovalDecision:
		note = fmt.Sprintf("%s: %s by %s", e.Name, e.Kind, cmp.Or(e.Principal, "a person"))
	case runs.ApprovalExpired:
		note = fmt.Sprintf("%s: the approval has expired: %s", e.Name, e.Text)
	case runs.RunPaused:
		if e.Approval != "" || !e.Child.IsZero() && e.Child == t.holder { // the note about its approval gives the reason
			return "", ""
		}
		text = t.endLine()
		note = fmt.Sprintf("run %s is paused (%s); to see why:\n  %s", e.Run, e.Name, t.flags.hint("runs show", []string{e.Run.String()}, "--tree"))
	case runs.RunDone:
		if text = strings.TrimPrefix(e.Text, shown); !current {
			text = t.endLine() + e.Text
		}
		text += "\n"
		for _, w := range e.Warnings {
			note += "warning: " + w + "\n"
		}
		note = strings.TrimSuffix(note, "\n")
	case runs.RunFailed, runs.RunCancelled:
		text = t.endLine()
	}
	if text != "" {
		t.midLine = !strings.HasSuffix(text, "\n")
	}
	return text, note
}

func (t *answerPrinter) endLine() string {
	if t.midLine {
		return "\n"
	}
	return ""
}
