// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
)

// MCPCmd serves the agents of a server as tools of an MCP server.
type MCPCmd struct {
	ServerFlags
	User   string        `placeholder:"NAME" help:"User of the messages; needs a key of keys create --act-as-user, or a server on this machine that admits requests without a key."`
	Agents []string      `name:"agent" placeholder:"ID" help:"Offer only this agent; may be repeated."`
	Wait   time.Duration `default:"45s" help:"Maximum duration of one tool call. A run that takes longer continues, and the tool wait_for_run waits for it."`
}

// Help returns the text shown below the flags.
func (MCPCmd) Help() string {
	return `Speaks the Model Context Protocol on standard input and output, for applications that start MCP servers themselves.
Each agent is a tool, ask_ID, with a message and, to continue a conversation, a session_id. The list follows the agents of
the server. The tools wait_for_run and cancel_run are about runs that a call has begun.

A tool call of an agent that needs a person returns at once with the approval; it is decided elsewhere, as on the page of the
server or by troupe approvals approve. A call that its client cancels leaves the run to the server.

The application needs the path of this command and, for a server with keys, a key with the scopes call and read:
  {"mcpServers": {"troupe": {"command": "/usr/local/bin/troupe", "args": ["mcp"], "env": {"TROUPE_KEY": "…"}}}}

Examples:
  troupe mcp
  troupe mcp --agent coordinator --wait 2m`
}

// Validate returns an error for a wait that is no time, and for a name that no user has.
func (c *MCPCmd) Validate() error {
	if c.Wait <= 0 {
		return fmt.Errorf("--wait %s: want a duration like 45s", c.Wait)
	}
	if c.User == "" {
		return nil
	}
	if err := actor.CheckNewUser(c.User); err != nil {
		return fmt.Errorf("--user: %w", err)
	}
	return nil
}

// Run executes the command until standard input ends.
func (c *MCPCmd) Run(s streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := c.bridge()
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		if err := b.refresh(ctx); err != nil && ctx.Err() == nil { // printed too, because not every application shows the error of the first list
			fmt.Fprintln(s.err, "troupe mcp:", err)
		} else if missing := b.missing(); len(missing) > 0 {
			fmt.Fprintf(s.err, "troupe mcp: the server has no agent %s now; see: %s\n", strings.Join(missing, ", "), c.hint("agents list", nil))
		}
	}()
	if isTerminal(os.Stdin) {
		fmt.Fprintln(s.err, "troupe mcp: applications start this command and write messages to it; Ctrl-C ends it. See troupe mcp --help")
	}
	input := &standardIO{in: os.Stdin, out: s.out, note: func(format string, args ...any) {
		fmt.Fprintf(s.err, "troupe mcp: "+format+"\n", args...)
	}}
	err := b.server.Run(ctx, input)
	interrupted := ctx.Err() != nil
	select {
	case <-checked:
	case <-ctx.Done():
	case <-time.After(time.Second): // a slow server keeps no command alive
	}
	stop()
	<-checked
	switch {
	case interrupted:
		return nil
	case input.messages == 0 && input.skipped > 0:
		return errors.New("standard input had no message of MCP; an application starts this command, see troupe mcp --help")
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

func (c *MCPCmd) bridge() *mcpBridge {
	to := c.ServerFlags.client()
	to.flags, to.user = UserFlags{c.ServerFlags, c.User}, c.User
	b := &mcpBridge{to: to, only: c.Agents, wait: c.Wait, agents: map[string]string{}}
	b.server = mcp.NewServer(&mcp.Implementation{Name: "troupe", Title: "Troupe", Version: version()}, &mcp.ServerOptions{
		Instructions: "Each tool ask_… sends a message to an agent and returns its answer. Give session_id of a former answer to continue its conversation.",
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}},
		PageSize:     mcpPageSize,
	})
	b.server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			call, isCall := r.GetParams().(*mcp.CallToolParamsRaw)
			if method == "tools/list" || isCall && !b.offers(call.Name) {
				switch err := b.refresh(ctx); {
				case err != nil && isCall: // its model reads why the tool is unknown
					return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}}, nil
				case err != nil:
					return nil, err
				}
			}
			return next(ctx, method, r)
		}
	})
	b.addRunTool(waitForRun, "Waits for the answer of a run that a former call has begun. Call it again while the run has none.", b.waitForRun)
	b.addRunTool(cancelRun, "Cancels a run that a former call has begun, with all calls below it.", b.cancelRun)
	return b
}

// Tools about runs.
const (
	waitForRun = "wait_for_run"
	cancelRun  = "cancel_run"
)

const (
	mcpPageSize     = 1000
	mcpNameMax      = 64               // bytes of the name of a tool, as applications accept them
	mcpPoll         = 10 * time.Second // duration of one request for events
	mcpRefreshMax   = 20 * time.Second
	mcpEventsOfPoll = 100
)

// mcpBridge translates calls of tools to messages. It is safe for concurrent use.
type mcpBridge struct {
	to     client
	only   []string // agents; empty: all
	wait   time.Duration
	server *mcp.Server

	mu     sync.Mutex
	agents map[string]string // descriptions of the offered tools, by name
	absent []string          // of only
}

// offers reports whether a tool is known.
func (b *mcpBridge) offers(tool string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.agents[tool] != "" || tool == waitForRun || tool == cancelRun
}

// missing returns the agents that are to be offered and that the server does not have.
func (b *mcpBridge) missing() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.absent
}

// mcpAnswer is the structured content of a result.
type mcpAnswer struct {
	Run     string `json:"run_id,omitempty"`
	Session string `json:"session_id,omitempty"`
	Status  string `json:"status"`
	Answer  string `json:"answer,omitempty"`
}

// refresh offers the present agents of the server. It does so within mcpRefreshMax, because a server
// may be slow.
func (b *mcpBridge) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, mcpRefreshMax)
	defer cancel()
	to := b.to
	to.ctx = ctx
	all, err := allOf[agentView](to, "/v1/agents")
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	gone := map[string]bool{}
	for name := range b.agents {
		gone[name] = true
	}
	b.absent = slices.DeleteFunc(slices.Clone(b.only), func(name string) bool {
		return slices.ContainsFunc(all, func(a agentView) bool { return a.ID == name || a.Name == name })
	})
	owners := map[string]string{}
	for _, a := range all {
		if len(b.only) > 0 && !slices.Contains(b.only, a.ID) && !slices.Contains(b.only, a.Name) {
			continue
		}
		name, text := mcpToolName(a.ID), mcpDescription(&a)
		if other := owners[name]; other != "" && other != a.ID {
			return fmt.Errorf("the agents %s and %s would have the same tool %s: choose some with --agent", other, a.ID, name)
		}
		owners[name] = a.ID
		delete(gone, name)
		if b.agents[name] != text {
			b.agents[name] = text
			b.addAgent(name, text, a.ID)
		}
	}
	for name := range gone {
		delete(b.agents, name)
		b.server.RemoveTools(name)
	}
	return nil
}

// mcpToolName returns the name of the tool of an agent. Names of tools allow fewer characters than
// IDs, so the name for some IDs ends with a hash of the ID. An ID that looks like such a name gets
// a hash too, so that no agent can take the tool of another one.
func mcpToolName(agent string) string {
	name := "ask_" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, agent)
	if name[len("ask_"):] == agent && len(name) <= mcpNameMax && !endsWithHash.MatchString(agent) {
		return name
	}
	hash := actor.HashOf([]byte(agent))
	suffix := "_" + hex.EncodeToString(hash[:8])
	return name[:min(len(name), mcpNameMax-len(suffix))] + suffix
}

var endsWithHash = regexp.MustCompile(`_[0-9a-f]{16}$`)

func mcpDescription(a *agentView) string {
	text := "Sends a message to the agent " + cmp.Or(a.Name, a.ID) + " and returns its answer."
	if a.Doc != "" {
		text += " " + a.Doc
	}
	return text
}

// addAgent offers the tool of an agent, or replaces it.
func (b *mcpBridge) addAgent(name, description, agent string) {
	type input struct {
		Message string `json:"message" jsonschema:"text for the agent"`
		Session string `json:"session_id,omitempty" jsonschema:"session_id of a former answer, to continue its conversation; omit it to begin a new one"`
	}
	mcp.AddTool(b.server, &mcp.Tool{Name: name, Title: agent, Description: description},
		func(ctx context.Context, r *mcp.CallToolRequest, in input) (*mcp.CallToolResult, mcpAnswer, error) {
			return b.ask(ctx, r, agent, messageBody{Content: in.Message, Session: in.Session})
		})
}

func (b *mcpBridge) addRunTool(name, description string, run func(context.Context, *mcp.CallToolRequest, actor.CallID) (*mcp.CallToolResult, mcpAnswer, error)) {
	type input struct {
		Run string `json:"run_id" jsonschema:"run_id of a former call"`
	}
	mcp.AddTool(b.server, &mcp.Tool{Name: name, Description: description},
		func(ctx context.Context, r *mcp.CallToolRequest, in input) (*mcp.CallToolResult, mcpAnswer, error) {
			id, err := actor.ParseCallID(in.Run)
			if err != nil {
				return nil, mcpAnswer{}, fmt.Errorf("run_id: %w", err)
			}
			return run(ctx, r, id)
		})
}

// ask sends a message. Its run is durable before the bridge waits for it, so an answer is not lost if
// the client stops waiting.
func (b *mcpBridge) ask(ctx context.Context, r *mcp.CallToolRequest, agent string, body messageBody) (*mcp.CallToolResult, mcpAnswer, error) {
	path, err := agentPath(b.to.flags.ServerFlags, agent)
	if err != nil {
		return nil, mcpAnswer{}, err
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, mcpAnswer{}, err
	}
	key := newRequestID()
	status, answer, err := b.to.do(ctx, http.MethodPost, path+"/messages", text, ingress.IdempotencyKey, key, "Prefer", "respond-async")
	if status == http.StatusNotAcceptable { // the runs of the agent have no events
		_, answer, err = b.to.do(ctx, http.MethodPost, path+"/messages", text, ingress.IdempotencyKey, key)
	}
	if err != nil {
		return nil, mcpAnswer{}, err
	}
	var out struct {
		Run     string `json:"run_id"`
		Session string `json:"session_id"`
		Content string `json:"content"`
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return nil, mcpAnswer{}, err
	}
	if status == http.StatusNotAcceptable {
		return mcpResult(mcpAnswer{Session: out.Session, Status: runs.Done.String(), Answer: out.Content})
	}
	run, err := actor.ParseCallID(out.Run)
	if err != nil {
		return nil, mcpAnswer{}, err
	}
	return b.follow(ctx, r, run, false)
}

func (b *mcpBridge) waitForRun(ctx context.Context, r *mcp.CallToolRequest, run actor.CallID) (*mcp.CallToolResult, mcpAnswer, error) {
	return b.follow(ctx, r, run, true)
}

func (b *mcpBridge) cancelRun(ctx context.Context, _ *mcp.CallToolRequest, run actor.CallID) (*mcp.CallToolResult, mcpAnswer, error) {
	out := mcpAnswer{Run: run.String()}
	_, body, err := b.to.do(ctx, http.MethodPost, "/v1/runs/"+run.String()+":cancel", nil)
	if err == nil {
		var now mcpRun
		err = json.Unmarshal(body, &now)
		out.Status = now.Status // another one if the run had ended before
	}
	if err != nil {
		return nil, mcpAnswer{}, err
	}
	return mcpResult(out)
}

// mcpRun are the fields of GET /v1/runs/{id} that a result has.
type mcpRun struct {
	Session  string   `json:"session_id"`
	Status   string   `json:"status"`
	Text     string   `json:"text"`
	Warnings []string `json:"warnings"`
	Error    *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Waiting []struct {
		Name string `json:"name"`
	} `json:"waiting_for"`
}

// follow waits until the run has ended, but at most for b.wait. It returns earlier if the run waits
// for a person, unless decided is set: then the decision may still be on its way.
func (b *mcpBridge) follow(ctx context.Context, r *mcp.CallToolRequest, run actor.CallID, decided bool) (*mcp.CallToolResult, mcpAnswer, error) {
	end := time.Now().Add(b.wait)
	var after uint64
	for {
		var now mcpRun
		_, body, err := b.to.do(ctx, http.MethodGet, "/v1/runs/"+run.String(), nil)
		if err == nil {
			err = json.Unmarshal(body, &now)
		}
		out := mcpAnswer{Run: run.String(), Session: now.Session, Status: now.Status, Answer: now.Text}
		left := time.Until(end)
		switch {
		case err != nil && isTransient(err) && (ctx.Err() != nil || left <= 0):
			return nil, mcpAnswer{}, fmt.Errorf("run_id: %s\nThe run may have continued: call %s with this run_id. %w", run, waitForRun, err)
		case err != nil && !isTransient(err):
			return nil, mcpAnswer{}, fmt.Errorf("run %s: %w", run, err)
		case now.Status == runs.Done.String():
			return mcpResult(out, now.Warnings...)
		case now.Error != nil && now.Status != runs.PausedWaitingApproval.String():
			return nil, mcpAnswer{}, fmt.Errorf("run %s: %s", run, now.Error.Message)
		case now.Status == runs.PausedWaitingApproval.String() && (!decided || left <= 0):
			return mcpResult(out, b.waitsFor(run, &now))
		case err == nil && left <= 0:
			return mcpResult(out, fmt.Sprintf("The run has no answer after %s and continues: call "+waitForRun+" with this run_id.", b.wait))
		}
		if after, err = b.poll(ctx, r, run, after, min(left, mcpPoll)); err != nil && !isTransient(err) {
			return nil, mcpAnswer{}, fmt.Errorf("run %s: %w", run, err)
		}
	}
}

// poll waits for further events of the run and reports them as progress. It returns the number of
// the last event.
func (b *mcpBridge) poll(ctx context.Context, r *mcp.CallToolRequest, run actor.CallID, after uint64, wait time.Duration) (uint64, error) {
	_, body, err := b.to.do(ctx, http.MethodGet, fmt.Sprintf("/v1/runs/%s/events?after=%d&limit=%d&wait_ms=%d", run, after, mcpEventsOfPoll, wait.Milliseconds()), nil)
	if err != nil {
		select {
		case <-time.After(min(wait, time.Second)): // the server restarts
		case <-ctx.Done():
		}
		return after, err
	}
	var page struct {
		Events []struct {
			Seq     uint64 `json:"seq"`
			Type    string `json:"type"`
			Payload struct {
				Name  string `json:"name"`
				Actor string `json:"actor"`
			} `json:"payload"`
		} `json:"events"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return after, err
	}
	token := r.Params.GetProgressToken()
	for _, e := range page.Events {
		if after = e.Seq; token == nil || e.Type == runs.AgentStreamDelta.String() {
			continue
		}
		_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(e.Seq),
			Message: strings.TrimSpace(strings.ReplaceAll(e.Type, "_", " ") + " " + cmp.Or(e.Payload.Name, e.Payload.Actor))}) // a lost one changes nothing
	}
	return after, nil
}

// isTransient reports whether a request may succeed later: the server restarts, or is busy.
func isTransient(err error) bool {
	var p *problem
	return !errors.As(err, &p) || p.status == http.StatusServiceUnavailable || p.status == http.StatusTooManyRequests
}

// waitsFor describes the decisions and signals that the run waits for.
func (b *mcpBridge) waitsFor(run actor.CallID, now *mcpRun) string {
	var all []string
	for _, w := range now.Waiting {
		all = append(all, "The run waits for the signal "+w.Name+": "+b.to.flags.hint("runs signal", []string{run.String(), w.Name}))
	}
	if _, approvals, err := b.to.approvals(); err == nil {
		for i := range approvals {
			if a := &approvals[i]; a.Run == run.String() || a.Root == run.String() {
				all = append(all, fmt.Sprintf("A person must decide about %s: %s. Approval %s, at %s/chat or by %s", a.Tool, a.Summary, a.ID, b.to.server,
					b.to.flags.hint("approvals approve", []string{a.ID})))
			}
		}
	}
	if len(all) == 0 {
		all = append(all, "The run waits for a person.")
	}
	return strings.Join(append(all, "Then call "+waitForRun+" with this run_id."), "\n")
}

// mcpResult returns a result whose first text is the answer alone.
func mcpResult(out mcpAnswer, notes ...string) (*mcp.CallToolResult, mcpAnswer, error) {
	var content []mcp.Content
	if out.Answer != "" {
		content = append(content, &mcp.TextContent{Text: out.Answer})
	}
	for _, note := range notes {
		content = append(content, &mcp.TextContent{Text: note})
	}
	about := "status: " + out.Status
	if out.Session != "" {
		about += "\nsession_id: " + out.Session
	}
	if out.Run != "" {
		about += "\nrun_id: " + out.Run
	}
	return &mcp.CallToolResult{Content: append(content, &mcp.TextContent{Text: about})}, out, nil
}
