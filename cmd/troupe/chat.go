// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// ChatCmd is a conversation with an agent.
type ChatCmd struct {
	ServerFlags
	User     string `placeholder:"NAME" help:"User of the conversation; needs a key of keys create --act-as-user, or a server on this machine that admits requests without a key."`
	Agent    string `arg:"" help:"Agent to talk to."`
	Session  string `aliases:"session-id" xor:"session" help:"Session to continue or to begin; a new one if absent."`
	Continue bool   `xor:"session" help:"Continue the last session with this agent."`
	Device   string `placeholder:"NAME" help:"Name of this terminal for the client tools of agents; one of its own if absent."`
	Stream   *bool  `negatable:"" help:"Print answers while they are generated; the default on a terminal."`
	JSON     bool   `help:"Print the messages of the server, one per line."`
}

// chatHelp lists the commands of a conversation.
const chatHelp = `/sessions      the latest sessions
/session NAME  continue or begin a session
/new           begin a session with the next message
/cancel        cancel the open runs
/help          this list
/quit          end, as Ctrl-D does; open runs continue`

// Help returns the text shown below the flags.
func (ChatCmd) Help() string {
	return `Each line is a message; on a terminal its answer is printed while it is generated. A tool call that waits for a person is shown with
its arguments and asks: y or n, and a reason behind it. A client tool that the agent uses asks for its result. If the
connection is lost, it is opened again, and no message is missed. An answer that the server generates again, because a
model failed in the middle, is printed again.

On a terminal, a line is edited with the arrow keys and Ctrl-A, E, W, U and K, up to 4096 characters; up and down bring earlier lines
back. Ctrl-C ends, as does Ctrl-D on an empty line.

Commands in a conversation:
  ` + strings.ReplaceAll(chatHelp, "\n", "\n  ") + `

Without a terminal, lines are read when they are needed: a message after each answer, and an answer to each question. The
command ends with its input once the last run has ended: with code 1 if a run failed, with 3 if one waits for a person.
It ends with code 1 if the session is deleted.

Examples:
  troupe chat helper
  troupe chat planner --continue
  printf 'hello\nand in French?\n' | troupe chat helper
  printf 'pay 20 to anna\ny asked Anna\n' | troupe chat cashier
  troupe chat helper --json < questions.txt | jq -r .type`
}

// Validate returns an error for a name that no user, session or device has.
func (c *ChatCmd) Validate() error {
	if c.User != "" {
		if err := actor.CheckNewUser(c.User); err != nil {
			return fmt.Errorf("--user: %w", err)
		}
	}
	if c.Session != "" {
		if _, r := ingress.CheckSession(c.Session); r != nil {
			return fmt.Errorf("--session: %s", r.Detail)
		}
	}
	if c.Device != "" {
		if err := actor.CheckName(c.Device); err != nil {
			return fmt.Errorf("--device: %w", err)
		}
	}
	return nil
}

// Run executes the command. On SIGINT it stops waiting; open runs continue.
func (c *ChatCmd) Run(s streams) error {
	path, err := agentPath(c.ServerFlags, c.Agent)
	if err != nil {
		return err
	}
	to := c.client()
	to.flags, to.user = UserFlags{c.ServerFlags, c.User}, c.User
	if err := retryStarting(func() error { _, err := to.get(path); return err }); err != nil {
		return err
	}
	if c.Continue {
		if c.Session, err = lastSession(to, c.Agent); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	to.ctx, to.flags.ctx = ctx, ctx
	chat := &chat{streams: s, client: to, command: c, device: cmp.Or(c.Device, "terminal-"+strings.ToLower(rand.Text()[:16])),
		interactive: isTerminal(os.Stdin) && !c.JSON, streaming: !c.JSON && (c.Stream == nil && isTerminal(s.out) || c.Stream != nil && *c.Stream), runs: map[string]*chatRun{}}
	if out := terminalFile(s.out); chat.interactive && out != nil && os.Getenv("TERM") != "dumb" {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGQUIT) // they would leave the terminal in raw mode
		defer stop()
		ctx, stop = context.WithCancel(ctx)
		defer stop()
		to.ctx, to.flags.ctx = ctx, ctx
		if chat.screen, err = openScreen(os.Stdin, out, stop); err == nil {
			defer chat.screen.close()
			chat.client = to
			chat.out = &output{w: chat.screen, terminal: true}
			if isTerminal(s.err) {
				chat.err = &output{w: chat.screen, terminal: true}
			}
			return chat.talk(ctx)
		}
	}
	chat.input = readLines(os.Stdin)
	chat.lines = chat.input.lines
	return chat.talk(ctx)
}

// chatRun is a run of the session.
type chatRun struct {
	agent  string
	deltas []string // of the answer
}

// chat is the state of ChatCmd.
type chat struct {
	streams
	client
	command     *ChatCmd
	device      string
	interactive bool
	streaming   bool
	screen      *screen       // where the person edits lines; nil: not on a terminal
	input       *typedLines   // nil until the first line is wanted, if there is a screen
	lines       <-chan string // of the input; nil: it has ended
	channel     *channel
	stop        context.CancelFunc // of the channel

	live      bool                // the earlier messages of the session were read
	history   []string            // lines about them
	runs      map[string]*chatRun // open
	questions []*question         // the first one was printed, if asked is set
	asked     bool
	ended     []string             // the last runs that ended
	answered  map[string]bool      // tool calls and approvals whose answer was sent
	sent      map[string]*question // that requests answer, nil for other requests; by requests whose answers were not taken
	connected bool
	lost      bool // reported
	failed    bool
	midLine   bool
	prompted  bool
}

// endedRuns is the number of ended runs that are remembered, because the end of a run may precede the answer to
// its request.
const endedRuns = 64

// historyLines is the number of earlier messages that are printed.
const historyLines = 10

// open follows a session instead of the present one. "" begins one with the next message.
func (c *chat) open(ctx context.Context, session string) {
	c.close()
	c.live, c.history, c.questions, c.asked = session == "", nil, nil, false
	c.runs, c.answered, c.sent = map[string]*chatRun{}, map[string]bool{}, map[string]*question{}
	c.channel = newChannel(c.client, c.device, session)
	ctx, c.stop = context.WithCancel(ctx)
	go func(channel *channel) {
		defer c.screen.guard()
		channel.run(ctx)
	}(c.channel)
}

// close ends the channel.
func (c *chat) close() {
	if c.stop == nil {
		return
	}
	c.stop()
	for range c.channel.messages { // until it has ended
	}
}

// talk passes lines to the server and prints what it sends, until one of them ends.
func (c *chat) talk(ctx context.Context) error {
	c.open(ctx, c.command.Session)
	defer c.close()
	if c.interactive {
		fmt.Fprintf(c.err, "%s; /help lists the commands, Ctrl-D ends\n", c.command.Agent)
	}
	for {
		c.ask()
		if ctx.Err() != nil { // during a request
			return c.interrupt()
		}
		var lines <-chan string
		if c.live && (c.interactive || !c.busy() || c.asks()) { // others are read later
			if c.input == nil {
				c.input = c.screen.read(c.promptText())
				c.lines = c.input.lines
			}
			if lines = c.lines; lines == nil {
				return c.end()
			}
			c.prompt()
		}
		select {
		case <-ctx.Done():
			return c.interrupt()
		case line, open := <-lines:
			if !open { // Ctrl-D ends no line
				if c.input.err != nil {
					c.endLine()
					c.reportOpen()
					return c.input.err
				}
				c.lines = nil
				continue
			}
			c.prompted = false
			if done := c.line(ctx, line); done {
				return c.end()
			}
		case m, open := <-c.channel.messages:
			if !open {
				return errors.New("the connection has ended")
			}
			if err := c.take(&m); err != nil {
				c.endLine()
				return err
			}
			if err := writeError(c.out); err != nil {
				return err
			}
		}
	}
}

// interrupt returns the exit code after a signal.
func (c *chat) interrupt() error {
	c.endLine()
	c.reportOpen()
	return exitCode(exitInterrupted)
}

// idle reports whether nothing of the session is open.
func (c *chat) idle() bool { return c.live && len(c.runs) == 0 && len(c.sent) == 0 }

// busy reports whether something of the session goes on by itself: not a run that waits for a colleague.
func (c *chat) busy() bool {
	waiting := map[string]bool{}
	for _, q := range c.questions {
		waiting[q.message.Run] = waiting[q.message.Run] || q.others
	}
	for run := range c.runs {
		if !waiting[run] {
			return true
		}
	}
	return len(c.sent) > 0
}

// end returns the exit code at the end of the input.
func (c *chat) end() error {
	c.endLine()
	c.reportOpen()
	switch {
	case len(c.questions) > 0:
		for _, q := range c.questions {
			if m := &q.message; m.Approval != "" {
				if q.others {
					fmt.Fprintf(c.err, "run %s waits for a colleague\n", m.Run)
					continue
				}
				fmt.Fprintln(c.err, (&approvalView{ID: m.Approval, Tool: m.Tool, Summary: m.Summary}).request(c.flags, m.Run))
			}
		}
		return exitCode(exitWaiting)
	case c.failed && !c.interactive:
		return exitCode(exitFailed)
	}
	return nil
}

// reportOpen prints the command that continues the session if runs of it are open.
func (c *chat) reportOpen() {
	if session := c.channel.where(); session != "" && (len(c.runs) > 0 || c.interactive) {
		fmt.Fprintf(c.err, "to continue:\n  %s\n", c.flags.hint("chat", []string{c.command.Agent}, "--session", session))
	}
}

func (c *chat) endLine() {
	if c.screen != nil {
		c.screen.endLine()
	} else if c.midLine || c.prompted {
		to := c.out
		if !c.midLine {
			to = c.err
		}
		fmt.Fprintln(to)
	}
	c.midLine, c.prompted = false, false
}

// note prints a line for the person.
func (c *chat) note(format string, args ...any) {
	if c.command.JSON {
		return
	}
	c.endLine()
	fmt.Fprintf(c.err, format+"\n", args...)
}

// prompt asks for a line if nothing else is to be printed.
func (c *chat) prompt() {
	switch {
	case c.screen != nil: // which always shows one, below the output
		c.screen.setPrompt(c.promptText())
	case !c.interactive || c.prompted || c.midLine || len(c.channel.messages) > 0:
	case len(c.questions) > 0 || c.idle():
		fmt.Fprint(c.err, c.promptText())
		c.prompted = true
	}
}

func (c *chat) promptText() string {
	switch {
	case !c.asks():
		return "> "
	case c.questions[0].message.Approval != "":
		return "approve? [y/n, and a reason] "
	}
	return "answer> "
}

// line handles a line of the person. It reports whether the conversation ends.
func (c *chat) line(ctx context.Context, line string) (done bool) {
	text := strings.TrimSpace(line)
	name, argument, _ := strings.Cut(text, " ")
	switch {
	case text == "":
	case text == "/quit" || text == "/exit":
		return true
	case text == "/help":
		fmt.Fprintln(c.err, chatHelp)
	case text == "/sessions":
		c.printSessions()
	case text == "/new":
		c.open(ctx, "")
	case name == "/session":
		session, r := ingress.CheckSession(strings.TrimSpace(argument))
		if r != nil || session == "" {
			c.note("want /session NAME, with a name of at most 64 letters, digits, '.', '_' and '-' (see: /sessions)")
			return false
		}
		c.open(ctx, session)
	case text == "/cancel":
		for run := range c.runs {
			c.send(channelRequest{Type: "cancel_run", ID: rand.Text(), Run: run}, nil)
		}
		if len(c.runs) == 0 {
			c.note("nothing is open")
		}
	case c.asks() && c.asked:
		c.answer(text)
	case strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "//"):
		c.note("%s is no command (see: /help); begin a message with // for a slash", name)
	default:
		c.send(channelRequest{Type: "agent_invoke", ID: newRequestID(), Session: c.channel.where(), Agent: c.command.Agent,
			Message: map[string]string{"role": "user", "content": strings.Replace(text, "//", "/", boolCount(strings.HasPrefix(text, "//")))}}, nil)
	}
	return false
}

// send sends a request, which answers a question or none. The conversation goes on with the next line once its answer is taken, not
// when it arrives: only then is the run known.
func (c *chat) send(r channelRequest, q *question) {
	c.sent[r.ID] = q
	c.channel.send(r)
}

// boolCount returns 1 for true.
func boolCount(b bool) int {
	if b {
		return 1
	}
	return 0
}

// printSessions prints the latest sessions.
func (c *chat) printSessions() {
	c.endLine()
	if err := (&SessionsListCmd{UserFlags: c.flags, Limit: 20}).Run(streams{c.err, c.err}); err != nil {
		fmt.Fprintln(c.err, "troupe:", err)
	}
}
