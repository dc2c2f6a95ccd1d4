// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Define names an agent that is written in Go. Its version is part of what it
// is: change it when the agent asks other things than before.
func Define(name, version, doc string, behavior actor.Behavior) actor.Definition {
	return actor.Definition{Name: name, Hash: actor.HashOf([]byte("go:" + name + ":" + version)), Doc: doc, Behavior: behavior}
}

// Builtin is the agents that come with Troupe.
func Builtin() []actor.Definition {
	return []actor.Definition{
		Define("coordinator", "1", "Asks the helper, waits for the signal go, then tells what the helper said.", Blocking(Coordinator{})),
		Define("helper", "1", "Answers with what it was told.", Blocking(Helper{})),
	}
}

// Coordinator asks the helper and keeps what it said until somebody signals go.
type Coordinator struct{}

// Turn passes the message on, waits, and tells.
func (Coordinator) Turn(t *Turn) (string, error) {
	word := strings.TrimSpace(t.Message())
	if word == "" {
		return "", actor.Refuse(actor.Invalid, "tell me what to ask the helper")
	}
	said, err := t.Call("helper", word)
	if err != nil {
		return "", err
	}
	if _, err := t.Wait("go", 10*time.Minute); err != nil {
		return "", err
	}
	return "I asked the helper. It said: " + said, nil
}

// Helper needs nobody.
type Helper struct{}

// Turn answers with what it was told.
func (Helper) Turn(t *Turn) (string, error) {
	return "response from helper: " + t.Message(), nil
}
