// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
)

// CallCmd sends a message to an agent and waits for the answer.
type CallCmd struct {
	ServerFlags
	User     string        `placeholder:"NAME" help:"User of the message; needs a key of keys create --act-as-user, or a server on this machine that admits requests without a key."`
	Agent    string        `arg:"" help:"Agent to call."`
	Message  string        `arg:"" help:"Message text; - reads standard input, @FILE a file, @@ begins a text with @."`
	Session  string        `aliases:"session-id" xor:"session" help:"Session that the message continues or begins; a new one if absent."`
	Continue bool          `xor:"session" help:"Continue the last session with this agent."`
	IfBusy   string        `placeholder:"queue|reject|interrupt" help:"What to do while the session has an open run: wait, fail, or cancel that run (queue)."`
	Timeout  time.Duration `help:"Maximum duration of the run; the server's default if absent."`
	Priority string        `placeholder:"high|normal|low" help:"Place in the mailbox; the agent's own if absent. Calls made for the answer inherit it."`
	Project  string        `aliases:"project-id" placeholder:"ID" help:"Project of the run, shown in its events and to tools and external agents."`
	Stream   *bool         `negatable:"" help:"Print the answer while it is generated; the default on a terminal."`
	Async    bool          `help:"Print the ID of the run as soon as it is on disk, and do not wait for the answer."`
	Tree     bool          `help:"Print the tree of calls made for the answer."`
	JSON     bool          `help:"Print the JSON response of the server; with --stream, one event per line."`
}

// Help returns the text shown below the flags.
func (CallCmd) Help() string {
	return `Exits with code 1 if the agent refuses, with 3 if there is no answer yet, and with 130 after Ctrl-C; in both cases the
run continues. There is no answer yet if the run waits for a signal or for the approval of a tool call, whose commands
are printed, or if it takes longer than two minutes. With --stream, keeps waiting. A broken stream is resumed after the
last event received. If the connection breaks before an answer that is not streamed, the error has the commands that
find the run: it is known once the call has asked for it, after two seconds. After two seconds without an answer, failed attempts of models and agents are printed.

With --async the server answers once the message is on disk. Standard output has only the ID of the run, or the JSON
response with --json; the commands that follow the run go to standard error. The exit code is then 0.

Examples:
  troupe call helper "hello"
  troupe call helper "and in French?" --continue
  troupe call coordinator "find xyzzy" --session s-42 --tree
  troupe call helper hello --json | jq -r .content
  troupe call helper - < question.txt
  troupe call helper hello --stream --json | jq -r .type
  troupe call helper hello --async
  troupe call helper hello --user alice@example.com`
}

// about returns flags for commands about the runs of the call.
func (c *CallCmd) about() UserFlags { return UserFlags{c.ServerFlags, c.User} }

func (c *CallCmd) hint(command string, arguments []string, flags ...string) string {
	return c.about().hint(command, arguments, flags...)
}

// client returns a client that acts for the user of the message.
func (c *CallCmd) client() client {
	to := c.ServerFlags.client()
	to.flags, to.user = c.about(), c.User
	return to
}

// Validate returns an error for a name that no user has, and for flags that wait although
// --async does not.
func (c *CallCmd) Validate() error {
	switch {
	case c.Async && c.Stream != nil && *c.Stream:
		return errors.New("--async does not wait for an answer: omit --stream, or follow the run with troupe runs events RUN --follow")
	case c.Async && c.Tree:
		return errors.New("--async does not wait for an answer: omit --tree, or print the tree later with troupe runs show RUN --tree")
	}
	if c.User == "" {
		return nil
	}
	if err := actor.CheckNewUser(c.User); err != nil {
		return fmt.Errorf("--user: %w", err)
	}
	return nil
}

type messageBody struct {
	Content  string `json:"content"`
	Session  string `json:"session_id,omitzero"`
	Timeout  int64  `json:"timeout_ms,omitzero"`
	Priority string `json:"priority,omitzero"`
	Project  string `json:"project_id,omitzero"`
	IfBusy   string `json:"if_busy,omitzero"`
}

// Run executes the command. On SIGINT or SIGTERM it stops waiting; the run continues
// on the server.
func (c *CallCmd) Run(s streams) error {
	text, err := readArgument("message", c.Message)
	if err != nil {
		return err
	}
	return c.send(s, text)
}

// send sends a text to the agent and waits as the flags say.
func (c *CallCmd) send(s streams, text string) error {
	path, err := agentPath(c.ServerFlags, c.Agent)
	if err != nil {
		return err
	}
	if c.Continue {
		if c.Session, err = lastSession(c.client(), c.Agent); err != nil {
			return err
		}
	}
	body, err := json.Marshal(messageBody{text, c.Session, c.Timeout.Milliseconds(), c.Priority, c.Project, c.IfBusy})
	if err != nil {
		return err
	}
	m := message{client: c.client(), path: path + "/messages", body: body, key: newRequestID()}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	send := c.sendBlocking
	if c.Async {
		send = c.sendAsync
	} else if c.Stream == nil && isTerminal(s.out) && !c.JSON || c.Stream != nil && *c.Stream {
		send = c.sendStreaming
	}
	m.notes = &attemptNotes{message: &m, to: s}
	stopNotes := m.notes.start(ctx)
	run, err := send(ctx, s, &m)
	interrupted := ctx.Err() != nil
	stopNotes()
	stop() // from here a signal ends the process at once
	switch {
	case err != nil && interrupted:
		if run.IsZero() {
			run = m.findRun(context.Background())
		}
		return c.reportInterrupt(s, run, m.written.Load())
	case c.Tree && !c.JSON && (err == nil || errors.Is(err, exitCode(exitWaiting))):
		switch treeErr := printTree(s.out, c.client(), run); {
		case errors.Is(treeErr, errNoTree): // the answer is printed
			fmt.Fprintln(s.err, treeErr)
		case treeErr != nil:
			return treeErr
		}
	}
	return err
}

// reportInterrupt prints the commands that continue after an interrupted call.
func (c *CallCmd) reportInterrupt(s streams, run actor.CallID, written bool) error {
	id := []string{run.String()}
	switch {
	case !written:
		fmt.Fprintln(s.err, "interrupted before the message was sent")
	case run.IsZero():
		fmt.Fprintf(s.err, "interrupted; the run may continue. To find it:\n  %s\n", c.hint("runs list", nil))
	default:
		fmt.Fprintf(s.err, "interrupted; run %s continues. To follow it, to see its answer, or to cancel it:\n  %s\n  %s\n  %s\n", run,
			c.hint("runs events", id, "--follow"), c.hint("runs show", id), c.hint("runs cancel", id))
	}
	return exitCode(exitInterrupted)
}

// newRequestID returns a new idempotency key, a UUIDv7: the time in it orders the session that the
// message begins.
func newRequestID() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails: it crashes the process instead
	return actor.NewCallID(actor.Time(time.Now().UnixNano()), binary.BigEndian.Uint64(random[:8]), binary.BigEndian.Uint64(random[8:])).String()
}

// message is a message to an agent. Its idempotency key identifies the run before
// the server has answered.
type message struct {
	client  client
	path    string
	body    []byte
	key     string
	written atomic.Bool                  // the request has been sent
	run     atomic.Pointer[actor.CallID] // nil: not known yet
	notes   *attemptNotes
}

// headers returns the headers of a request that sends the message.
func (m *message) headers() []string { return []string{ingress.IdempotencyKey, m.key} }

// trace returns a context that records when the request has been sent.
func (m *message) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(i httptrace.WroteRequestInfo) {
		if i.Err == nil {
			m.written.Store(true)
		}
	}})
}

// findRunTimeout is the maximum time to find the run of an interrupted call.
const findRunTimeout = 3 * time.Second

// findRun returns the run of a message that was sent. It repeats the message with the
// same idempotency key as a stream, whose header names the run. The zero ID means that
// it cannot be found, for example because the agent has no stream.
func (m *message) findRun(ctx context.Context) (run actor.CallID) {
	if !m.written.Load() {
		return run
	}
	ctx, cancel := context.WithTimeout(ctx, findRunTimeout)
	defer cancel()
	r, err := m.client.newRequest(ctx, http.MethodPost, m.path, m.body, append(m.headers(), "Accept", ingress.EventStream)...)
	if err != nil {
		return run
	}
	response, err := m.client.send(r)
	if err != nil {
		return run
	}
	defer response.Body.Close()
	run, _ = actor.ParseCallID(response.Header.Get("X-Run-Id"))
	return run
}

// notPrinted returns the error of printing the answer of a run.
func (c *CallCmd) notPrinted(run actor.CallID, err error) error {
	return fmt.Errorf("the answer is not printed: %w; to see it:\n  %s", err, c.hint("runs show", []string{run.String()}))
}

// lost adds to the error of a connection that broke after the message was sent the commands that
// find its run. A response without a stream names its run at its end only. The notes may have found it.
func (c *CallCmd) lost(m *message, err error) error {
	var p *problem
	if err == nil || !m.written.Load() || errors.As(err, &p) {
		return err
	}
	if run := m.run.Load(); run != nil {
		id := []string{run.String()}
		return fmt.Errorf("%w; run %s may continue. To follow it, or to see its answer:\n  %s\n  %s", err, run,
			c.hint("runs events", id, "--follow"), c.hint("runs show", id))
	}
	return fmt.Errorf("%w; the run may have begun. To find it:\n  %s", err, c.hint("runs list", nil))
}

// sendStreaming prints the answer while it is generated.
func (c *CallCmd) sendStreaming(ctx context.Context, s streams, m *message) (run actor.CallID, err error) {
	var runErr error
	t := answerPrinter{flags: c.about()}
	run, err = m.client.follow(m.trace(ctx), http.MethodPost, m.path, m.body, func(e runs.Event, received string) error {
		run := e.Run
		m.run.Store(&e.Run)
		if e.Refusal != nil && e.Type.Ends() {
			runErr = fmt.Errorf("%s: %s (see: %s)", e.Refusal.Reason.Info().Type, cmp.Or(e.Refusal.Detail, notAnswered), c.hint("runs show", []string{run.String()}))
		}
		if c.JSON {
			if _, err := fmt.Fprintf(s.out, "%s\n", received); err != nil {
				return c.notPrinted(run, err)
			}
			return nil
		}
		text, note := t.render(&e)
		if text != "" || note != "" {
			m.notes.quiet.Store(true)
		}
		if _, err := io.WriteString(s.out, text); err != nil {
			return c.notPrinted(run, err)
		}
		if note != "" {
			fmt.Fprintln(s.err, note)
		}
		return nil
	}, m.headers()...)
	if err != nil && ctx.Err() != nil && t.midLine {
		fmt.Fprintln(s.out)
	}
	if run.IsZero() {
		err = c.lost(m, err)
	}
	return run, errors.Join(err, runErr)
}

// sendAsync prints the run of the message as soon as it is durable. A server answers with the
// result instead if the run cannot be read later; it goes to standard error.
func (c *CallCmd) sendAsync(ctx context.Context, s streams, m *message) (run actor.CallID, err error) {
	status, body, err := m.client.do(m.trace(ctx), http.MethodPost, m.path, m.body, append(m.headers(), "Prefer", "respond-async")...)
	var p *problem
	if c.JSON && errors.As(err, &p) {
		return run, errors.Join(printJSON(s.out, p.body), exitCode(exitFailed))
	}
	if err != nil {
		return run, c.lost(m, err)
	}
	var out struct {
		Run     string `json:"run_id"`
		Content string `json:"content"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return run, err
	}
	if run, err = actor.ParseCallID(out.Run); err != nil {
		return run, err
	}
	if c.JSON {
		err = printJSON(s.out, body)
	} else {
		_, err = fmt.Fprintln(s.out, run)
	}
	if status != http.StatusAccepted {
		fmt.Fprintf(s.err, "the run has ended already; its answer:\n%s\n", out.Content)
		return run, err
	}
	id := []string{out.Run}
	fmt.Fprintf(s.err, "the run continues. To follow it, to see its answer, or to cancel it:\n  %s\n  %s\n  %s\n",
		c.hint("runs events", id, "--follow"), c.hint("runs show", id), c.hint("runs cancel", id))
	return run, err
}

// sendBlocking waits for the answer. The server may reply 202 instead, when the
// run continues in the background.
func (c *CallCmd) sendBlocking(ctx context.Context, s streams, m *message) (run actor.CallID, err error) {
	status, body, err := m.client.do(m.trace(ctx), http.MethodPost, m.path, m.body, m.headers()...)
	var p *problem
	if c.JSON && errors.As(err, &p) {
		return run, errors.Join(printJSON(s.out, p.body), exitCode(exitFailed))
	}
	if err != nil {
		return run, c.lost(m, err)
	}
	var out struct {
		Run      string   `json:"run_id"`
		Status   string   `json:"status"`
		Content  string   `json:"content"`
		Detail   string   `json:"detail"`
		Warnings []string `json:"warnings"`
		Signal   *struct {
			Run  string `json:"run_id"`
			Name string `json:"name"`
		} `json:"signal"`
		Approvals []approvalView `json:"approvals"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return run, err
	}
	if run, err = actor.ParseCallID(out.Run); err != nil {
		return run, err
	}
	if status == http.StatusAccepted {
		err = exitCode(exitWaiting)
	}
	show := c.hint("runs show", []string{out.Run})
	switch {
	case c.JSON:
		if err := printJSON(s.out, body); err != nil {
			return run, c.notPrinted(run, err)
		}
	case status == http.StatusAccepted && out.Signal != nil:
		fmt.Fprintf(s.err, "run %s waits for the signal %s; to continue:\n  %s\nand then:\n  %s\n",
			out.Run, out.Signal.Name, c.hint("runs signal", []string{out.Signal.Run, out.Signal.Name}), show)
	case status == http.StatusAccepted && len(out.Approvals) > 0:
		for i := range out.Approvals {
			a := &out.Approvals[i]
			fmt.Fprintln(s.err, a.request(c.about(), out.Run))
		}
		fmt.Fprintf(s.err, "and then:\n  %s\n", show)
	case status == http.StatusAccepted && out.Detail == "" && out.Status == runs.PausedWaitingApproval.String(): // a customer learns no more
		fmt.Fprintf(s.err, "a colleague has been asked, for whom run %s waits; to see its answer later:\n  %s\n", out.Run, show)
	case status == http.StatusAccepted:
		out.Detail = cmp.Or(out.Detail, "run "+out.Run+" continues; to see its answer")
		fmt.Fprintf(s.err, "%s:\n  %s\n", out.Detail, show)
	default:
		if _, err := fmt.Fprintln(s.out, out.Content); err != nil {
			return run, c.notPrinted(run, err)
		}
		for _, w := range out.Warnings {
			fmt.Fprintln(s.err, "warning:", w)
		}
	}
	return run, err
}
