// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
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

	Swap []string `sep:"none" placeholder:"TOOL[#N]=FILE" help:"With --data: replay with the JSON in the file as the result of the tool, of its N-th call or of all, and show the first difference."`
	Data string   `type:"existingdir" help:"With --swap: data folder; no server may be using it."`
}

// Help returns the text shown below the flags.
func (RunsReplayCmd) Help() string {
	return `Shows the messages of the run as a client of the channel protocol got them, with the original delays, each of at most five
seconds. It reads stored events: no agent, model or tool is called.

With --swap the run and those that it called are replayed from a data folder, with other results of tools, up to the first action
that differs: often the next prompt of a model. It is shown beside the recorded one, and nothing is called. Agents that are programs
are not replayed.

Examples:
  troupe runs replay 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55
  troupe runs replay 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --speed 4
  troupe runs replay 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --speed 0 --to-channel
  troupe runs replay 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55 --data data --swap weather.get#2=rain.json`
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
	if len(c.Swap) > 0 || c.Data != "" {
		return c.swapped(s)
	}
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
			return out.finish()
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
	waits   []replayedWait // open
	open    bool           // the run has not ended
}

// replayedWait is what a run waits for.
type replayedWait struct{ key, text string }

// signalWait is the key of the wait for a signal. A run waits for one at a time.
const signalWait = "signal"

func (r *replayed) show(m *channelMessage) error {
	switch m.Type {
	case ingress.ChannelRunStarted:
		r.open = true
		return r.line("> " + oneLine(m.text()))
	case ingress.ChannelDelta:
		r.deltas = append(r.deltas, m.Text)
		r.midLine = !strings.HasSuffix(m.Text, "\n")
		_, err := fmt.Fprint(r.out, m.Text)
		return err
	case ingress.ChannelDone:
		r.open = false
	case ingress.ChannelError:
		r.open = false
		return r.note("%s: %s", m.Code, m.text())
	case ingress.ChannelApprovalRequired:
		a := m.approval()
		what := a.what()
		r.waits = append(r.waits, replayedWait{m.Approval, "the approval of " + what + ", " + m.Approval})
		return r.note("%s waits for a person: %s", what, oneLine(m.Summary))
	case ingress.ChannelToolRequest:
		r.waits = append(r.waits, replayedWait{m.ToolCall, "a device that performs " + m.Tool})
		return r.note("a device performs %s %s", m.Tool, m.Args)
	case ingress.ChannelState:
		return r.state(m)
	}
	return nil
}

// state prints a state that a reader of the conversation wants to know.
func (r *replayed) state(m *channelMessage) error {
	d := m.stateDetail()
	r.over(d.Approval)
	switch {
	case m.State == ingress.StateRetrying:
		r.deltas = r.deltas[:max(0, len(r.deltas)-d.Void)]
		if err := r.note("the answer is generated again"); err != nil {
			return err
		}
		return r.line(strings.Join(r.deltas, ""))
	case d.ended():
		r.over(d.ToolCall)
	case m.State == ingress.StateWaitingSignal && d.Name != "":
		r.over(signalWait)
		r.waits = append(r.waits, replayedWait{signalWait, "the signal " + d.Name})
	case d.Name != "":
		r.over(signalWait)
	}
	if text := d.text(); text != "" {
		return r.note("%s", text)
	}
	return nil
}

// over removes a wait that has ended.
func (r *replayed) over(key string) {
	r.waits = slices.DeleteFunc(r.waits, func(w replayedWait) bool { return w.key == key })
}

// finish ends the output with the state of a run that has not ended.
func (r *replayed) finish() error {
	if err := r.end(); err != nil || !r.open {
		return err
	}
	var all []string
	for _, w := range r.waits {
		all = append(all, w.text)
	}
	if all == nil {
		return r.note("the run has not ended")
	}
	return r.note("the run waits for %s", strings.Join(all, "; and for "))
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
