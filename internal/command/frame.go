// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"reflect"

	"github.com/troupe-run/troupe/actor"
)

// CodecVersion is the first byte of every frame. DecodeFrame rejects all others.
//
//  1. initial version
//  2. extensions of calls and replies
//  3. clamped times of a run
//  4. the key of a run, and the approvals that it waits for
//  5. the detail of a refused request to a model for its client
//  6. lists of runs over all users, and the circuit breakers of external agents
//  7. turns of namespaces in lists of approvals
//  8. the tokens of a request to a model
//  9. former owners of agents
//  10. the agents of a device
//  11. the state of a session, the owner's epoch in a cluster
//  12. queries and results by their fields
//  13. budgets of tokens and money
//  14. actions apart from queries
const CodecVersion = 14

// FrameBytesMax is the maximum size of an encoded frame in bytes. It exceeds the
// size of the largest event.
const FrameBytesMax = 32 << 20

// Frame is one message between a client and a node. The frames of one command
// have its number.
type Frame struct {
	Number uint64
	Body   Body
}

// Body is the content of a frame. From the client it is Invoke, Signal, Cancel, Forget,
// Follow, Lookup, Do or Stop. From the node it is one of the notices Joined and
// Updated, or one that ends the command: Answer, Done, Found or Failure.
type Body interface{ body() }

type (
	// Stop ends a command: the client awaits no further frame with its number.
	Stop struct{}
	// Joined is the notice that a call repeats one whose run is open.
	Joined struct{ Run actor.CallID }
	// Updated is the notice that a followed run has new events.
	Updated struct{}
	// Done ends a Cancel or a Forget, and a Follow that the node has accepted: notices
	// follow until the client sends Stop.
	Done struct{}
	// Found is the result of a Lookup or a Do.
	Found struct{ Result Result }
	// Failure is the error of a command.
	Failure struct {
		Kind    FailureKind
		Text    string
		Refusal *actor.Refusal // set if Kind is FailedRefused
		Dropped EventsDropped  // set if Kind is FailedDropped
	}
)

// FailureKind is the kind of an error.
type FailureKind uint8

// The kinds of failure.
const (
	FailedInternal FailureKind = iota + 1
	FailedRefused              // a *actor.Refusal
	FailedClosed               // ErrClosed
	FailedDeadline             // context.DeadlineExceeded
	FailedCanceled             // context.Canceled
	FailedDropped              // EventsDropped
)

func (Invoke) body()  {}
func (Signal) body()  {}
func (Cancel) body()  {}
func (Forget) body()  {}
func (Follow) body()  {}
func (Lookup) body()  {}
func (Do) body()      {}
func (Stop) body()    {}
func (Joined) body()  {}
func (Updated) body() {}
func (Answer) body()  {}
func (Done) body()    {}
func (Found) body()   {}
func (Failure) body() {}

// The tags of frames on the wire. A number MUST NOT be reused.
const (
	tagInvoke = iota + 1
	tagSignal
	tagCancel
	tagFollow
	tagLookup
	tagStop
	tagJoined
	tagUpdated
	tagAnswer
	tagDone
	tagFound
	tagFailure
	tagForget
	tagDo
)

// AppendFrame appends the encoding of f to b. It returns an error for a frame
// that DecodeFrame would reject, so that a peer never receives one.
func AppendFrame(b []byte, f Frame) ([]byte, error) {
	start := len(b)
	e := &encoder{actor.Encoder{Buf: append(b, CodecVersion)}}
	e.Uint(f.Number)
	switch m := f.Body.(type) {
	case Invoke:
		e.Uint(tagInvoke)
		e.principal(m.By)
		e.Call(m.Call)
	case Signal:
		e.Uint(tagSignal)
		e.principal(m.By)
		e.Call(m.Call)
	case Cancel:
		e.Uint(tagCancel)
		e.principal(m.By)
		e.CallID(m.Run)
		e.ID(m.Actor)
	case Forget:
		e.Uint(tagForget)
		e.principal(m.By)
		e.String(m.Session)
	case Follow:
		e.Uint(tagFollow)
		e.principal(m.By)
		e.CallID(m.Run)
		e.String(m.Session)
		e.String(m.Device)
		names.put(e, reflect.ValueOf(m.Agents))
	case Lookup:
		e.Uint(tagLookup)
		e.principal(m.By)
		queries.put(e, m.Query)
	case Do:
		e.Uint(tagDo)
		e.principal(m.By)
		actions.put(e, m.Action)
	case Stop:
		e.Uint(tagStop)
	case Joined:
		e.Uint(tagJoined)
		e.CallID(m.Run)
	case Updated:
		e.Uint(tagUpdated)
	case Answer:
		e.Uint(tagAnswer)
		e.answer(m)
	case Done:
		e.Uint(tagDone)
	case Found:
		e.Uint(tagFound)
		results.put(e, m.Result)
	case Failure:
		e.Uint(tagFailure)
		e.Uint(uint64(m.Kind))
		e.String(m.Text)
		e.Refusal(m.Refusal)
		if m.Kind == FailedDropped {
			e.CallID(m.Dropped.Run)
			e.Uint(m.Dropped.First)
		}
	default:
		panic(fmt.Sprintf("command: frame type %T has no tag", m))
	}
	if _, err := DecodeFrame(e.Buf[start:]); err != nil {
		return b, err
	}
	return e.Buf, nil
}

// DecodeFrame parses one frame. It never panics and does not retain b. A frame that it
// accepts encodes to the same bytes.
func DecodeFrame(b []byte) (Frame, error) {
	d := &decoder{actor.NewDecoder(b)}
	f := d.frame(len(b))
	if err := d.End(); err != nil {
		return Frame{}, fmt.Errorf("frame: %w", err)
	}
	return f, nil
}

func (d *decoder) frame(size int) (f Frame) {
	if size > FrameBytesMax {
		d.Fail("at most %d bytes allowed", FrameBytesMax)
	}
	if v := d.Raw(1); v != nil && v[0] != CodecVersion {
		d.Fail("written in version %d, this program reads version %d", v[0], CodecVersion)
	}
	f.Number = d.Uint()
	switch tag := d.Uint(); tag {
	case tagInvoke:
		by, call := d.principal(), d.Call()
		d.require(call.Kind != actor.Signal, "invoked call is a signal")
		d.require(by.CheckTenant(call.To) == nil, "actor of another tenant")
		f.Body = Invoke{by, call}
	case tagSignal:
		by, call := d.principal(), d.Call()
		d.require(call.Kind == actor.Signal, "signal of another kind")
		d.require(by.CheckTenant(call.To) == nil, "actor of another tenant")
		f.Body = Signal{by, call}
	case tagCancel:
		m := Cancel{d.principal(), d.CallID(), d.ID()}
		d.require(m.By.CheckTenant(m.Actor) == nil, "actor of another tenant")
		f.Body = m
	case tagForget:
		f.Body = Forget{d.principal(), d.text()}
	case tagFollow:
		m := Follow{d.principal(), d.CallID(), d.text(), d.text(), nil}
		names.get(d, reflect.ValueOf(&m.Agents).Elem())
		f.Body = m
	case tagLookup:
		f.Body = Lookup{d.principal(), queries.get(d, "query")}
	case tagDo:
		f.Body = Do{d.principal(), actions.get(d, "action")}
	case tagStop:
		f.Body = Stop{}
	case tagJoined:
		f.Body = Joined{d.CallID()}
	case tagUpdated:
		f.Body = Updated{}
	case tagAnswer:
		f.Body = d.answer()
	case tagDone:
		f.Body = Done{}
	case tagFound:
		f.Body = Found{results.get(d, "result")}
	case tagFailure:
		m := Failure{Kind: FailureKind(d.UintMax(uint64(FailedDropped), "kind of failure")), Text: d.text(), Refusal: d.Refusal()}
		if m.Kind == FailedDropped {
			m.Dropped = EventsDropped{d.CallID(), d.Uint()}
		}
		d.require(m.Kind != 0 && (m.Kind == FailedRefused) == (m.Refusal != nil), "inconsistent failure")
		f.Body = m
	default:
		d.Fail("unknown frame %d", tag)
	}
	return f
}

// answer appends an Answer. The reply of a held run has no status.
func (e *encoder) answer(a Answer) {
	e.Int(int64(a.HeldUntil))
	e.Bool(a.Durable)
	if a.HeldUntil == 0 {
		e.Reply(a.Reply)
		return
	}
	e.CallID(a.Reply.Call)
	e.CallID(a.Reply.Run)
}

func (d *decoder) answer() Answer {
	a := Answer{HeldUntil: actor.Time(d.Int()), Durable: d.Bool()}
	if a.HeldUntil == 0 {
		a.Reply = d.Reply()
	} else {
		a.Reply = actor.Reply{Call: d.CallID(), Run: d.CallID()}
	}
	return a
}
