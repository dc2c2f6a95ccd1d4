// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
	"slices"
)

// HandleMessageFull is the default operation of a call. The actor receives the
// whole message and answers with the whole reply.
const HandleMessageFull = "handle_message_full"

// Kind is the relation between a call and its caller.
type Kind uint8

// The four call kinds. The codec has included all of them since its first version.
// A runtime that does not implement a kind refuses the call as Invalid.
const (
	Waiting  Kind = iota + 1 // holds the caller's turn; bounded by the time left of that turn
	Detached                 // has its own clock and may outlive the caller's turn
	OneWay                   // expects no reply
	Signal                   // addressed to a running turn that waits for it by name
)

var kindNames = [...]string{Waiting: "waiting", Detached: "detached", OneWay: "one-way", Signal: "signal"}

// String returns the name of the kind.
func (k Kind) String() string { return nameOf(kindNames[:], int(k)) }

// Lane is the priority of a message. The zero Lane is invalid in a call: it is
// replaced by Normal before the call is made.
type Lane uint8

// The lanes, highest priority first. The starvation of a lower lane is bounded.
const (
	High Lane = iota + 1
	Normal
	Low
)

var laneNames = [...]string{High: "HIGH", Normal: "NORMAL", Low: "LOW"}

// String returns the name of the lane.
func (l Lane) String() string { return nameOf(laneNames[:], int(l)) }

// Origin is the kind of source that started the tree of calls.
type Origin uint8

// The origins.
const (
	Human Origin = iota + 1
	Agent
	Schedule
	System
)

var originNames = [...]string{Human: "human", Agent: "agent", Schedule: "schedule", System: "system"}

// String returns the name of the origin.
func (o Origin) String() string { return nameOf(originNames[:], int(o)) }

// Idempotency identifies requests that the client declares to be the same. The
// zero value declares nothing.
type Idempotency struct {
	Principal string
	Route     string
	Key       string
	Body      Hash // of the request body; the same key with another body is an error
}

// IsZero reports whether no idempotency key is set.
func (i Idempotency) IsZero() bool { return i.Key == "" }

// Same reports whether i and other have the same principal, route and key. The
// bodies are not compared.
func (i Idempotency) Same(other Idempotency) bool {
	return i.Principal == other.Principal && i.Route == other.Route && i.Key == other.Key
}

// Call is a request to an actor. Its ID is also the ID of the run it starts.
// The fields that an agent MUST NOT be able to forge are kept here, outside the
// content.
//
//  1. Chain holds the calling actors, oldest first, without To. A client has no entry.
//  2. Left never exceeds the time left of the caller's turn. The time left does not
//     decrease while the turn is held.
//  3. ID, Root, Parent, Chain, To and Parts are the same on every attempt.
type Call struct {
	ID          CallID
	Root        CallID // root call of the tree, made by a client; equals ID in the root call
	Parent      CallID // caller's run; for a signal, the run it is addressed to
	To          ID
	Operation   string
	Chain       []ID
	Kind        Kind
	Lane        Lane
	Left        Duration // time left when this attempt was sent
	Attempt     uint32   // attempt number, from 1
	Principal   string   // principal that the call acts for
	Origin      Origin
	Project     string // project_id; may be empty
	Idempotency Idempotency
	Budget      uint32 // number of calls that this call and its descendants may still make
	Purse       *Purse // what this call and its descendants may still spend on models
	Workflow    string // correlation ID across requests, propagated unchanged
	Trace       string // W3C traceparent, then a space and the tracestate if any; propagated unchanged
	Claimed     CallID // in a root call: run that the client names as its cause, without proof; it grants nothing
	Stamp       Time   // creation time; later than the parent's, even if clocks differ
	Via         Address
	Parts       []Part
	Extensions  Extensions
}

// Depth returns the number of calls above this one.
func (c *Call) Depth() int { return len(c.Chain) }

// Caller returns the calling actor, or false if a client made the call.
func (c *Call) Caller() (ID, bool) {
	if len(c.Chain) == 0 {
		return ID{}, false
	}
	return c.Chain[len(c.Chain)-1], true
}

// IsRoot reports whether a client made the call.
func (c *Call) IsRoot() bool { return len(c.Chain) == 0 }

// Path returns the chain followed by the callee, for errors and logs.
func (c *Call) Path() []ID {
	return append(append(make([]ID, 0, len(c.Chain)+1), c.Chain...), c.To)
}

// TraceID returns the trace ID of the traceparent, or "" if there is none.
func (c *Call) TraceID() string {
	const from, to, length = len("00-"), len("00-") + 32, 55
	if len(c.Trace) < length {
		return ""
	}
	return c.Trace[from:to]
}

// SetClientDefaults completes a call of a client: it is the root of its tree, in
// its first attempt, and unset fields get their defaults. A cell replaces a Lane of 0,
// because the default depends on the agent.
func (c *Call) SetClientDefaults() {
	if c.Kind == 0 {
		c.Kind = Waiting
	}
	if c.Origin == 0 {
		c.Origin = Human
	}
	if c.Operation == "" {
		c.Operation = HandleMessageFull
	}
	c.Root, c.Attempt = c.ID, 1
}

// Check returns an error if the call is not well-formed.
func (c *Call) Check() error {
	switch {
	case c.ID.IsZero():
		return fmt.Errorf("call without id")
	case c.Root.IsZero():
		return fmt.Errorf("call without root")
	case c.IsRoot() && c.Root != c.ID:
		return fmt.Errorf("call without chain has another call as root")
	case !c.IsRoot() && c.Parent.IsZero():
		return fmt.Errorf("call with chain and no parent")
	case c.Kind == 0 || int(c.Kind) >= len(kindNames):
		return fmt.Errorf("call of unknown kind %d", c.Kind)
	case c.Lane == 0 && !c.IsRoot() || int(c.Lane) >= len(laneNames): // the cell of a client sets the lane of a root
		return fmt.Errorf("call in unknown lane %d", c.Lane)
	case c.Origin == 0 || int(c.Origin) >= len(originNames):
		return fmt.Errorf("call of unknown origin %d", c.Origin)
	case c.Left < 0:
		return fmt.Errorf("call with negative time left %v", c.Left)
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

func parseName[T ~uint8](kind string, names []string, text string) (T, error) {
	if i := slices.Index(names, text); i > 0 {
		return T(i), nil
	}
	return 0, fmt.Errorf("%s %.40q: want one of %v", kind, text, names[1:])
}

// Priority returns the name of the lane in requests and events of runs.
func (l Lane) Priority() string { return nameOf(priorityNames[:], int(l)) }

var priorityNames = [...]string{High: "high", Normal: "normal", Low: "low"}

// ParseLane parses a name as returned by Lane.Priority or Lane.String.
func ParseLane(text string) (Lane, error) {
	if i := slices.Index(laneNames[:], text); i > 0 {
		return Lane(i), nil
	}
	return parseName[Lane]("priority", priorityNames[:], text)
}
