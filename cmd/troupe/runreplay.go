// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/fasthttp/websocket"
	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/ingress"
)

// RunsReplayCmd shows a run again.
type RunsReplayCmd struct {
	UserFlags
	ID        string  `arg:"" help:"Run ID, or its beginning. A run that another one called is replayed with the whole tree."`
	Speed     float64 `default:"1" help:"Times the original speed; 0: without delays."`
	ToChannel bool    `help:"Print the messages of the channel protocol, one per line, as a client got them."`
}

// Help returns the text shown below the flags.
func (RunsReplayCmd) Help() string {
	return `Shows the messages of the run as a client of the channel protocol got them, with the original delays, each of at most five
seconds. It reads stored events: no agent, model or tool is called.

Examples:
  troupe runs replay 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55
  troupe runs replay 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --speed 4
  troupe runs replay 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --speed 0 --to-channel`
}

// Validate returns an error for a speed that no replay has.
func (c *RunsReplayCmd) Validate() error {
	if c.Speed < 0 || c.Speed > ingress.ReplaySpeedMax || math.IsNaN(c.Speed) {
		return fmt.Errorf("--speed: want a number from 0, for no delays, to %d", ingress.ReplaySpeedMax)
	}
	return c.UserFlags.Validate()
}

// Run executes the command.
func (c *RunsReplayCmd) Run(s streams) error {
	to := c.client()
	id, err := resolveRun(to, c.ID, c.hint("runs list", nil))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	to.user = c.User
	conn, err := newChannel(to, "", "").dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	for _, m := range []string{`{"type":"hello"}`, fmt.Sprintf(`{"type":"replay","request_id":"1","run_id":%q,"speed":%s}`, id, strconv.FormatFloat(c.Speed, 'f', -1, 64))} {
		if err := conn.WriteMessage(websocket.TextMessage, []byte(m)); err != nil {
			return to.connectionError(err)
		}
	}
	out := replayed{streams: s}
	for {
		_, body, err := conn.ReadMessage()
		if ctx.Err() != nil {
			return exitCode(exitInterrupted)
		}
		if err != nil {
			return to.connectionError(lostBy(err))
		}
		var m channelMessage
		if err := json.Unmarshal(body, &m); err != nil {
			return fmt.Errorf("server %s: a message is no JSON: %w", to.server, err)
		}
		switch {
		case m.Type == ingress.ChannelError && m.Run == "":
			return errors.New(m.Code + ": " + m.text())
		case m.is(ingress.StateReplayed):
			return out.end()
		case m.ready():
		case c.ToChannel:
			_, err = fmt.Fprintf(s.out, "%s\n", body)
		default:
			err = out.show(&m)
		}
		if err != nil {
			return err
		}
	}
}

// replayed prints the messages of a replay: those of the user, and the answer as it is generated, on
// standard output, and everything else on standard error.
type replayed struct {
	streams
	deltas  []string
	midLine bool
}

func (r *replayed) show(m *channelMessage) error {
	switch m.Type {
	case ingress.ChannelRunStarted:
		return r.line("> " + oneLine(m.text()))
	case ingress.ChannelDelta:
		r.deltas = append(r.deltas, m.Text)
		r.midLine = !strings.HasSuffix(m.Text, "\n")
		_, err := fmt.Fprint(r.out, m.Text)
		return err
	case ingress.ChannelError:
		return r.note("%s: %s", m.Code, m.text())
	case ingress.ChannelApprovalRequired:
		return r.note("%s waits for a person: %s", m.Tool, m.Summary)
	case ingress.ChannelToolRequest:
		return r.note("a device performs %s %s", m.Tool, m.Args)
	case ingress.ChannelState:
		return r.state(m)
	}
	return nil
}

// state prints a state that a reader of the conversation wants to know.
func (r *replayed) state(m *channelMessage) error {
	var d struct {
		Tool     string `json:"tool_name"`
		Agent    string `json:"agent_id"`
		Decision string `json:"decision"`
		By       string `json:"by"`
		Name     string `json:"name"`
		Void     int    `json:"void_deltas"`
	}
	_ = json.Unmarshal(m.Detail, &d) // an external agent reports what it likes
	switch {
	case m.State == ingress.StateRetrying:
		r.deltas = r.deltas[:max(0, len(r.deltas)-d.Void)]
		if err := r.note("the answer is generated again"); err != nil {
			return err
		}
		return r.line(strings.Join(r.deltas, ""))
	case d.Decision != "":
		return r.note("%s by %s", strings.ToLower(d.Decision), d.By)
	case m.State == ingress.StateCallingAgent:
		return r.note("asks %s", d.Agent)
	case m.State == ingress.StateCallingTool:
		return r.note("uses %s", d.Tool)
	case m.State == ingress.StateWaitingSignal:
		return r.note("waits for the signal %s", d.Name)
	}
	return nil
}

// line prints a line of the conversation.
func (r *replayed) line(text string) error {
	if text == "" {
		return nil
	}
	if err := r.end(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(r.out, text)
	return err
}

func (r *replayed) note(format string, args ...any) error {
	if err := r.end(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(r.err, "· "+fmt.Sprintf(format, args...))
	return err
}

// end ends the line of an answer.
func (r *replayed) end() (err error) {
	if r.midLine {
		_, err = fmt.Fprintln(r.out)
	}
	r.midLine = false
	return err
}
