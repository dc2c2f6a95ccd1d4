// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
	"slices"
)

// HandleMessageFull is the operation of a call that names none: take the whole
// message, answer with the whole reply.
const HandleMessageFull = "handle_message_full"

// Kind says how a call hangs on its caller.
type Kind uint8

// The four kinds. All stand in the codec from its first version; a world that
// does not serve one refuses it as Invalid.
const (
	Waiting  Kind = iota + 1 // holds its caller's turn, lives inside its time
	Detached                 // own clock, outlives the turn
	OneWay                   // asks for no reply
	Signal                   // for a turn that runs and waits for it by name
)

var kindNames = [...]string{Waiting: "waiting", Detached: "detached", OneWay: "one-way", Signal: "signal"}

// String is the kind's name.
func (k Kind) String() string { return nameOf(kindNames[:], int(k)) }

// Lane is the priority of a message. The zero Lane is not one: it is Normal by the time a call is made.
type Lane uint8

// The lanes, first served first, with a bound on how long a lower one starves.
const (
	High Lane = iota + 1
	Normal
	Low
)

var laneNames = [...]string{High: "HIGH", Normal: "NORMAL", Low: "LOW"}

// String is the lane's name.
func (l Lane) String() string { return nameOf(laneNames[:], int(l)) }

// Origin says who began the tree of calls.
type Origin uint8

// The origins.
const (
	Human Origin = iota + 1
	Agent
	Schedule
	System
)

var originNames = [...]string{Human: "human", Agent: "agent", Schedule: "schedule", System: "system"}

// String is the origin's name.
func (o Origin) String() string { return nameOf(originNames[:], int(o)) }

// Idempotency is a client's promise that two requests are one. The zero value
// promises nothing.
type Idempotency struct {
	Principal string
	Route     string
	Key       string
	Body      Hash // of the request's body: the same key with another body is an error
}

// IsZero tells whether nothing is promised.
func (i Idempotency) IsZero() bool { return i.Key == "" }

// Same tells whether both promise the same about the same.
func (i Idempotency) Same(other Idempotency) bool {
	return i.Principal == other.Principal && i.Route == other.Route && i.Key == other.Key
}

// Call is a request on its way to an actor, and by its ID the run that comes of
// it. What an agent cannot forge stands here, not in the content.
//
//  1. Chain holds the ancestors' actors, oldest first, without To; a client is no entry.
//  2. Left is never more than the unheld time left of the caller's turn.
//  3. ID, Root, Parent, Chain, To and Parts are the same on every attempt.
type Call struct {
	ID          CallID
	Root        CallID // the client's call at the top of the tree; equals ID there
	Parent      CallID // the caller's run; for a signal, the run addressed
	To          ID
	Operation   string
	Chain       []ID
	Kind        Kind
	Lane        Lane
	Left        Duration // time left when this attempt was sent
	Attempt     uint32   // from 1
	Principal   string   // on whose behalf
	Origin      Origin
	Project     string // project_id, if any
	Idempotency Idempotency
	Budget      uint32 // calls that this one and all below it may still make
	Workflow    string // correlation over requests, carried unchanged
	Trace       string // W3C traceparent, carried unchanged
	Stamp       Time   // when it was made; later than its parent's, whatever the clocks say
	Via         Address
	Parts       []Part
}

// Depth is how many calls stand above this one.
func (c *Call) Depth() int { return len(c.Chain) }

// Caller is the actor that called; false if a client did.
func (c *Call) Caller() (ID, bool) {
	if len(c.Chain) == 0 {
		return ID{}, false
	}
	return c.Chain[len(c.Chain)-1], true
}

// IsRoot tells whether a client made the call.
func (c *Call) IsRoot() bool { return len(c.Chain) == 0 }

// Path is the chain and the callee, for errors and logs.
func (c *Call) Path() []ID {
	return append(append(make([]ID, 0, len(c.Chain)+1), c.Chain...), c.To)
}

// Check says what no well-formed call can be.
func (c *Call) Check() error {
	switch {
	case c.ID.IsZero():
		return fmt.Errorf("call without id")
	case c.Root.IsZero():
		return fmt.Errorf("call without root")
	case c.IsRoot() && c.Root != c.ID:
		return fmt.Errorf("call without chain whose root is another call")
	case !c.IsRoot() && c.Parent.IsZero():
		return fmt.Errorf("call with chain and no parent")
	case c.Kind == 0 || int(c.Kind) >= len(kindNames):
		return fmt.Errorf("call of unknown kind %d", c.Kind)
	case c.Lane == 0 || int(c.Lane) >= len(laneNames):
		return fmt.Errorf("call in unknown lane %d", c.Lane)
	case c.Origin == 0 || int(c.Origin) >= len(originNames):
		return fmt.Errorf("call of unknown origin %d", c.Origin)
	case c.Left < 0:
		return fmt.Errorf("call with %v left", c.Left)
	case c.Attempt == 0:
		return fmt.Errorf("call without attempt")
	case c.Operation == "":
		return fmt.Errorf("call without operation")
	}
	for i := range c.Chain {
		if err := c.Chain[i].Check(); err != nil {
			return err
		}
	}
	return c.To.Check()
}

func nameOf(names []string, i int) string {
	if i < len(names) && names[i] != "" {
		return names[i]
	}
	return fmt.Sprintf("unknown(%d)", i)
}

func parseName[T ~uint8](what string, names []string, text string) (T, error) {
	if i := slices.Index(names, text); i > 0 {
		return T(i), nil
	}
	return 0, fmt.Errorf("%s %.40q: want one of %v", what, text, names[1:])
}

// ParseLane reads what Lane.String writes.
func ParseLane(text string) (Lane, error) { return parseName[Lane]("priority", laneNames[:], text) }
