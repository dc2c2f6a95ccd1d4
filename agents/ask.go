// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Option sets an optional field of an ask.
type Option func(*actor.Ask)

// Within sets the time to wait for the answer. The runtime may allow less.
func Within(d actor.Duration) Option { return func(a *actor.Ask) { a.Timeout = d } }

// Idempotent declares that work may run twice. If a crash interrupts the work, it
// runs again. Without this option, interrupted work is answered with the refusal
// Unknown.
func Idempotent() Option { return func(a *actor.Ask) { a.Idempotent = true } }

// Operation sets the operation of a call. The default is actor.HandleMessageFull.
func Operation(name string) Option { return func(a *actor.Ask) { a.Operation = name } }

// Call returns an ask for a call of another agent. The target "helper" addresses
// the caller's own session, "helper/s-2" the session s-2.
func Call(target, message string, opts ...Option) actor.Ask {
	return withOptions(actor.Ask{Kind: actor.AskCall, Name: target, Operation: actor.HandleMessageFull, Parts: actor.Text(message)}, opts)
}

// Tool returns an ask for a tool call by name. The input is encoded as JSON with
// sorted map keys. A []byte is JSON already, and nil means an empty object.
func Tool(name string, input any, opts ...Option) actor.Ask {
	return withOptions(actor.Ask{Kind: actor.AskTool, Name: name, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: toJSON(name, input)}}}, opts)
}

func toJSON(name string, input any) []byte {
	switch v := input.(type) {
	case nil:
		return []byte("{}")
	case []byte:
		return v
	case jsontext.Value:
		return v
	}
	b, err := json.Marshal(input, json.Deterministic(true))
	if err != nil {
		panic(fmt.Sprintf("input of tool %s: type %T cannot be encoded as JSON", name, input))
	}
	return b
}

// Do returns an ask for slow or impure code of the agent. Its name consists of
// letters, digits, '.', '_' and '-'. The work runs outside the actor and may be
// cancelled through its context.
func Do(name string, work actor.Work, opts ...Option) actor.Ask {
	return withOptions(actor.Ask{Kind: actor.AskWork, Name: name, Work: work}, opts)
}

// Sleep returns an ask for a delay.
func Sleep(d actor.Duration) actor.Ask { return actor.Ask{Kind: actor.AskSleep, Timeout: d} }

// Wait returns an ask for a signal by name, from a person or an event. The wait
// expires after the given time. During the wait, the clocks of the turn and of the
// callers that wait for the turn are held. A server shortens a wait to the limit
// wait_timeout_ms_max, at most actor.WaitTimeoutMax, and reports it.
func Wait(name string, expires actor.Duration) actor.Ask {
	return actor.Ask{Kind: actor.AskWait, Name: name, Timeout: expires}
}

func withOptions(ask actor.Ask, opts []Option) actor.Ask {
	for _, o := range opts {
		o(&ask)
	}
	return ask
}

// Answer is the result of one ask: content, possibly with Warnings about missing
// parts, or a refusal.
type Answer struct{ actor.Answer }

// Err returns the refusal, or nil.
func (a Answer) Err() error {
	if a.Refusal == nil {
		return nil
	}
	return a.Refusal
}

// Text returns the plain text of the answer, and the refusal if there was one.
func (a Answer) Text() (string, error) { return actor.TextOf(a.Parts), a.Err() }

// Bytes returns the content of any media type, and the refusal if there was one.
func (a Answer) Bytes() ([]byte, error) {
	var b []byte
	for _, p := range a.Parts {
		b = append(b, p.Bytes...)
	}
	return b, a.Err()
}
