// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
	"slices"
)

// CodecVersion is the first byte of every encoded envelope. Decode rejects all others.
//
//  1. initial version
//  2. extensions; reasons of holds
//  3. names and summaries of holds
const CodecVersion = 4

// Limits that the decoder enforces. The limits of the runtime are lower.
const (
	MessageBytesMax = 1 << 20 // inline content of a message, in bytes
	ChainMax        = 64
	PartsMax        = 256
	WarningsMax     = 64
	HopsMax         = 32      // hops of a probe
	BranchesMax     = 64      // concurrent probes of one call
	TextBytesMax    = 4 << 10 // a sentence, key or header, in bytes
	blobBytesMax    = 1 << 40 // content stored as a blob, in bytes
)

// The tags of messages on the wire. A number MUST NOT be reused.
const (
	tagRequest = iota + 1
	tagAnswered
	tagCancel
	tagHeld
	tagResumed
	tagOpen
	tagProbe
)

// Encode returns the encoding of env that Decode reads.
func Encode(env Envelope) []byte { return Append(make([]byte, 0, 256), env) }

// Append appends the encoding of env to b.
func Append(b []byte, env Envelope) []byte {
	e := &Encoder{Buf: b}
	e.Uint(CodecVersion)
	e.Address(env.From)
	e.ID(env.To)
	e.Address(env.ToClient)
	e.Uint(uint64(env.Epoch))
	e.Bool(env.Durable)
	switch m := env.Body.(type) {
	case Request:
		e.Uint(tagRequest)
		e.Call(m.Call)
	case Answered:
		e.Uint(tagAnswered)
		e.Reply(m.Reply)
	case Cancel:
		e.Uint(tagCancel)
		e.CallID(m.Call)
		e.Uint(uint64(m.Reason))
		e.String(m.By)
	case Held:
		e.Uint(tagHeld)
		e.CallID(m.Call)
		e.Uint(m.N)
		e.Int(int64(m.Until))
		e.Hold(m.For)
	case Resumed:
		e.Uint(tagResumed)
		e.CallID(m.Call)
		e.Uint(m.N)
	case Open:
		e.Uint(tagOpen)
		e.CallID(m.Call)
		e.Uint(m.N)
		e.Int(int64(m.Until))
		e.Hold(m.For)
	case Probe:
		e.Uint(tagProbe)
		e.CallID(m.From)
		e.CallID(m.To)
		e.Hops(m.Hops)
		e.Uint(uint64(m.Branches))
		e.Uint(uint64(m.Confirm))
	default:
		panic(fmt.Sprintf("actor: message type %T has no tag", m))
	}
	return e.Buf
}

// Decode parses an envelope. It never panics and does not retain b. An envelope that it
// accepts encodes to the same bytes.
func Decode(b []byte) (Envelope, error) {
	d := NewDecoder(b)
	env, err := decode(d)
	if err != nil {
		return Envelope{}, fmt.Errorf("message: %w", err)
	}
	return env, nil
}

func decode(d *Decoder) (Envelope, error) {
	if v := d.Uint(); d.err == nil && v != CodecVersion {
		return Envelope{}, fmt.Errorf("written in version %d, this program reads version %d", v, CodecVersion)
	}
	var env Envelope
	env.From = d.Address()
	env.To = d.ID()
	env.ToClient = d.Address()
	env.Epoch = Epoch(d.Uint())
	env.Durable = d.Bool()
	switch tag := d.Uint(); tag {
	case tagRequest:
		env.Body = Request{d.Call()}
	case tagAnswered:
		env.Body = Answered{d.Reply()}
	case tagCancel:
		env.Body = Cancel{Call: d.CallID(), Reason: d.reason(), By: d.String(PrincipalTextBytesMax)}
	case tagHeld:
		env.Body = Held{Call: d.CallID(), N: d.Uint(), Until: Time(d.Int()), For: d.Hold()}
	case tagResumed:
		env.Body = Resumed{Call: d.CallID(), N: d.Uint()}
	case tagOpen:
		env.Body = Open{Call: d.CallID(), N: d.Uint(), Until: Time(d.Int()), For: d.Hold()}
	case tagProbe:
		env.Body = d.probe()
	default:
		d.Fail("unknown message %d", tag)
	}
	if d.err == nil {
		if err := env.check(); err != nil {
			d.Fail("%v", err)
		}
	}
	return env, d.End()
}

// check returns an error for an inconsistent envelope. An envelope MUST be
// addressed to either an actor or a client. A request MUST be addressed to its
// callee.
func (env Envelope) check() error {
	toActor, toClient := env.To != ID{}, !env.ToClient.IsZero()
	if toActor == toClient {
		return fmt.Errorf("want either an actor or a client as destination")
	}
	if r, ok := env.Body.(Request); ok && r.Call.To != env.To {
		return fmt.Errorf("request for %s sent to %s", r.Call.To, env.To)
	}
	return nil
}

// ID appends the three parts of id.
func (e *Encoder) ID(id ID) { e.String(id.Tenant); e.String(id.Agent); e.String(id.Key) }

// ID reads three parts. If all are empty it returns the zero ID; any other ID
// must be valid.
func (d *Decoder) ID() ID {
	id := ID{d.String(NameBytesMax), d.String(NameBytesMax), d.String(NameBytesMax)}
	if id == (ID{}) || d.err != nil {
		return ID{}
	}
	if err := id.Check(); err != nil {
		d.Fail("%v", err)
		return ID{}
	}
	return id
}

// Address appends the node, cell and incarnation.
func (e *Encoder) Address(a Address) {
	e.String(string(a.Node))
	e.Uint(uint64(a.Cell))
	e.Uint(a.Incarnation)
}

// Address reads the node, cell and incarnation.
func (d *Decoder) Address() Address {
	a := Address{NodeID(d.String(NameBytesMax)), uint16(d.UintMax(1<<16-1, "cell")), d.Uint()}
	if a.Node == "" && !a.IsZero() {
		d.Fail("cell without node")
	}
	return a
}

// CallID appends 16 bytes.
func (e *Encoder) CallID(id CallID) { e.Raw(id[:]) }

// CallID reads 16 bytes.
func (d *Decoder) CallID() (id CallID) {
	copy(id[:], d.Raw(len(id)))
	return id
}

// Hash appends 32 bytes.
func (e *Encoder) Hash(h Hash) { e.Raw(h[:]) }

// Hash reads 32 bytes.
func (d *Decoder) Hash() (h Hash) {
	copy(h[:], d.Raw(len(h)))
	return h
}

// IDs appends a list of IDs.
func (e *Encoder) IDs(ids []ID) {
	e.Uint(uint64(len(ids)))
	for _, id := range ids {
		e.ID(id)
	}
}

// IDs reads a list of at most ChainMax IDs.
func (d *Decoder) IDs() []ID {
	n := d.Count(ChainMax, "actors in chain")
	return decodeList(d, n, d.ID)
}

// Hops appends the hops of a probe.
func (e *Encoder) Hops(hops []Hop) {
	e.Uint(uint64(len(hops)))
	for _, h := range hops {
		e.CallID(h.Call)
		e.ID(h.Actor)
		e.CallID(h.Turn)
		e.Uint(uint64(h.Epoch))
		e.Int(int64(h.Stamp))
	}
}

func (d *Decoder) probe() Probe {
	p := Probe{From: d.CallID(), To: d.CallID()}
	p.Hops = decodeList(d, d.Count(HopsMax, "hops"), func() Hop {
		return Hop{Call: d.CallID(), Actor: d.ID(), Turn: d.CallID(), Epoch: Epoch(d.Uint()), Stamp: Time(d.Int())}
	})
	p.Branches = uint32(d.UintMax(BranchesMax, "ways"))
	p.Confirm = uint32(d.UintMax(uint64(len(p.Hops)), "hop to confirm"))
	if len(p.Hops) == 0 {
		d.Fail("probe without hops")
	}
	return p
}

// Strings appends a list of strings.
func (e *Encoder) Strings(ss []string) {
	e.Uint(uint64(len(ss)))
	for _, s := range ss {
		e.String(s)
	}
}

// Strings reads a list of at most WarningsMax strings.
func (d *Decoder) Strings() []string {
	n := d.Count(WarningsMax, "strings")
	return decodeList(d, n, func() string { return d.String(TextBytesMax) })
}

// Parts appends content.
func (e *Encoder) Parts(parts []Part) {
	e.Uint(uint64(len(parts)))
	for _, p := range parts {
		e.String(p.Media)
		e.Bool(!p.Blob.IsZero())
		if p.Blob.IsZero() {
			e.Bytes(p.Bytes)
		} else {
			e.Hash(p.Blob)
			e.Uint(p.Size)
		}
	}
}

// Parts reads content.
func (d *Decoder) Parts() []Part {
	n := d.Count(PartsMax, "parts")
	parts := decodeList(d, n, func() Part {
		p := Part{Media: d.String(TextBytesMax)}
		if !d.Bool() {
			p.Bytes = d.Bytes(MessageBytesMax)
			return p
		}
		p.Blob, p.Size = d.Hash(), d.UintMax(blobBytesMax, "size of a blob")
		if p.Blob.IsZero() {
			d.Fail("blob without hash")
		}
		return p
	})
	inline := 0
	for _, p := range parts {
		inline += len(p.Bytes)
	}
	if inline > MessageBytesMax {
		d.Fail("%d inline bytes, at most %d allowed", inline, MessageBytesMax)
	}
	return parts
}

// The optional fields of an encoded call, as bits. The first was once a boolean.
const (
	withIdempotency = 1 << iota
	withClaimed
	withPurse
)

// Call appends every field of the call. It writes both the depth and the chain,
// so that the decoder can check one against the other.
func (e *Encoder) Call(c Call) {
	e.CallID(c.ID)
	e.CallID(c.Root)
	e.CallID(c.Parent)
	e.ID(c.To)
	e.String(c.Operation)
	e.Uint(uint64(c.Depth()))
	e.IDs(c.Chain)
	e.Uint(uint64(c.Kind))
	e.Uint(uint64(c.Lane))
	e.Int(int64(c.Left))
	e.Uint(uint64(c.Attempt))
	e.String(c.Principal)
	e.Uint(uint64(c.Origin))
	e.String(c.Project)
	options := uint64(0)
	if !c.Idempotency.IsZero() {
		options |= withIdempotency
	}
	if !c.Claimed.IsZero() {
		options |= withClaimed
	}
	if c.Purse != nil {
		options |= withPurse
	}
	e.Uint(options)
	if i := c.Idempotency; !i.IsZero() {
		e.String(i.Principal)
		e.String(i.Route)
		e.String(i.Key)
		e.Hash(i.Body)
	}
	if !c.Claimed.IsZero() {
		e.CallID(c.Claimed)
	}
	if c.Purse != nil {
		e.Purse(c.Purse)
	}
	e.Uint(uint64(c.Budget))
	e.String(c.Workflow)
	e.String(c.Trace)
	e.Int(int64(c.Stamp))
	e.Address(c.Via)
	e.Parts(c.Parts)
	e.Extensions(c.Extensions)
}

// Call reads a call and validates it with Call.Check.
func (d *Decoder) Call() Call {
	var c Call
	c.ID, c.Root, c.Parent = d.CallID(), d.CallID(), d.CallID()
	c.To = d.ID()
	c.Operation = d.String(TextBytesMax)
	depth := d.UintMax(ChainMax, "depth")
	c.Chain = d.IDs()
	if d.err == nil && int(depth) != len(c.Chain) {
		d.Fail("depth %d does not match chain length %d", depth, len(c.Chain))
	}
	c.Kind = Kind(d.UintMax(uint64(len(kindNames)-1), "kind"))
	c.Lane = Lane(d.UintMax(uint64(len(laneNames)-1), "lane"))
	c.Left = Duration(d.Int())
	c.Attempt = uint32(d.UintMax(1<<32-1, "attempt"))
	c.Principal = d.String(TextBytesMax)
	c.Origin = Origin(d.UintMax(uint64(len(originNames)-1), "origin"))
	c.Project = d.String(TextBytesMax)
	options := d.UintMax(withIdempotency|withClaimed|withPurse, "options of a call")
	if options&withIdempotency != 0 {
		c.Idempotency = Idempotency{d.String(TextBytesMax), d.String(TextBytesMax), d.String(TextBytesMax), d.Hash()}
		if c.Idempotency.IsZero() {
			d.Fail("idempotency without key")
		}
	}
	if options&withClaimed != 0 {
		if c.Claimed = d.CallID(); c.Claimed.IsZero() {
			d.Fail("claim of no run")
		}
	}
	if options&withPurse != 0 {
		c.Purse = d.Purse()
	}
	c.Budget = uint32(d.UintMax(1<<32-1, "budget"))
	c.Workflow = d.String(TextBytesMax)
	c.Trace = d.String(TextBytesMax)
	c.Stamp = Time(d.Int())
	c.Via = d.Address()
	c.Parts = d.Parts()
	c.Extensions = d.Extensions()
	if d.err == nil {
		if err := c.Check(); err != nil {
			d.Fail("%v", err)
		}
	}
	return c
}

// The optional fields of an encoded reply, which are added to its status.
const (
	withUsage     = 1 << 2
	withLeftPurse = 1 << 3
)

// Reply appends a reply.
func (e *Encoder) Reply(r Reply) {
	e.CallID(r.Call)
	e.CallID(r.Run)
	used := r.Usage != Usage{} || r.Tree != Usage{}
	status := uint64(r.Status)
	if used {
		status |= withUsage
	}
	if r.Purse != nil {
		status |= withLeftPurse
	}
	e.Uint(status)
	e.Parts(r.Parts)
	e.Strings(r.Warnings)
	e.Refusal(r.Refusal)
	e.Uint(uint64(r.Budget))
	if r.Purse != nil {
		e.Purse(r.Purse)
	}
	if used {
		e.Usage(r.Usage)
		e.Usage(r.Tree)
	}
	e.Extensions(r.Extensions)
}

// Reply reads a reply.
func (d *Decoder) Reply() Reply {
	var r Reply
	r.Call, r.Run = d.CallID(), d.CallID()
	status := d.UintMax(uint64(len(statusNames)-1)|withUsage|withLeftPurse, "status")
	r.Status = Status(status &^ (withUsage | withLeftPurse))
	r.Parts = d.Parts()
	r.Warnings = d.Strings()
	r.Refusal = d.Refusal()
	r.Budget = uint32(d.UintMax(1<<32-1, "budget"))
	if status&withLeftPurse != 0 {
		r.Purse = d.Purse()
	}
	if status&withUsage != 0 {
		if r.Usage, r.Tree = d.Usage(), d.Usage(); r.Usage == (Usage{}) && r.Tree == (Usage{}) {
			d.Fail("usage without tokens")
		}
	}
	r.Extensions = d.Extensions()
	if d.err == nil && (r.Status == 0 || (r.Status == Failed) != (r.Refusal != nil)) {
		d.Fail("inconsistent status %s (refusal present: %v)", r.Status, r.Refusal != nil)
	}
	return r
}

// Refusal appends a refusal; r may be nil.
func (e *Encoder) Refusal(r *Refusal) {
	e.Bool(r != nil)
	if r == nil {
		return
	}
	e.Uint(uint64(r.Reason))
	if r.Reason == NotFound { // which has no scope
		e.Uint(uint64(r.What))
	} else {
		e.Uint(uint64(r.Scope))
	}
	e.String(r.Detail)
	e.String(r.Field)
	e.IDs(r.Chain)
	e.Int(int64(r.RetryAfter))
	if r.Reason == Deadline { // which has no code
		e.String(r.Operation)
	} else {
		e.String(r.Code)
	}
	e.Int(int64(r.Timeout))
}

// Refusal reads a refusal, which may be nil.
func (d *Decoder) Refusal() *Refusal {
	if !d.Bool() || d.err != nil {
		return nil
	}
	r := &Refusal{Reason: d.reason()}
	if r.Reason == NotFound {
		r.What = What(d.UintMax(uint64(len(whats)-1), "what was not found"))
	} else {
		r.Scope = Scope(d.UintMax(uint64(len(scopeNames)-1), "scope"))
	}
	r.Detail = d.String(TextBytesMax)
	r.Field = d.String(TextBytesMax)
	if r.Reason == NotFound && r.What == NoWhat {
		if r.What = WhatOf(r.Field); r.What != NoWhat {
			r.Field = whats[r.What].field
		}
	}
	r.Chain = d.IDs()
	r.RetryAfter = Duration(d.Int())
	if r.Reason == Deadline {
		r.Operation = d.String(TextBytesMax)
	} else {
		r.Code = d.String(TextBytesMax)
	}
	r.Timeout = Duration(d.Int())
	return r
}

func (d *Decoder) reason() Reason {
	r := Reason(d.UintMax(uint64(len(reasons)-1), "reason"))
	if r == 0 {
		d.Fail("refusal without reason")
	}
	return r
}

func decodeList[T any](d *Decoder, n int, item func() T) []T {
	if n == 0 {
		return nil
	}
	all := make([]T, 0, min(n, 16)) // the length is untrusted until the items have been read
	for range n {
		v := item()
		if d.err != nil {
			return nil
		}
		all = append(all, v)
	}
	return slices.Clip(all)
}
