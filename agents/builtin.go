// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Define returns the definition of an agent written in Go. The version is part of
// its identity: change it when the agent's asks change.
func Define(name, version, doc string, behavior actor.Behavior) actor.Definition {
	return actor.Definition{Name: name, Hash: actor.HashOf([]byte("go:" + name + ":" + version)), Doc: doc, Behavior: behavior}
}

// Builtin returns the agents that are included in Troupe.
func Builtin() []actor.Definition {
	return []actor.Definition{
		Define("coordinator", "1", "Calls the helper, waits for the signal go, then returns the reply.", Blocking(Coordinator{})),
		Define("helper", "1", "Returns its message.", Blocking(Helper{})),
	}
}

// Coordinator calls the helper and returns its reply after the signal go.
type Coordinator struct{}

// Turn forwards the message, waits for the signal, and returns the reply.
func (Coordinator) Turn(t *Turn) (string, error) {
	message := strings.TrimSpace(t.Message())
	if message == "" {
		return "", actor.Refuse(actor.Invalid, "empty message: want a question for the helper")
	}
	reply, err := t.Call("helper", message)
	if err != nil {
		return "", err
	}
	if _, err := t.Wait("go", 10*time.Minute); err != nil {
		return "", err
	}
	return "I asked the helper. It said: " + reply, nil
}

// Helper answers without calling other agents.
type Helper struct{}

// Turn returns the message after a fixed prefix.
func (Helper) Turn(t *Turn) (string, error) {
	return "response from helper: " + t.Message(), nil
}
