// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func drawName(t *rapid.T) string { return rapid.StringMatching(`[A-Za-z0-9_-]{1,12}`).Draw(t, "name") }

func drawID(t *rapid.T) ID { return ID{drawName(t), drawName(t), drawName(t)} }

func drawCallID(t *rapid.T) CallID {
	return NewCallID(Time(rapid.Int64Range(0, 1<<60).Draw(t, "at")), rapid.Uint64().Draw(t, "hi"), rapid.Uint64().Draw(t, "lo"))
}

func drawAddress(t *rapid.T) Address {
	return Address{NodeID(drawName(t)), rapid.Uint16().Draw(t, "cell"), rapid.Uint64().Draw(t, "incarnation")}
}

// drawExtensions draws fields with tags that no version defines.
func drawExtensions(t *rapid.T) (x Extensions) {
	for range rapid.IntRange(0, 3).Draw(t, "extensions") {
		x = x.With(rapid.Uint64().Draw(t, "tag"), rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "value"))
	}
	return x
}

func drawHold(t *rapid.T) Hold {
	return Hold{HoldReason(rapid.Uint8().Draw(t, "reason")), drawName(t), drawName(t), drawName(t), drawExtensions(t)}
}

func drawParts(t *rapid.T) []Part {
	var parts []Part
	for range rapid.IntRange(0, 3).Draw(t, "parts") {
		p := Part{Media: MediaText}
		if rapid.Bool().Draw(t, "blob") {
			p.Blob, p.Size = HashOf([]byte(drawName(t))), rapid.Uint64Range(0, 1<<30).Draw(t, "size")
		} else if b := rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "bytes"); len(b) > 0 {
			p.Bytes = b
		}
		parts = append(parts, p)
	}
	return parts
}

func drawCall(t *rapid.T) Call {
	c := Call{ID: drawCallID(t), Root: drawCallID(t), Parent: drawCallID(t), To: drawID(t), Operation: HandleMessageFull,
		Kind: Kind(rapid.IntRange(1, 4).Draw(t, "kind")), Lane: Lane(rapid.IntRange(1, 3).Draw(t, "lane")),
		Left: Duration(rapid.Int64Range(0, 1<<50).Draw(t, "left")), Attempt: rapid.Uint32Range(1, 9).Draw(t, "attempt"),
		Principal: drawName(t), Origin: Origin(rapid.IntRange(1, 4).Draw(t, "origin")), Project: drawName(t),
		Budget: rapid.Uint32().Draw(t, "budget"), Workflow: drawName(t), Trace: drawName(t),
		Stamp: Time(rapid.Int64().Draw(t, "stamp")), Via: drawAddress(t), Parts: drawParts(t), Extensions: drawExtensions(t)}
	for range rapid.IntRange(0, 5).Draw(t, "depth") {
		c.Chain = append(c.Chain, drawID(t))
	}
	if c.IsRoot() {
		c.Root = c.ID
	}
	if rapid.Bool().Draw(t, "idempotent") {
		c.Idempotency = Idempotency{drawName(t), drawName(t), drawName(t), HashOf(nil)}
	}
	if rapid.Bool().Draw(t, "limited") {
		c.Purse = &Purse{rapid.Int64Range(0, UsageMax).Draw(t, "tokens"), NoLimit, rapid.Int64Range(0, DayMax).Draw(t, "day")}
	}
	if rapid.Bool().Draw(t, "claims") {
		c.Claimed = drawCallID(t)
	}
	return c
}

func drawReply(t *rapid.T) Reply {
	r := Reply{Call: drawCallID(t), Run: drawCallID(t), Status: Succeeded, Parts: drawParts(t), Budget: rapid.Uint32().Draw(t, "budget"), Extensions: drawExtensions(t)}
	if rapid.Bool().Draw(t, "used") {
		count := rapid.Int64Range(0, UsageMax)
		for _, u := range []*Usage{&r.Usage, &r.Tree} {
			*u = Usage{Input: count.Draw(t, "input"), Output: count.Draw(t, "output"), Total: count.Draw(t, "total"), Cached: count.Draw(t, "cached"), Priced: count.Draw(t, "priced")}
			if u.Priced > 0 {
				u.Cost = count.Draw(t, "cost")
			}
		}
	}
	if rapid.Bool().Draw(t, "limited") {
		r.Purse = &Purse{NoLimit, rapid.Int64Range(0, UsageMax).Draw(t, "micros"), 0}
	}
	if rapid.Bool().Draw(t, "failed") {
		r.Status = Failed
		r.Refusal = &Refusal{Reason: Reason(rapid.IntRange(1, 13).Draw(t, "reason")), Scope: Scope(rapid.IntRange(0, 3).Draw(t, "scope")),
			Detail: drawName(t), Field: drawName(t), Chain: []ID{drawID(t)}, RetryAfter: 5, Code: drawName(t), Timeout: 7}
		if r.Refusal.Reason == Deadline {
			r.Refusal.Code, r.Refusal.Operation = "", "invoke"
		}
		if r.Refusal.Reason == NotFound { // it has no scope
			r.Refusal.Scope, r.Refusal.What = NoScope, What(rapid.IntRange(0, len(whats)-1).Draw(t, "what"))
		}
	}
	return r
}

func drawEnvelope(t *rapid.T) Envelope {
	env := Envelope{From: drawAddress(t), To: drawID(t), Epoch: Epoch(rapid.Uint64().Draw(t, "epoch")), Durable: rapid.Bool().Draw(t, "durable")}
	id, n, until := drawCallID(t), rapid.Uint64().Draw(t, "n"), Time(rapid.Int64().Draw(t, "until"))
	switch rapid.IntRange(1, 7).Draw(t, "tag") {
	case tagRequest:
		c := drawCall(t)
		env.To, env.Body = c.To, Request{c}
	case tagAnswered:
		env.To, env.ToClient, env.Body = ID{}, drawAddress(t), Answered{drawReply(t)}
	case tagCancel:
		env.Body = Cancel{id, Stopped, rapid.StringN(0, 20, PrincipalTextBytesMax).Draw(t, "by")}
	case tagHeld:
		env.Body = Held{id, n, until, drawHold(t)}
	case tagResumed:
		env.Body = Resumed{id, n}
	case tagOpen:
		env.Body = Open{id, n, until, drawHold(t)}
	case tagProbe:
		ring := []Hop{{id, drawID(t), drawCallID(t), Epoch(n), until}, {drawCallID(t), drawID(t), id, 1, 2}}
		env.Body = Probe{From: id, To: drawCallID(t), Hops: ring, Branches: rapid.Uint32Range(0, BranchesMax).Draw(t, "ways"), Confirm: rapid.Uint32Range(0, 2).Draw(t, "confirm")}
	}
	return env
}

func TestEnvelopeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		env := drawEnvelope(t)
		got, err := Decode(Encode(env))
		if err != nil || !reflect.DeepEqual(got, env) {
			t.Fatalf("encoded %+v\ndecoded %+v\nerror   %v", env, got, err)
		}
	})
}

// The buffer of a connection is reused, so a decoded envelope holds copies.
func TestDecodedEnvelopeSharesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		env := drawEnvelope(t)
		buf := Encode(env)
		got, err := Decode(buf)
		if err != nil {
			t.Fatal(err)
		}
		for i := range buf {
			buf[i] ^= 0x55
		}
		if !reflect.DeepEqual(got, env) {
			t.Fatalf("encoded %+v\nafter the buffer was overwritten %+v", env, got)
		}
	})
}

func TestDecodeRejectsMalformedEnvelopes(t *testing.T) {
	id := NewCallID(1, 2, 3)
	root := Call{ID: id, Root: id, To: NewID("a", ""), Operation: "o", Kind: Waiting, Lane: Normal, Attempt: 1, Origin: Human}
	good := Encode(Envelope{To: root.To, Body: Request{root}})
	if _, err := Decode(good); err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(good)
	other[0] = CodecVersion + 1
	deep := root
	deep.Chain, deep.Parent = []ID{NewID("b", "")}, id
	for _, test := range []struct {
		name, want string
		bytes      []byte
	}{
		{"unsupported version", "written in version 5, this program reads version 4", other},
		{"empty input", "invalid varint", nil},
		{"truncated", "byte ", good[:len(good)-3]},
		{"trailing byte", "1 bytes too many", append(bytes.Clone(good), 0)},
		{"depth mismatch", "depth 2 does not match chain length 1", encodeWithDepth(deep, 2)},
		{"request to wrong actor", "sent to", Encode(Envelope{To: NewID("x", ""), Body: Request{root}})},
		{"no destination", "as destination", Encode(Envelope{Body: Cancel{id, Stopped, ""}})},
		{"unknown kind", "kind 9 exceeds", Encode(Envelope{To: root.To, Body: Request{func() Call { c := root; c.Kind = 9; return c }()}})},
	} {
		if _, err := Decode(test.bytes); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
}

// encodeWithDepth encodes a request. It writes the given depth instead of the
// length of the chain.
func encodeWithDepth(c Call, depth byte) []byte {
	b := Encode(Envelope{To: c.To, Body: Request{c}})
	var prefix Encoder
	prefix.CallID(c.ID)
	prefix.CallID(c.Root)
	prefix.CallID(c.Parent)
	prefix.ID(c.To)
	prefix.String(c.Operation)
	i := bytes.Index(b, prefix.Buf) + len(prefix.Buf)
	b[i] = depth
	return b
}

func FuzzDecode(f *testing.F) {
	id := NewCallID(1, 2, 3)
	c := Call{ID: id, Root: id, To: NewID("a", ""), Operation: "o", Kind: Waiting, Lane: Normal, Attempt: 1, Origin: Human, Parts: Text("hello")}
	f.Add(Encode(Envelope{To: c.To, Body: Request{c}}))
	f.Add(Encode(Envelope{ToClient: Address{"n", 1, 1}, Body: Answered{Fail(id, Refuse(Busy, "full"))}}))
	f.Add(Encode(Envelope{To: c.To, Body: Held{id, 3, 4, Hold{HoldApproval, "a-1", "pay", "5", Extensions("").With(7, []byte("x"))}}}))
	f.Add(Encode(Envelope{To: c.To, Body: Probe{From: id, To: id, Hops: []Hop{{id, c.To, id, 1, 2}}, Confirm: 1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		env, err := Decode(b)
		if err != nil {
			return
		}
		if encoded := Encode(env); !bytes.Equal(encoded, b) {
			t.Fatalf("Decode accepted %x, Encode returns %x", b, encoded)
		}
	})
}

// CheckEncodable accepts a call exactly if the call survives an encoding round
// trip unchanged.
func TestCheckEncodableMatchesDecode(t *testing.T) {
	long := strings.Repeat("x", TextBytesMax+1)
	mutations := []func(*Call){func(*Call) {}, func(c *Call) { c.Project = long }, func(c *Call) { c.Trace = "\xff" }, func(c *Call) { c.Operation = long },
		func(c *Call) { c.Idempotency.Key = long }, func(c *Call) { c.Workflow = long }, func(c *Call) { c.Principal = "\xff" }, func(c *Call) { c.To.Key = "a/b" },
		func(c *Call) { c.Kind = 9 }, func(c *Call) { c.Left = -1 }, func(c *Call) { c.Parts = make([]Part, PartsMax+1) },
		func(c *Call) { c.Parts = []Part{{Media: long}} }, func(c *Call) { c.Extensions = Extensions(long) }, func(c *Call) { c.Extensions = "\x01" }, func(c *Call) { c.Chain = make([]ID, 1) },
		func(c *Call) { c.Chain = slices.Repeat([]ID{{"t", "a", "k"}}, ChainMax+1); c.Parent = c.ID }}
	rapid.Check(t, func(t *rapid.T) {
		call := drawCall(t)
		mutation := rapid.IntRange(0, len(mutations)-1).Draw(t, "mutation")
		mutations[mutation](&call)
		decoded, err := Decode(Encode(Envelope{To: call.To, Body: Request{call}}))
		if encodable := call.CheckEncodable(); (encodable == nil) != (err == nil) || (mutation == 0) != (err == nil) {
			t.Fatalf("mutation %d: CheckEncodable: %v; Decode: %v", mutation, encodable, err)
		}
		if err == nil && !reflect.DeepEqual(decoded.Body.(Request).Call, call) {
			t.Fatalf("got %+v, want %+v", decoded.Body, call)
		}
	})
}

// A clone equals its original and shares no byte with it.
func TestReplyCloneSharesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reply := drawReply(t)
		clone := reply.Clone()
		if !reflect.DeepEqual(reply, clone) {
			t.Fatalf("clone of %+v is %+v", reply, clone)
		}
		for i := range clone.Parts {
			for j := range clone.Parts[i].Bytes {
				clone.Parts[i].Bytes[j]++
			}
			if len(clone.Parts[i].Bytes) > 0 && bytes.Equal(clone.Parts[i].Bytes, reply.Parts[i].Bytes) {
				t.Fatal("the clone shares a part")
			}
			clone.Parts[i].Media += "x"
		}
		if clone.Refusal != nil {
			clone.Refusal.Detail += "x"
		}
		if len(clone.Parts) > 0 && reflect.DeepEqual(reply.Parts, clone.Parts) || clone.Refusal != nil && reply.Refusal.Detail == clone.Refusal.Detail {
			t.Fatal("the clone shares memory with the reply")
		}
	})
}
