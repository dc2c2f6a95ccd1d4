// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

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

// question waits for an answer of the person.
type question struct {
	message channelMessage
	choices []string
	from    time.Time // earlier answers were typed for something else
	others  bool      // somebody else decides; such questions are the last ones
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

// take handles a message of the server.
func (c *chat) take(m *channelMessage) error {
	switch {
	case m.lost != nil && (m.last || !c.connected):
		return m.lost
	case m.lost != nil:
		if !c.lost {
			c.lost = true
			c.note("%v; connecting again", m.lost)
		}
		return nil
	case m.ready():
		if c.lost {
			c.note("connected again")
		}
		c.connected, c.lost = true, false
		return nil
	}
	if c.command.JSON && (c.live || m.answers()) {
		if _, err := fmt.Fprintf(c.out, "%s\n", m.raw); err != nil {
			return err
		}
	}
	switch {
	case m.answers():
		c.takeAnswer(m)
		return nil
	case m.is(ingress.StateLive):
		c.showHistory()
		return nil
	case m.Type == ingress.ChannelError && m.Run == "":
		switch {
		case m.Code == "session_not_found":
			c.showHistory() // the first message begins it
			return nil
		case m.Code == "session_deleted" && m.Session == c.channel.where():
			return fmt.Errorf("session %s was deleted; to begin another:\n  %s", m.Session, c.flags.hint("chat", []string{c.command.Agent}))
		}
		c.note("%s: %s", m.Code, m.text())
		return nil
	case m.Type == ingress.ChannelToolRequest:
		c.addQuestion(m, m.ToolCall)
		return nil
	}
	return c.takeEvent(m)
}

// takeAnswer handles the answer to a request.
func (c *chat) takeAnswer(m *channelMessage) {
	q := c.sent[m.Request]
	delete(c.sent, m.Request)
	switch {
	case m.Type == ingress.ChannelError:
		c.failed = c.failed || q == nil
		c.note("%s: %s", m.Code, m.text())
		if q != nil && m.Code != "approval_decided" && m.Code != "tool_call_ended" && c.runs[q.message.Run] != nil {
			delete(c.answered, q.key())
			c.questions, c.asked = slices.Insert(c.questions, 0, q), false
		}
	case m.Run != "" && q == nil && c.runs[m.Run] == nil && m.Session == c.channel.where() && !slices.Contains(c.ended, m.Run):
		c.runs[m.Run] = &chatRun{agent: c.command.Agent} // run_started follows
	}
}

// takeEvent handles a message about a run.
func (c *chat) takeEvent(m *channelMessage) error {
	run := c.runs[m.Run]
	if run == nil {
		run = &chatRun{agent: cmp.Or(m.Agent, c.command.Agent)}
		c.runs[m.Run] = run
	}
	switch m.Type {
	case ingress.ChannelRunStarted:
		run.agent = cmp.Or(m.Agent, run.agent)
		if !c.live {
			c.history = append(c.history, "> "+oneLine(m.text()))
		}
	case ingress.ChannelDelta:
		run.deltas = append(run.deltas, m.Text)
		return c.print(m.Text)
	case ingress.ChannelState:
		return c.takeState(m, run)
	case ingress.ChannelApprovalRequired:
		c.addQuestion(m, m.Approval)
	case ingress.ChannelDone, ingress.ChannelError:
		c.endRun(m, run)
	}
	return nil
}

// endRun handles the end of a run.
func (c *chat) endRun(m *channelMessage, run *chatRun) {
	delete(c.runs, m.Run)
	c.ended = append(c.ended[max(0, len(c.ended)-endedRuns+1):], m.Run)
	c.questions = slices.DeleteFunc(c.questions, func(q *question) bool { return q.message.Run == m.Run })
	c.asked = c.asked && len(c.questions) > 0
	text := cmp.Or(m.Text, strings.Join(run.deltas, ""))
	if m.Type == ingress.ChannelError {
		text = fmt.Sprintf("%s: %s", m.Code, m.text())
	}
	switch {
	case !c.live:
		c.history = append(c.history, text)
	case m.Type == ingress.ChannelError:
		c.failed = true
		c.note("%s", text)
	case c.streaming && !strings.HasSuffix(text, "\n"):
		c.midLine = true
		c.endLine()
	case c.streaming || c.command.JSON:
		c.midLine = false
	default:
		c.endLine()
		fmt.Fprintln(c.out, strings.TrimSuffix(text, "\n"))
	}
}

// takeState handles the state of a run.
func (c *chat) takeState(m *channelMessage, run *chatRun) error {
	d := m.stateDetail()
	switch {
	case m.State == ingress.StateRetrying:
		run.deltas = run.deltas[:max(0, len(run.deltas)-d.Void)]
		if c.live && c.streaming {
			c.note("the answer is generated again")
			return c.print(strings.Join(run.deltas, ""))
		}
		return nil
	case d.Decision != "":
		c.withdraw(d.Approval)
	case d.ended():
		c.withdraw(d.ToolCall)
	}
	if text := d.text(); text != "" {
		if m.State == ingress.StateWaitingSignal {
			text += "; to continue:\n  " + c.flags.hint("runs signal", []string{m.Run, d.Name})
		}
		c.status(text)
	}
	return nil
}

// status prints what a run does.
func (c *chat) status(text string) {
	if c.live {
		c.note("[%s]", text)
	}
}

// print prints a piece of an answer.
func (c *chat) print(text string) error {
	if !c.live || !c.streaming || text == "" {
		return nil
	}
	if c.prompted {
		c.endLine()
	}
	_, err := io.WriteString(c.out, text)
	c.midLine = !strings.HasSuffix(text, "\n")
	return err
}

// showHistory prints the latest of the earlier messages.
func (c *chat) showHistory() {
	if c.live {
		return
	}
	c.live = true
	if c.interactive {
		for _, line := range c.history[max(0, len(c.history)-historyLines):] {
			fmt.Fprintln(c.err, line)
		}
	}
	c.history = nil
	for _, run := range c.runs {
		_ = c.print(strings.Join(run.deltas, ""))
	}
}

// addQuestion adds a question, unless it was asked before.
func (c *chat) addQuestion(m *channelMessage, key string) {
	if c.answered[key] || slices.ContainsFunc(c.questions, func(q *question) bool { return q.key() == key }) {
		return
	}
	at := slices.IndexFunc(c.questions, func(q *question) bool { return q.others })
	if at < 0 {
		at = len(c.questions)
	}
	c.questions = slices.Insert(c.questions, at, &question{message: *m})
}

// asks reports whether a question waits for this person.
func (c *chat) asks() bool { return len(c.questions) > 0 && !c.questions[0].others }

// askOthers shows that somebody else decides about the oldest question. The conversation goes on.
func (c *chat) askOthers() {
	q := c.questions[0]
	q.others = true
	c.questions = append(c.questions[1:], q)
	c.asked = false
	c.note("[a colleague has been asked]")
}

func (q *question) key() string { return cmp.Or(q.message.Approval, q.message.ToolCall) }

// withdraw removes a question that needs no answer.
func (c *chat) withdraw(key string) {
	if i := slices.IndexFunc(c.questions, func(q *question) bool { return q.key() == key }); i >= 0 {
		if i == 0 && c.asked {
			c.asked = false
			c.note("the question above needs no answer")
		}
		c.questions = slices.Delete(c.questions, i, i+1)
	}
}

// ask prints the oldest question, unless it was printed.
func (c *chat) ask() {
	if c.asked || !c.asks() || !c.live {
		return
	}
	c.asked = true
	q := c.questions[0]
	if q.from = time.Now(); c.interactive {
		q.from = q.from.Add(answerDelay)
	}
	m := &q.message
	if m.Approval != "" {
		_, a, err := c.approval(m.Approval)
		if err == nil && a.May != nil && !*a.May {
			c.askOthers()
			c.ask()
			return
		}
		if err != nil {
			a = m.approval()
		}
		c.note("%s: %s", a.question(), oneLine(cmp.Or(m.Summary, a.Summary)))
		if err == nil && !c.command.JSON {
			_ = printArgs(c.err, a.Args)
		}
		return
	}
	var args struct {
		Question string   `json:"question"`
		Choices  []string `json:"choices"`
	}
	if json.Unmarshal(m.Args, &args) != nil || args.Question == "" {
		c.note("%s needs a result, as JSON or text; /decline refuses:", m.Tool)
		if !c.command.JSON {
			_ = printArgs(c.err, m.Args)
		}
		return
	}
	q.choices = args.Choices
	c.note("%s", args.Question)
	for i, choice := range q.choices {
		c.note("  %d  %s", i+1, oneLine(choice))
	}
}

// answer handles the answer to the oldest question.
func (c *chat) answer(text string) {
	q := c.questions[0]
	m := &q.message
	if time.Now().Before(q.from) {
		c.note("typed too early to be an answer")
		return
	}
	r := channelRequest{ID: rand.Text(), Run: m.Run}
	if m.Approval != "" {
		word, reason, _ := strings.Cut(text, " ")
		r.Type, r.Approval, r.Reason = "approval_decision", m.Approval, strings.TrimSpace(reason)
		switch word {
		case "y", "yes":
			r.Decision = "approve"
		case "n", "no":
			r.Decision = "reject"
		default:
			c.note("want y or n, and maybe a reason: y asked Anna")
			return
		}
	} else {
		r.Type, r.ToolCall = "tool_result", m.ToolCall
		r.OK, r.Result = new(bool), q.result(text)
		if *r.OK = text != "/decline"; !*r.OK {
			r.Result, r.Error = nil, map[string]string{"code": "declined", "message": "the person declined"}
		}
	}
	c.answered[q.key()] = true
	c.questions, c.asked = c.questions[1:], false
	c.send(r, q)
}

// result returns the result of a client tool: the chosen text, JSON, or the text itself.
func (q *question) result(text string) jsontext.Value {
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= len(q.choices) {
		text = q.choices[n-1]
	} else if v := jsontext.Value(text); len(q.choices) == 0 && v.IsValid() {
		return v
	}
	b, err := jsontext.AppendQuote(nil, strings.ToValidUTF8(text, "\uFFFD"))
	if err != nil {
		return jsontext.Value(`""`)
	}
	return b
}
