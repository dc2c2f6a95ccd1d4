// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"encoding/binary"
	"strings"
)

// The tags of Extensions. A number MUST NOT be reused. Child calls inherit the fields with
// an odd tag.
const (
	TagDevice uint64 = 1  // of a client's call: device that sent it
	TagBusy   uint64 = 2  // of a client's call: see BusyPolicy
	TagRounds uint64 = 3  // of a call: see Rounds
	TagRole   uint64 = 4  // of a signal that appends a message: its Role
	TagKey    uint64 = 6  // of a change of the registry: ID of the API key that made it
	TagRights uint64 = 8  // of a change of the registry: its Rights
	TagSource uint64 = 10 // of a signal that appends a message: its Source

	TagInvocation uint64 = 12 // of a request of an external agent: its invocation, see WithInvocation

	TagLeftOut uint64 = 14 // of the recorded reply of a run and of its message in the transcript: see LeftOut

	TagProvenance uint64 = 16 // of the call and the message with the outcome of a detached call: see Provenance

	TagChannel uint64 = 18 // of a detached call: see OnChannel
)

// Provenance names the detached call whose outcome a message is. It is set by the cell of the
// asker, so the content of a message cannot claim it.
type Provenance struct {
	Tool        string // that made the call
	Correlation CallID // the call, which is also the run of the callee
}

// WithProvenance returns the extensions with a provenance.
func (x Extensions) WithProvenance(p Provenance) Extensions {
	return x.With(TagProvenance, []byte(p.Correlation.String()+" "+p.Tool))
}

// Provenance returns the value of WithProvenance, or false if there is none.
func (x Extensions) Provenance() (p Provenance, ok bool) {
	if x == "" {
		return p, false
	}
	value, ok := x.Get(TagProvenance)
	if !ok {
		return p, false
	}
	id, tool, _ := strings.Cut(string(value), " ")
	call, err := ParseCallID(id)
	return Provenance{Tool: tool, Correlation: call}, err == nil
}

// WithRounds returns the extensions with the number that Rounds returns.
func (x Extensions) WithRounds(n int) Extensions {
	return x.With(TagRounds, binary.AppendUvarint(nil, uint64(n)))
}

// Rounds returns how many outcomes of detached calls, each the cause of the next call, led to a
// call. A turn that an outcome begins counts one more than the turn that made the detached call.
// The calls of a turn count as many as the turn.
func (x Extensions) Rounds() int {
	if x == "" {
		return 0
	}
	value, _ := x.Get(TagRounds)
	n, _ := binary.Uvarint(value)
	return int(min(n, 1<<16))
}

// WithChannel returns the extensions with the value of OnChannel.
func (x Extensions) WithChannel(s Switch) Extensions {
	if s == 0 {
		return x
	}
	return x.With(TagChannel, []byte{byte(s)})
}

// OnChannel reports whether clients of the channel see the run of a detached call. The agent that makes the call may
// leave it open.
func (x Extensions) OnChannel() Switch {
	if x == "" {
		return 0
	}
	if v, ok := x.Get(TagChannel); ok && len(v) == 1 && Switch(v[0]) <= Off {
		return Switch(v[0])
	}
	return 0
}

// WithInvocation returns the extensions with the number of the invocation of an external agent
// in which it makes a request; 0 means unknown.
func (x Extensions) WithInvocation(n uint32) Extensions {
	if n == 0 {
		return x
	}
	return x.With(TagInvocation, binary.AppendUvarint(nil, uint64(n)))
}

// Invocation returns the number that WithInvocation set, or 0.
func (x Extensions) Invocation() uint32 {
	value, _ := x.Get(TagInvocation)
	n, _ := binary.Uvarint(value)
	return uint32(n)
}

// WithLeftOut returns the extensions with the mark that LeftOut reports.
func (x Extensions) WithLeftOut() Extensions { return x.With(TagLeftOut, nil) }

// LeftOut reports whether a message is left out of later prompts: its run failed because its
// prompt was too long for the model.
func (x Extensions) LeftOut() bool {
	if x == "" {
		return false
	}
	_, ok := x.Get(TagLeftOut)
	return ok
}

// ReservedOperation begins the operations of signals that are commands of the runtime. No
// signal of a client has such a name.
const ReservedOperation = SystemAgent + "."

// BusyField is the field of a request with a BusyPolicy, and of the refusal of BusyReject.
const BusyField = "if_busy"

// BusyPolicy is the effect of a client's message on an actor that has an open run.
type BusyPolicy uint8

// The policies.
const (
	BusyQueue     BusyPolicy = iota // the message waits
	BusyReject                      // the message is refused
	BusyInterrupt                   // the open runs are cancelled
)

var busyNames = [...]string{BusyQueue: "queue", BusyReject: "reject", BusyInterrupt: "interrupt"}

// String returns the name of the policy.
func (p BusyPolicy) String() string { return nameOf(busyNames[:], int(p)) }

// ParseBusyPolicy parses a name as returned by BusyPolicy.String.
func ParseBusyPolicy(text string) (BusyPolicy, bool) {
	for i, name := range busyNames {
		if name == text {
			return BusyPolicy(i), true
		}
	}
	return 0, false
}

// SetBusy sets the policy of a client's call.
func (c *Call) SetBusy(p BusyPolicy) {
	if p != BusyQueue {
		c.Extensions = c.Extensions.With(TagBusy, []byte{byte(p)})
	}
}

// Busy returns the policy of the call.
func (c *Call) Busy() BusyPolicy {
	if c.Extensions == "" {
		return BusyQueue
	}
	v, ok := c.Extensions.Get(TagBusy)
	if !ok || len(v) != 1 || int(v[0]) >= len(busyNames) {
		return BusyQueue
	}
	return BusyPolicy(v[0])
}

// SetDevice sets the device of the user that sent the call. Calls below inherit it.
func (c *Call) SetDevice(id string) {
	if id != "" {
		c.Extensions = c.Extensions.With(TagDevice, []byte(id))
	}
}

// Device returns the device of the user that sent the call, or "".
func (c *Call) Device() string {
	if c.Extensions == "" {
		return ""
	}
	v, _ := c.Extensions.Get(TagDevice)
	return string(v)
}

// SetRole sets the role of the message that a signal appends.
func (c *Call) SetRole(r Role) { c.Extensions = c.Extensions.With(TagRole, []byte{byte(r)}) }

// AppendedRole returns the role of the message that a signal appends, or 0 if it has none.
func (c *Call) AppendedRole() Role {
	v, ok := c.Extensions.Get(TagRole)
	if !ok || len(v) != 1 || int(v[0]) >= len(roleNames) {
		return 0
	}
	return Role(v[0])
}

// SetSource sets the source of the message that a signal appends.
func (c *Call) SetSource(s Source) { c.Extensions = c.Extensions.With(TagSource, []byte{byte(s)}) }

// AppendedSource returns the source of the message that a signal appends: FromOperator unless a
// client appends to its own conversation.
func (c *Call) AppendedSource() Source {
	if v, ok := c.Extensions.Get(TagSource); ok && len(v) == 1 && Source(v[0]) == FromUser {
		return FromUser
	}
	return FromOperator
}

// Rights are the rights of a change of the registry beyond those of its principal.
type Rights uint8

// The rights. Each includes those before it.
const (
	NoRights   Rights = iota
	NameRights        // new agents may have the names that are reserved for agents of the program
	AllRights         // those of the operator
)

// SetAuthority sets the API key that makes a change of the registry, and the rights of the change.
// It replaces all extensions, so nothing of a client is among them.
func (c *Call) SetAuthority(key string, r Rights) {
	c.Extensions = ""
	if key != "" {
		c.Extensions = c.Extensions.With(TagKey, []byte(key))
	}
	if r != NoRights {
		c.Extensions = c.Extensions.With(TagRights, []byte{byte(r)})
	}
}

// Authority returns the values of SetAuthority.
func (c *Call) Authority() (key string, r Rights) {
	if c.Extensions == "" {
		return "", NoRights
	}
	id, _ := c.Extensions.Get(TagKey)
	if v, ok := c.Extensions.Get(TagRights); ok && len(v) == 1 && Rights(v[0]) <= AllRights {
		r = Rights(v[0])
	}
	return string(id), r
}
