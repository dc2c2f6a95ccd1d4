// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/tools"
)

// Option is an optional property of a call or an ask. The documentation of each method names the
// options that it takes; another one is refused with CodeInvalid.
type Option struct {
	name string
	set  func(*options) error
}

type options struct {
	session, user, key string
	by                 string
	after              ingress.Cursor
	tree               bool
	timeout            time.Duration
	busy               actor.BusyPolicy
	idempotent         bool
	tool               tools.Declared // options of NewTool
}

// The names of the options.
const (
	optionSession        = "Session"
	optionUser           = "User"
	optionIdempotencyKey = "IdempotencyKey"
	optionTimeout        = "Timeout"
	optionIfBusy         = "IfBusy"
	optionIdempotent     = "Idempotent"
	optionBy             = "By"
	optionPolicy         = "Policy"
	optionApprovalTime   = "ApprovalTimeout"
	optionSummary        = "Summary"
	optionMaxResult      = "MaxResult"
	optionFailRun        = "FailRun"
)

// Session selects the session of a message: 1 to 64 letters, digits, '.', '_' and '-'. Its first
// message creates it.
func Session(id string) Option {
	return Option{optionSession, func(o *options) error {
		o.session = id
		if err := actor.CheckName(id); err != nil {
			return invalid("session_id", "session %v", err)
		}
		return nil
	}}
}

// User names the user of a command: 1 to 256 bytes of printable UTF-8. The sessions and runs of a user
// are visible with the same User only.
func User(name string) Option {
	return Option{optionUser, func(o *options) error {
		o.user = name
		if err := actor.CheckNewUser(name); err != nil {
			return invalid("user", "user %v", err)
		}
		return nil
	}}
}

// IdempotencyKey makes a repeated call have no second effect: a call with the key of an earlier one,
// of the same user to the same agent, gets the outcome of that one. It is remembered for 24 h
// (remember_key_ms). Another message with the same key is refused with CodeInvalid. The key has 1 to 255
// printable ASCII characters.
func IdempotencyKey(key string) Option {
	return Option{optionIdempotencyKey, func(o *options) error {
		o.key = key
		_, r := ingress.ParseIdempotency("", "", []string{key}, nil)
		if r != nil {
			return invalid(ingress.IdempotencyKey, "IdempotencyKey: want 1 to 255 printable ASCII characters")
		}
		return nil
	}}
}

// Timeout sets the time of a call, more than 0. The server may allow less. It does not count while the run
// waits for a signal. After it the run ends with CodeTimeout.
func Timeout(d time.Duration) Option {
	return Option{optionTimeout, func(o *options) error {
		if o.timeout = d; d <= 0 {
			return invalid("timeout_ms", "Timeout: got %v, want more than 0", d)
		}
		return nil
	}}
}

// Busy is the effect of a message on a session whose agent has an open run.
type Busy string

// The effects.
const (
	BusyQueue     Busy = "queue"     // the message waits; the default
	BusyReject    Busy = "reject"    // the message is refused with CodeSessionBusy
	BusyInterrupt Busy = "interrupt" // the open run is cancelled
)

// IfBusy sets the effect of a message on a session whose agent has an open run.
func IfBusy(effect Busy) Option {
	return Option{optionIfBusy, func(o *options) error {
		var ok bool
		if o.busy, ok = actor.ParseBusyPolicy(string(effect)); !ok {
			return invalid(actor.BusyField, "IfBusy: got %.40q, want queue, reject or interrupt", string(effect))
		}
		return nil
	}}
}

// Idempotent declares that the code of Do or of a tool may run twice, so it is repeated after a crash.
func Idempotent() Option {
	return Option{optionIdempotent, func(o *options) error { o.idempotent = true; return nil }}
}

// collect applies the options of a method.
func collect(method string, opts []Option, allowed ...string) (o options, err error) {
	for _, option := range opts {
		if !slices.Contains(allowed, option.name) {
			return o, invalid("", "%s does not take the option %s, but %s", method, option.name, strings.Join(allowed, ", "))
		}
		if err := option.set(&o); err != nil {
			return o, err
		}
	}
	return o, nil
}

// principal returns the principal of a command.
func (o *options) principal() actor.Principal {
	if o.user == "" {
		return actor.NewPrincipal(actor.LocalUser, "")
	}
	return actor.Principal{Tenant: actor.Namespace(o.user), User: o.user}
}

// Reply is the answer to a call.
type Reply struct {
	Text      string
	Session   string   // ID of the session, for the next message
	Run       string   // ID of the run
	Warnings  []string // warnings of the agent about missing parts
	Usage     Usage    // of the run itself
	TreeUsage Usage    // of the run and of all calls below it
}

// Usage is the number of tokens of models and external agents.
type Usage struct{ Input, Output int64 }

func newUsage(u actor.Usage) Usage { return Usage{u.Input, u.Output} }

// Waiting is the error of a call whose run waits for a person, possibly in an agent that it has
// called: for a signal, or for decisions about calls of tools. The run continues: send the signal with
// Server.Signal or decide with Server.Decide, then get the reply with Server.Await.
type Waiting struct {
	Run       string // ID of the called run, for Await
	Session   string
	Signal    string     // name of the signal; empty if the run waits for decisions only
	To        string     // ID of the run that waits, for Signal; it may be one below Run
	Until     time.Time  // end of the wait
	Approvals []Approval // calls of tools that wait in the tree of calls, at most PageMax
}

// Error returns a description of the signal, or of the first decision.
func (w *Waiting) Error() string {
	until := w.Until.UTC().Format(time.RFC3339)
	if w.Signal == "" && len(w.Approvals) > 0 {
		a := &w.Approvals[0]
		return fmt.Sprintf("run %s waits until %s for a decision about %s, a call of %s: %s", w.Run, until, a.ID, a.Tool, a.Summary)
	}
	return fmt.Sprintf("run %s waits for the signal %s to run %s until %s", w.Run, w.Signal, w.To, until)
}

// Call sends a message to an agent and waits for the answer. Its options are Session, User,
// IdempotencyKey, Timeout and IfBusy.
//
// The error is a *Refusal, a *Waiting, ErrClosed or the error of ctx. In the last case the run
// continues, and the Reply has its Run. The Reply has the Session whenever the options are valid.
//
// The function of an agent MUST NOT use a Server, because that would block other agents: it uses
// Turn.Call. Work in Do may use it.
func (s *Server) Call(ctx context.Context, agent, message string, opts ...Option) (Reply, error) {
	m, reply, err := s.newMessage(ctx, "Call", agent, message, opts)
	if err != nil {
		return reply, err
	}
	c := s.client(m.by)
	answer, err := c.Send(ctx, m.call, func(run actor.CallID) { reply.Run = run.String() })
	switch {
	case err != nil && ctx.Err() != nil:
		return reply, continues(ctx, reply.Run)
	case err != nil:
		return reply, errorOf(err)
	case answer.HeldUntil != 0:
		return s.await(ctx, m.by, answer.Reply.Run)
	}
	reply.Run = answer.Reply.Run.String()
	if answer.Reply.Refusal != nil {
		r := newRefusal(answer.Reply.Refusal)
		if answer.Durable {
			r.Run = reply.Run
		}
		return reply, s.stopped(r)
	}
	reply.Text, reply.Warnings = actor.ReadableText(answer.Reply.Parts), answer.Reply.Warnings
	reply.Usage, reply.TreeUsage = newUsage(answer.Reply.Usage), newUsage(answer.Reply.Tree)
	return reply, nil
}

// outgoing is a message and the principal that sends it.
type outgoing struct {
	by   actor.Principal
	call actor.Call
}

// newMessage returns a message, and the reply with its Session and Run.
func (s *Server) newMessage(ctx context.Context, method, agent, message string, opts []Option) (m outgoing, reply Reply, err error) {
	o, err := collect(method, opts, optionSession, optionUser, optionIdempotencyKey, optionTimeout, optionIfBusy)
	if err != nil {
		return m, reply, err
	}
	if !utf8.ValidString(message) || message == "" {
		return m, reply, invalid("content", "the message is empty or not UTF-8: want text for the agent")
	}
	by := o.principal()
	known, err := s.find(ctx, by, agent)
	if err != nil {
		return m, reply, err
	}
	call := actor.Call{To: by.ID(agent, o.session), Left: o.timeout, Principal: by.User, Parts: actor.Text(message), Idempotency: o.idempotency(by, "call", message)}
	call.SetBusy(o.busy)
	s.client(by).Address(&call, &known, o.session != "")
	return outgoing{by, call}, Reply{Session: call.To.Key, Run: call.ID.String()}, nil
}

// Begin sends a message to an agent as Call does, and returns once it is persisted, without waiting for
// the answer. The Reply has the Run and the Session only: Stream shows the run, and Await
// returns its outcome. The options and the errors are those of Call, without *Waiting. If ctx ends first,
// the message may have been accepted; with an IdempotencyKey it can be sent again.
func (s *Server) Begin(ctx context.Context, agent, message string, opts ...Option) (Reply, error) {
	m, reply, err := s.newMessage(ctx, "Begin", agent, message, opts)
	if err != nil {
		return reply, err
	}
	begun, err := s.client(m.by).Begin(ctx, m.call)
	switch {
	case err != nil && ctx.Err() != nil:
		return reply, continues(ctx, reply.Run)
	case err != nil:
		return reply, errorOf(err)
	}
	begun.Release()
	reply.Run = begun.Run.String()
	if a := begun.Answer; a != nil && a.Reply.Refusal != nil && !a.Durable {
		return reply, s.stopped(newRefusal(a.Reply.Refusal))
	}
	return reply, nil
}

// idempotency returns the identity of a request with an idempotency key.
func (o *options) idempotency(by actor.Principal, route, body string) actor.Idempotency {
	if o.key == "" {
		return actor.Idempotency{}
	}
	return actor.Idempotency{Principal: by.User, Route: "go " + route, Key: o.key, Body: actor.HashOf([]byte(body))}
}

// find returns an agent that clients may call.
func (s *Server) find(ctx context.Context, by actor.Principal, name string) (command.Agent, error) {
	found, err := command.Find(ctx, s.node(), by, command.AgentsQuery{})
	if err != nil {
		return command.Agent{}, errorOf(err)
	}
	for i := range found.All {
		if a := &found.All[i]; a.Name == name && !a.System {
			return *a, nil
		}
	}
	return command.Agent{}, Refuse(CodeAgentNotFound, "no agent is named %.80q", name)
}

// Signal delivers a signal to a run that waits for it, and returns once it is persisted. The payload
// has at most 1 MiB. Its options are User, IdempotencyKey and Timeout. A run that does not wait for the signal
// refuses it with CodeRejected.
func (s *Server) Signal(ctx context.Context, run, name string, payload []byte, opts ...Option) error {
	o, err := collect("Signal", opts, optionUser, optionIdempotencyKey, optionTimeout)
	if err != nil {
		return err
	}
	by := o.principal()
	id, err := actor.ParseCallID(run)
	switch {
	case err != nil:
		return invalid("run_id", "%v", err)
	case signals.CheckName(name) != nil:
		return invalid("name", "signal %v", signals.CheckName(name))
	}
	var parts []actor.Part
	if len(payload) > 0 {
		parts = []actor.Part{{Media: actor.MediaText, Bytes: slices.Clone(payload)}}
		if !utf8.Valid(payload) {
			parts[0].Media = "application/octet-stream"
		}
	}
	r := client.Request{Time: max(o.timeout, 0), Key: o.idempotency(by, "signal "+run, name+"\n"+string(payload))}
	return s.failed(s.client(by).Signal(ctx, id, name, parts, &r))
}

// Retry replays a run that is parked, because its agent made other asks than before when it was
// replayed after a restart. If the agent makes the same ones now, for example with its former code, the run
// continues; otherwise the refusal has CodeRejected and names the place. A run that is not parked is unchanged.
// Its option is User.
func (s *Server) Retry(ctx context.Context, run string, opts ...Option) error {
	o, err := collect("Retry", opts, optionUser)
	if err != nil {
		return err
	}
	by := o.principal()
	owner, err := s.owner(ctx, by, run)
	if err != nil {
		return err
	}
	_, err = s.client(by).Retry(ctx, owner, &client.Request{})
	return s.failed(err)
}

// Cancel cancels a run and all calls below it, and waits for its end, which is a *Refusal with
// CodeCancelled for Await. A run that has ended stays as it is. Its option is User. If ctx ends first, the
// run may still be cancelled.
func (s *Server) Cancel(ctx context.Context, run string, opts ...Option) error {
	o, err := collect("Cancel", opts, optionUser)
	if err != nil {
		return err
	}
	by := o.principal()
	owner, err := s.owner(ctx, by, run)
	if err != nil {
		return err
	}
	_, err = s.awaitEnd(ctx, by, owner.Run, func() error { return s.client(by).Cancel(ctx, owner) }, nil)
	return err
}

// owner returns the actor of a run.
func (s *Server) owner(ctx context.Context, by actor.Principal, run string) (command.Owner, error) {
	id, err := actor.ParseCallID(run)
	if err != nil {
		return command.Owner{}, invalid("run_id", "%v", err)
	}
	owner, err := command.Find(ctx, s.node(), by, command.OwnerQuery{Run: id})
	return owner, errorOf(err)
}

// Await waits for the end of a run and returns its reply. A run that has ended is found as long as its
// session exists. Its option is User, and its errors are those of Call.
func (s *Server) Await(ctx context.Context, run string, opts ...Option) (Reply, error) {
	o, err := collect("Await", opts, optionUser)
	if err != nil {
		return Reply{}, err
	}
	by := o.principal()
	owner, err := s.owner(ctx, by, run)
	if err != nil {
		return Reply{}, err
	}
	return s.await(ctx, by, owner.Run)
}

func (s *Server) await(ctx context.Context, by actor.Principal, run actor.CallID) (Reply, error) {
	reply := Reply{Run: run.String()}
	found, err := s.awaitEnd(ctx, by, run, nil, func(found *command.Run) error {
		reply.Session = found.Owner.Actor.Key
		if found.Record.Status != runs.PausedWaitingApproval {
			return nil
		}
		return s.waiting(ctx, by, reply, &found.Record)
	})
	if err != nil {
		return reply, err
	}
	reply.Session = found.Owner.Actor.Key
	return ended(reply, &found.Record)
}

// awaitEnd waits for the end of a run: see client.Client.AwaitEnd.
func (s *Server) awaitEnd(ctx context.Context, by actor.Principal, run actor.CallID, begin func() error, each func(*command.Run) error) (command.Run, error) {
	found, err := s.client(by).AwaitEnd(ctx, run, s.service.Done(), begin, each)
	if err != nil && ctx.Err() != nil {
		return found, continues(ctx, run.String())
	}
	return found, errorOf(err)
}

// ended completes the reply of a run that has ended.
func ended(reply Reply, record *runs.Record) (Reply, error) {
	reply.Usage, reply.TreeUsage = newUsage(record.Usage), newUsage(record.Tree)
	if record.Refusal != nil {
		r := newRefusal(record.Refusal)
		r.Run = reply.Run
		return reply, r
	}
	reply.Text, reply.Warnings = record.Text, record.Warnings
	return reply, nil
}

// waiting returns a *Waiting if a run, or one below it, waits for a person, and a refusal if it is
// parked. It returns nil if the run continues.
func (s *Server) waiting(ctx context.Context, by actor.Principal, reply Reply, record *runs.Record) error {
	w, err := command.Find(ctx, s.node(), by, command.WaitingQuery{Run: record.Run})
	if err != nil {
		return errorOf(err)
	}
	approvals, err := s.pending(ctx, by, record.Root)
	switch {
	case err != nil:
		return err
	case w.Found:
		return &Waiting{Run: reply.Run, Session: reply.Session, Signal: w.Name, To: w.Run.String(), Until: newTime(w.Until), Approvals: approvals}
	case len(approvals) > 0:
		return &Waiting{Run: reply.Run, Session: reply.Session, Until: approvals[0].Expires, Approvals: approvals}
	}
	for _, p := range record.Pauses {
		if p.Child.IsZero() && record.Refusal != nil {
			r := Refuse(CodeUnavailable, "run %s is parked: after a restart its agent made other asks than before: %s; correct the agent and use Retry, or Cancel", reply.Run, record.Refusal.Detail)
			r.Run = reply.Run
			return r
		}
	}
	return nil
}

// node returns the node that accepts the commands of the server.
func (s *Server) node() command.Node {
	if s == nil || s.service == nil {
		panic("troupe: the Server was not made by Open, or Open returned an error")
	}
	return s.service
}
