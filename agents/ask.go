// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Option says more about an ask.
type Option func(*actor.Ask)

// Within is how long to wait for the answer; the runtime may allow less.
func Within(d actor.Duration) Option { return func(a *actor.Ask) { a.Timeout = d } }

// Idempotent says of work that doing it twice does no harm. After a crash it is
// then done again; of other work the outcome is unknown.
func Idempotent() Option { return func(a *actor.Ask) { a.Idempotent = true } }

// Operation names the operation of a call, where it is not the usual one.
func Operation(name string) Option { return func(a *actor.Ask) { a.Operation = name } }

// Call asks another agent: "helper" is reached in the caller's own session,
// "helper/s-2" in that one.
func Call(target, message string, opts ...Option) actor.Ask {
	return withOptions(actor.Ask{Kind: actor.AskCall, Name: target, Operation: actor.HandleMessageFull, Parts: actor.Text(message)}, opts)
}

// Tool asks for a tool by name. The input is written as JSON, members of maps in
// order; []byte is JSON already, nil is an empty object.
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
		panic(fmt.Sprintf("the input of tool %s, a %T, cannot be written as JSON", name, input))
	}
	return b
}

// Do asks for slow or impure code of the agent's own, under a name of letters,
// digits, '.', '_' and '-'. It runs outside the actor, and may be given up
// through its context.
func Do(name string, work actor.Work, opts ...Option) actor.Ask {
	return withOptions(actor.Ask{Kind: actor.AskWork, Name: name, Work: work}, opts)
}

// Sleep asks for nothing but time.
func Sleep(d actor.Duration) actor.Ask { return actor.Ask{Kind: actor.AskSleep, Timeout: d} }

// Wait asks for a signal by such a name, for so long: a person's word, an event.
// Meanwhile the time of the turn, and of those who wait for it, stands still.
func Wait(name string, expires actor.Duration) actor.Ask {
	return actor.Ask{Kind: actor.AskWait, Name: name, Timeout: expires}
}

func withOptions(ask actor.Ask, opts []Option) actor.Ask {
	for _, o := range opts {
		o(&ask)
	}
	return ask
}

// Answer is what came of one ask: content, perhaps with Warnings of what it
// lacks, or a refusal.
type Answer struct{ actor.Answer }

// Err is the refusal, or nil.
func (a Answer) Err() error {
	if a.Refusal == nil {
		return nil
	}
	return a.Refusal
}

// Text is the answer's plain text, or the refusal.
func (a Answer) Text() (string, error) { return actor.TextOf(a.Parts), a.Err() }

// Bytes is the answer's content of any kind, or the refusal.
func (a Answer) Bytes() ([]byte, error) {
	var b []byte
	for _, p := range a.Parts {
		b = append(b, p.Bytes...)
	}
	return b, a.Err()
}
