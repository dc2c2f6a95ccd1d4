// SPDX-License-Identifier: Apache-2.0

package signals

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Content is the content of a signal that is a command.
type Content interface {
	// Operation returns the operation of the signal.
	Operation() string
	// want describes the content in the refusal of an invalid one.
	want() string
}

// New returns the signal with a content for a run. The sender sets its ID, its time and whom it
// acts for.
func New(to actor.ID, run actor.CallID, c Content) actor.Call {
	call := actor.Call{Kind: actor.Signal, To: to, Parent: run, Operation: c.Operation()}
	if _, empty := c.(Retry); !empty {
		call.Parts = encode(c)
	}
	return call
}

// Decode returns the content of a signal.
func Decode[C Content](call *actor.Call) (c C, r *actor.Refusal) {
	if !decode(call.Parts, &c) {
		return c, actor.Refuse(actor.Invalid, "want %s", c.want())
	}
	return c, nil
}

// CheckName checks the name of a signal that a client gives: it must not be a command.
func CheckName(name string) error {
	switch {
	case strings.HasPrefix(name, actor.ReservedOperation):
		return fmt.Errorf("%.80q: names that begin with %s are reserved", name, actor.ReservedOperation)
	case name == OpCallAgent:
		return fmt.Errorf("%s is reserved; an external agent uses POST /v1/agents/{id}:invoke", name)
	}
	return actor.CheckName(name)
}

func encode(content any) []actor.Part {
	return []actor.Part{{Media: actor.MediaJSON, Bytes: invariant.Must(json.Marshal(content))}}
}

func decode(parts []actor.Part, content any) bool {
	return len(parts) == 1 && json.Unmarshal(parts[0].Bytes, content, json.RejectUnknownMembers(true)) == nil
}
