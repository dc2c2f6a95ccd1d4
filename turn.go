// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/emitter"
)

// Turn is the processing of one message by an agent. Its asking methods (Call, Tool, Model, All, Wait,
// Sleep, Do) return once the answer is there; a waiting turn holds no thread. Only the function that
// receives a Turn may use it. It MUST NOT use it in another goroutine, inside Do, or after its end.
type Turn struct {
	// Correlation is that of the call of Send whose outcome is the message of this turn. It is "" if the message
	// is another one: that of a user cannot pass for an outcome.
	Correlation string
	// Outcome is the outcome: the output as Text or as JSON in Bytes, the caveats as Warnings, or the refusal of the
	// other agent; one with CodeTimeout after the time has passed.
	Outcome Answer

	turn  *agents.Turn
	agent *Agent
	tools *toolbox
}

// Message returns the text of the message.
func (t *Turn) Message() string { return t.turn.Message() }

// Session returns the ID of the session.
func (t *Turn) Session() string { return t.turn.Self().Key }

// Run returns the ID of the run, which is the processing of this message over all restarts.
func (t *Turn) Run() string { return t.turn.Request().ID.String() }

// User returns the user of the run: the name in User, or "local".
func (t *Turn) User() string { return t.turn.Request().Principal }

// Caller returns the name of the calling agent, or "" if a client sent the message.
func (t *Turn) Caller() string {
	id, _ := t.turn.Caller()
	return id.Agent
}

// Transcript returns the earlier messages of the session, oldest first, as Agent.Transcript selects
// them. A turn that another agent has called gets none.
func (t *Turn) Transcript() []Message { return newMessages(t.turn.Transcript()) }

// Call calls another agent and waits for its answer. The called agent works in the same session, or
// in that of the option Session. The other option is Timeout; the default is 30 s.
func (t *Turn) Call(agent, message string, opts ...Option) (string, error) {
	return t.ask(Call(agent, message, opts...)).Text()
}

// Do runs slow or impure code and waits for its result, which is persisted. The code runs in a
// goroutine of its own, and ctx is cancelled if the run is, and after a minute (the limit
// tool_timeout_ms). After a crash during the code it is
// repeated if it has the option Idempotent; otherwise Do returns a refusal with CodeOutcomeUnknown.
// The name appears in the events of the run: 1 to 64 letters, digits, '.', '_' and '-'.
func (t *Turn) Do(name string, work func(ctx context.Context) ([]byte, error), opts ...Option) ([]byte, error) {
	return t.ask(Do(name, work, opts...)).Bytes()
}

// emittedBytesMax is the length of one piece of Emit in bytes; the event of a longer one would be cut.
const emittedBytesMax = 4 << 10

// Emit shows text while work in Do runs, for example the answer of a model that the program calls itself. Each call is
// an event of the run with the type EventDelta, or several if the text has more than 4 KiB. It returns once the
// run has recorded it. The argument ctx MUST be the context of the work; Emit refuses any other with CodeInvalid. If the work is repeated
// after a crash, the event EventAttempt voids its pieces. A run whose work emits more than
// stream_events_max pieces fails with CodeEventsExceeded. In tests with package troupetest it has no effect.
func Emit(ctx context.Context, text string) error {
	for text = strings.ToValidUTF8(text, "\uFFFD"); text != ""; {
		n := min(len(text), emittedBytesMax)
		for n < len(text) && !utf8.RuneStart(text[n]) {
			n--
		}
		if !emitter.Emit(ctx, text[:n]) {
			return invalid("ctx", "Emit: the context is not that of work in Do")
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		text = text[n:]
	}
	return nil
}

// Tool calls a tool and waits for its result. The arguments are encoded as JSON; a []byte or
// json.RawMessage is JSON already, and nil means no arguments. A call that needs the approval of a
// person waits for it. The option is Timeout, whose time does not include that wait.
func (t *Turn) Tool(name string, args any, opts ...Option) ([]byte, error) {
	return t.ask(UseTool(name, args, opts...)).Bytes()
}

// Wait waits for a signal with a name and returns its payload. The clocks of the run and of its
// callers are paused in the meantime. After the given time, at most 90 days (the limit
// wait_timeout_ms_max), Wait returns a refusal with CodeTimeout. The event timeout_clamped reports a
// longer time.
func (t *Turn) Wait(signal string, expires time.Duration) ([]byte, error) {
	return t.ask(Wait(signal, expires)).Bytes()
}

// Sleep waits for the given time.
func (t *Turn) Sleep(d time.Duration) error { return t.ask(Sleep(d)).Err() }

// All makes several asks at once and waits for all answers, which are in the order of the asks.
func (t *Turn) All(asks ...Ask) []Answer {
	answers := make([]Answer, len(asks))
	var issued []actor.Ask
	for _, a := range asks {
		if a.err == nil {
			issued = append(issued, t.watched(a.ask))
		}
	}
	answered := t.turn.All(issued...)
	for i, a := range asks {
		if a.err != nil {
			answers[i] = Answer{err: a.err}
			continue
		}
		answers[i] = newAnswer(answered[0])
		answered = answered[1:]
	}
	return answers
}

// watched returns an ask whose work logs its panic.
func (t *Turn) watched(ask actor.Ask) actor.Ask {
	if work := ask.Work; work != nil {
		what := "work " + ask.Name + " of agent " + t.agent.Name
		ask.Work = func(ctx context.Context) ([]byte, error) {
			defer t.tools.logPanic(what)
			return work(ctx)
		}
	}
	return ask
}

func (t *Turn) ask(a Ask) Answer { return t.All(a)[0] }

// Warn adds a warning about missing parts of the answer; see Reply.Warnings.
func (t *Turn) Warn(format string, args ...any) { t.turn.Warn(format, args...) }

// Ask is an ask for All.
type Ask struct {
	ask actor.Ask
	err error // of an option
}

// Call returns the ask of Turn.Call.
func Call(agent, message string, opts ...Option) Ask {
	o, err := collect("Call", opts, optionSession, optionTimeout)
	if o.session != "" {
		agent += "/" + o.session
	}
	return Ask{agents.Call(agent, message, agents.Within(o.timeout)), err}
}

// Do returns the ask of Turn.Do.
func Do(name string, work func(ctx context.Context) ([]byte, error), opts ...Option) Ask {
	o, err := collect("Do", opts, optionIdempotent)
	ask := agents.Do(name, func(ctx context.Context) ([]byte, error) {
		b, err := work(ctx)
		return b, workError(err)
	})
	if work == nil {
		err = cmp.Or(err, error(invalid("work", "Do: the function is nil")))
	}
	ask.Idempotent = o.idempotent
	return Ask{ask, err}
}

// UseTool returns the ask of Turn.Tool.
func UseTool(name string, args any, opts ...Option) Ask {
	o, err := collect("Tool", opts, optionTimeout)
	input, encodeErr := encodeArgs(args)
	if encodeErr != nil {
		err = cmp.Or(err, error(invalid("args", "arguments of tool %.80s: %v", name, encodeErr)))
	}
	return Ask{agents.Tool(name, input, agents.Within(o.timeout)), err}
}

// encodeArgs encodes the arguments of a tool.
func encodeArgs(args any) ([]byte, error) {
	switch v := args.(type) {
	case nil:
		return []byte("{}"), nil
	case []byte:
		return v, nil
	}
	return json.Marshal(args)
}

// Wait returns the ask of Turn.Wait.
func Wait(signal string, expires time.Duration) Ask { return Ask{agents.Wait(signal, expires), nil} }

// Sleep returns the ask of Turn.Sleep.
func Sleep(d time.Duration) Ask { return Ask{agents.Sleep(d), nil} }

// Answer is the answer to an ask: content, possibly with warnings, or an error.
type Answer struct {
	text     string
	bytes    []byte
	warnings []string
	err      error
}

func newAnswer(a agents.Answer) Answer {
	text, err := a.Text()
	bytes, _ := a.Bytes()
	return Answer{text, bytes, a.Warnings, turnError(err)}
}

// Err returns the error, usually a *Refusal, or nil.
func (a Answer) Err() error { return a.err }

// Text returns the answer of an agent as text.
func (a Answer) Text() (string, error) { return a.text, a.err }

// Bytes returns the result of Do or of a tool, or the payload of a signal.
func (a Answer) Bytes() ([]byte, error) { return a.bytes, a.err }

// Warnings returns the warnings of a called agent about missing parts of its answer.
func (a Answer) Warnings() []string { return a.warnings }
