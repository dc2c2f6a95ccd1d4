// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	// DefaultTenant is the tenant that String omits.
	DefaultTenant = "default"
	// SystemAgent is the agent of the registry. The names of the runtime's other agents begin
	// with it and a dot. CheckUnreserved refuses all of them to others.
	SystemAgent = "troupe"
	// SessionAgent is the agent whose actors hold the title and the metadata of a session.
	SessionAgent = SystemAgent + ".session"
	// ContextAgent is the agent whose actors hold the contexts of a session.
	ContextAgent = SystemAgent + ".context"
	// MemoryAgent is the agent whose actors hold what the agents of a session remember. The names of the
	// agents for other scopes begin with it and a dot.
	MemoryAgent = SystemAgent + ".memory"
	// WorkspaceAgent is the agent whose actors hold the documents of a user.
	WorkspaceAgent = SystemAgent + ".workspace"
	// AccountAgent is the agent whose actors keep what the runs of a user have drawn from the budget of a day.
	AccountAgent = SystemAgent + ".account"
	// DefaultKey is the key of an actor named by its agent alone.
	DefaultKey = "main"
	// NameBytesMax is the maximum length of each part of an ID and of a node name.
	NameBytesMax = 64
)

// sessionKinds are the endings of those system agents whose key is a session.
var sessionKinds = [...]string{".session", ".proxy", ".context", ".memory"}

// ID identifies one actor: an instance of an agent, addressed by a key, which is
// the session. Its text form is agent/key, or tenant/agent/key outside the default
// tenant. Each part matches [A-Za-z0-9._-]{1,64} and is neither "." nor "..".
type ID struct{ Tenant, Agent, Key string }

// NewID returns an actor ID in the default tenant. An empty key means DefaultKey.
func NewID(agent, key string) ID {
	if key == "" {
		key = DefaultKey
	}
	return ID{Tenant: DefaultTenant, Agent: agent, Key: key}
}

// ParseID parses "agent", "agent/key" or "tenant/agent/key".
func ParseID(text string) (ID, error) {
	var id ID
	parts := strings.Split(text, "/")
	switch len(parts) {
	case 1:
		id = NewID(parts[0], DefaultKey)
	case 2:
		id = ID{DefaultTenant, parts[0], parts[1]}
	case 3:
		id = ID{parts[0], parts[1], parts[2]}
	default:
		return ID{}, fmt.Errorf("actor %.80q: want agent, agent/key or tenant/agent/key", text)
	}
	return id, id.Check()
}

// Check returns an error if a part of the ID is invalid.
func (id ID) Check() error {
	for _, part := range [...]struct{ kind, name string }{{"tenant", id.Tenant}, {"agent", id.Agent}, {"key", id.Key}} {
		if err := CheckName(part.name); err != nil {
			return fmt.Errorf("%s %w", part.kind, err)
		}
	}
	return nil
}

// CheckName returns an error if name is not a valid name of an agent, key, tenant
// or node.
func CheckName(name string) error {
	if name == "" || len(name) > NameBytesMax {
		return fmt.Errorf("%.80q: want 1 to %d characters", name, NameBytesMax)
	}
	if name == "." || name == ".." {
		return fmt.Errorf("%q: not a name", name)
	}
	for i := range len(name) {
		switch b := name[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '.', b == '_', b == '-':
		default:
			return fmt.Errorf("%.80q: only letters, digits, '.', '_' and '-' are allowed", name)
		}
	}
	return nil
}

// IsSystemAgent reports whether an agent is part of the runtime itself.
func IsSystemAgent(agent string) bool {
	return agent == SystemAgent || strings.HasPrefix(agent, SystemAgent+".")
}

// CheckUnreserved returns an error if a name is SystemAgent or begins with it and a dot, in any
// spelling that FoldName makes equal. An agent, tool, model or user MUST NOT get such a name,
// because the runtime uses them for its own. It does not restrict keys: a session may have such a
// name.
func CheckUnreserved(name string) error {
	const prefix = SystemAgent + "."
	lower := FoldName(name)
	if lower != SystemAgent && !strings.HasPrefix(lower, prefix) {
		return nil
	}
	return fmt.Errorf("%.80q is reserved: %s and names that begin with %s are part of this program; choose another name, such as %.80q",
		name, SystemAgent, prefix, "team"+strings.TrimPrefix(lower, SystemAgent))
}

// Session returns the session that the actor belongs to. It returns false for the actor
// of an agent under DefaultKey, and for the actors of the runtime itself. Exception: the
// actors in sessionKinds belong to the session in their key.
func (id ID) Session() (session string, ok bool) {
	system := IsSystemAgent(id.Agent)
	if id.Key == DefaultKey && !system || system && !slices.Contains(sessionKinds[:], id.Agent[min(len(SystemAgent), len(id.Agent)):]) {
		return "", false
	}
	return id.Key, true
}

// String returns the ID in the form that ParseID parses.
func (id ID) String() string { return string(id.AppendTo(nil)) }

// AppendTo appends the result of String to b.
func (id ID) AppendTo(b []byte) []byte {
	if b == nil {
		b = make([]byte, 0, len(id.Tenant)+len(id.Agent)+len(id.Key)+2)
	}
	if id.Tenant != DefaultTenant {
		b = append(append(b, id.Tenant...), '/')
	}
	b = append(append(b, id.Agent...), '/')
	return append(b, id.Key...)
}

// Compare orders IDs by tenant, agent and key.
func (id ID) Compare(other ID) int {
	if c := strings.Compare(id.Tenant, other.Tenant); c != 0 {
		return c
	}
	if c := strings.Compare(id.Agent, other.Agent); c != 0 {
		return c
	}
	return strings.Compare(id.Key, other.Key)
}

// CallID is a UUIDv7. It identifies a call permanently, across all its attempts.
type CallID [16]byte

// NewCallID returns a UUIDv7 made of the instant and of 74 bits of the two random
// words.
func NewCallID(now Time, hi, lo uint64) CallID {
	var id CallID
	ms := uint64(now) / 1e6
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6] = 0x70 | byte(hi>>8)&0x0f
	id[7] = byte(hi)
	for i := range 8 {
		id[8+i] = byte(lo >> (56 - 8*i))
	}
	id[8] = 0x80 | id[8]&0x3f
	return id
}

// FirstCallID returns the smallest ID of a call made at the instant or later.
func FirstCallID(at Time) CallID {
	id := NewCallID(at.Add(1e6-1), 0, 0)
	clear(id[6:])
	return id
}

// Version returns the version of the UUID.
func (id CallID) Version() int { return int(id[6] >> 4) }

// Time returns the instant at which the ID was made, in whole milliseconds.
func (id CallID) Time() Time {
	ms := Time(0)
	for _, b := range id[:6] {
		ms = ms<<8 | Time(b)
	}
	return ms * 1e6
}

// ParseCallID parses the form that String returns.
func ParseCallID(text string) (CallID, error) {
	var id CallID
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return CallID{}, fmt.Errorf("call id %.80q: want a UUID like 0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55", text)
	}
	at := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			continue
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		default:
			return CallID{}, fmt.Errorf("call id %.80q: want 32 lower-case hex digits", text)
		}
		id[at/2] = id[at/2]<<4 | c
		at++
	}
	return id, nil
}

// String returns the canonical form of a UUID.
func (id CallID) String() string { return string(id.AppendTo(make([]byte, 0, 36))) }

// AppendTo appends the result of String to b.
func (id CallID) AppendTo(b []byte) []byte {
	const digits = "0123456789abcdef"
	var text [36]byte
	at := 0
	for i, v := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			text[at] = '-'
			at++
		}
		text[at], text[at+1] = digits[v>>4], digits[v&15]
		at += 2
	}
	return append(b, text[:]...)
}

// Short returns a suffix of the ID that is long enough for a reader to distinguish
// the calls of one page.
func (id CallID) Short() string { return hex.EncodeToString(id[12:]) }

// IsZero reports whether the ID is unset.
func (id CallID) IsZero() bool { return id == CallID{} }

// Compare orders call IDs by their bytes, which is the order of creation time.
func (id CallID) Compare(other CallID) int { return bytes.Compare(id[:], other[:]) }

// EffectID identifies one external effect of a run. It is the idempotency key of
// the effect and is the same on every attempt.
type EffectID struct {
	Run   CallID
	Step  uint32 // number of the action in the turn, from 1
	Index uint16 // index of the ask in the action, from 0
}

// String returns the short run ID, the step and the index.
func (e EffectID) String() string { return fmt.Sprintf("%s.%d.%d", e.Run.Short(), e.Step, e.Index) }

// NodeID identifies one process that hosts cells.
type NodeID string

// Epoch is the generation of a shard's owner. An owner with a higher epoch has
// superseded those with a lower one.
type Epoch uint64

// Address is the source of a message or the destination of an answer: one
// incarnation of one cell of one node. The zero Address is a client of the local
// node.
type Address struct {
	Node        NodeID
	Cell        uint16
	Incarnation uint64
}

// IsZero reports whether the address is unset.
func (a Address) IsZero() bool { return a == Address{} }

// String returns node.cell#incarnation.
func (a Address) String() string { return string(a.AppendTo(nil)) }

// AppendTo appends the result of String to b.
func (a Address) AppendTo(b []byte) []byte {
	b = append(append(b, a.Node...), '.')
	b = append(strconv.AppendUint(b, uint64(a.Cell), 10), '#')
	return strconv.AppendUint(b, a.Incarnation, 10)
}
