// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// upstreamConn is the connection of one attempt, from the server's side. Bytes
// written to it arrive at the node in order, after a delay, in pieces of any size.
// Stream faults are injected here.
type upstreamConn struct {
	exchange          *exchange
	attempt           int
	request           upstream.Request
	served            served
	faults            *streamFaults
	bodyBytes         int        // number of body bytes written
	lastArrival       actor.Time // arrival time of the last input sent
	finished          bool       // the server sends no more
	closed            bool       // the node has closed the connection
	deliverAfterClose bool       // inputs are delivered even after the node has closed the connection
	lateFault         Fault      // fault that delays the response, or noFault
	altered           Fault      // fault that altered the answer of the server, until it is counted; else noFault
	splitPieces       bool       // part of the body is sent in single bytes
	discarded         bool       // nothing is delivered: a fault without effect writes to this connection
	plain             plainResponse
	received          int  // number of body bytes delivered
	diverged          bool // an input was delivered that the plain response does not have there

	truncateAt, hangAt, garbageAt int // fault positions as body offsets; noOffset: no fault
}

const noOffset = -1

// plainResponse is the response of the server without faults. Faults of the response are
// counted where the delivered inputs differ from it.
type plainResponse struct {
	head    upstream.Head
	headDue actor.Time // arrival of the head
	body    []byte     // the part that the server has produced
	ends    []int      // offsets in the body at which the server's writes end
}

// newUpstreamConn returns the connection of an attempt.
func newUpstreamConn(x *exchange, op upstream.Send) *upstreamConn {
	return &upstreamConn{exchange: x, attempt: op.Attempt, request: op.Request, lateFault: noFault, altered: noFault, truncateAt: noOffset, hangAt: noOffset, garbageAt: noOffset,
		plain: plainResponse{head: upstream.Head{Attempt: op.Attempt, Status: 200, Headers: eventStreamHeaders}}}
}

// eventStreamHeaders are the headers of a response that is an event stream.
var eventStreamHeaders = headerList("content-type", "text/event-stream")

// compare compares a delivered input with the plain response.
func (s *upstreamConn) compare(in upstream.Input) {
	switch in := in.(type) {
	case upstream.Head:
		s.diverged = s.diverged || in.Status != s.plain.head.Status || !slices.Equal(in.Headers, s.plain.head.Headers)
	case upstream.Bytes:
		s.received += len(in.Bytes)
		s.diverged = s.diverged || s.received > len(s.plain.body) || !bytes.Equal(in.Bytes, s.plain.body[s.received-len(in.Bytes):s.received])
	case upstream.End:
		s.diverged = s.diverged || s.received != len(s.plain.body)
	default: // the plain response loses no connection
		s.diverged = true
	}
}

// replaceResponse has fault f respond in place of the server. It reports whether the
// node receives that response. If f has no effect, it is written to a connection that
// delivers nothing.
func (s *upstreamConn) replaceResponse(f Fault, respond func(*upstreamConn)) bool {
	if s.exchange.n.w.acts(f) {
		respond(s)
		return true
	}
	discarded := *s
	discarded.discarded = true
	respond(&discarded)
	return false
}

// streamFaults are the stream faults of one kind of server.
type streamFaults struct{ truncate, hang, garbage, reset Fault }

var (
	modelStreamFaults = streamFaults{ModelHalfStream, ModelHang, ModelGarbage, ModelReset}
	agentStreamFaults = streamFaults{AgentHalfStream, AgentHang, AgentGarbage, AgentReset}
)

// String names the attempt, the run, and the actor that receives the answer.
func (s *upstreamConn) String() string {
	return fmt.Sprintf("answer to %s, attempt %d, run %s", s.exchange.call.To, s.attempt, s.exchange.id.Run.Short())
}

// drawStreamFaults draws the faults of the answer, at offsets below size.
func (s *upstreamConn) drawStreamFaults(faults *streamFaults, size int) {
	w := s.exchange.n.w
	s.faults = faults
	for _, f := range [...]struct {
		fault Fault
		at    *int
	}{{faults.truncate, &s.truncateAt}, {faults.hang, &s.hangAt}, {faults.garbage, &s.garbageAt}} {
		if w.faultFires(f.fault) {
			*f.at = w.entropy.Int(max(size, 1))
		}
	}
}

// drawReset draws whether the connection is reset before any answer, and whether the
// request was sent before the reset.
func (s *upstreamConn) drawReset(faults *streamFaults) (reset, sent bool) {
	w := s.exchange.n.w
	if !w.faultFires(faults.reset) {
		return false, false
	}
	sent = w.entropy.Int(2) == 0
	reset = s.replaceResponse(faults.reset, func(s *upstreamConn) {
		s.breakConnection(w.between(time.Millisecond, 200*time.Millisecond), faults.reset, sent, "reset by peer")
	})
	return reset, reset && sent
}

// delayHead has fault f delay the head of the response, which otherwise arrives after the
// given delay. The node receives the response even if it has closed the connection. It
// returns the delay of the head.
func (s *upstreamConn) delayHead(f Fault, delay, extra time.Duration) time.Duration {
	s.deliverAfterClose, s.lateFault = true, f
	return delay + s.exchange.n.w.extraDelay(f, extra)
}

// deliver schedules an input for the node, after all inputs sent before it.
func (s *upstreamConn) deliver(after time.Duration, f Fault, in upstream.Input) {
	exchange, w := s.exchange, s.exchange.n.w
	if !s.receiving() {
		return
	}
	s.lastArrival = max(s.lastArrival, w.now.Add(after))
	exchange.n.after(s.lastArrival.Sub(w.now), func() {
		if s.closed && !s.deliverAfterClose {
			return
		}
		if _, head := in.(upstream.Head); head {
			recordChange(w, s.lateFault, s.plain.headDue, w.now, "%s arrives %v late", s, w.now.Sub(s.plain.headDue))
		}
		s.compare(in)
		if recordChange(w, s.altered, false, s.diverged, "%s: %s", s, describedInput{in}) {
			s.altered = noFault
		}
		if f == ModelSplit {
			recordChange(w, f, true, slices.Contains(s.plain.ends, s.received), "%s: %s", s, describedInput{in})
		} else {
			recordChange(w, f, false, s.diverged, "%s: %s", s, describedInput{in})
		}
		exchange.receive(s, in)
	})
}

// receiving reports whether the requesting process is still running and receives
// inputs.
func (s *upstreamConn) receiving() bool {
	n := s.exchange.n
	return !s.discarded && n.up && n.process == s.exchange.process && (!s.closed || s.deliverAfterClose)
}

// describedInput describes an input when it is printed.
type describedInput struct{ upstream.Input }

func (d describedInput) String() string {
	switch in := d.Input.(type) {
	case upstream.Head:
		return "status " + strconv.Itoa(in.Status)
	case upstream.Bytes:
		return fmt.Sprintf("%.60q", in.Bytes)
	case upstream.End:
		return "end of the body"
	case upstream.Loss:
		return in.Detail
	}
	return fmt.Sprintf("%T", d.Input)
}

func (s *upstreamConn) sendHead(after time.Duration, f Fault, status int, headers ...upstream.Header) {
	s.deliver(after, f, upstream.Head{Attempt: s.attempt, Status: status, Headers: headers})
}

// startEventStream begins an answer that is an event stream.
func (s *upstreamConn) startEventStream(after time.Duration) {
	s.sendHead(after, noFault, 200, eventStreamHeaders...)
}

// respondError answers with a status and an error body of the API.
func (s *upstreamConn) respondError(after time.Duration, f Fault, status int, kind string, headers ...upstream.Header) {
	s.served.verdict = &rejecting // a server without permission for this request
	s.sendHead(after, f, status, append(headers, upstream.Header{Name: "content-type", Value: "application/json"})...)
	s.deliver(0, noFault, upstream.Bytes{Attempt: s.attempt, Bytes: fmt.Appendf(nil, `{"error":{"message":"injected error","type":%q}}`, kind)})
	s.endBody(0, noFault)
}

// breakConnection breaks the connection.
func (s *upstreamConn) breakConnection(after time.Duration, f Fault, sent bool, detail string) {
	s.deliver(after, f, upstream.Loss{Attempt: s.attempt, Sent: sent, Detail: detail})
	s.finished = true
}

// refuseDial reports to the node that the egress policy refused the connection.
func (s *upstreamConn) refuseDial(why error) {
	s.deliver(0, NameAstray, upstream.Loss{Attempt: s.attempt, Final: true, Detail: why.Error()})
	s.finished = true
}

// endBody ends the body regularly.
func (s *upstreamConn) endBody(after time.Duration, f Fault) {
	if !s.finished {
		s.deliver(after, f, upstream.End{Attempt: s.attempt})
		s.finished = true
	}
}

// writeBody sends the next bytes of the body and applies the stream faults within
// them. If f is a fault, it is recorded when these bytes arrive.
func (s *upstreamConn) writeBody(after time.Duration, f Fault, b []byte) {
	if s.finished || len(b) == 0 {
		return
	}
	w := s.exchange.n.w
	begin, end := s.bodyBytes, s.bodyBytes+len(b)
	s.bodyBytes = end
	s.plain.ends = append(s.plain.ends, end)
	within := func(at int) bool { return at >= begin && at < end }
	if within(s.garbageAt) {
		s.served.forged = w.acts(s.faults.garbage)
		b, f = s.insertGarbage(b, s.garbageAt-begin), s.faults.garbage
	}
	switch {
	case within(s.truncateAt) && w.acts(s.faults.truncate):
		at := s.truncateAt - begin
		if w.doses[s.faults.truncate] == HalfDose { // one byte is missing
			s.served.forged = true
			s.sendPieces(after, s.faults.truncate, slices.Delete(bytes.Clone(b), at, at+1))
			return
		}
		s.served.cut = true
		s.sendPieces(after, f, b[:at])
		if s.finished = true; w.entropy.Int(2) == 0 {
			s.deliver(0, s.faults.truncate, upstream.End{Attempt: s.attempt})
		} else {
			s.deliver(0, s.faults.truncate, upstream.Loss{Attempt: s.attempt, Sent: true, Detail: "connection lost in the middle of the body"})
		}
	case within(s.hangAt):
		s.sendPieces(after, f, b[:s.hangAt-begin])
		s.hang(max(s.lastArrival, w.now.Add(after)), b[s.hangAt-begin:], end)
	default:
		s.sendPieces(after, f, b)
	}
}

// hang withholds the bytes that are due then, and all later ones. The written bytes end at
// an offset of the body. The fault counts if the node waits for them at that time.
func (s *upstreamConn) hang(due actor.Time, rest []byte, end int) {
	w, f := s.exchange.n.w, s.faults.hang
	if s.finished = w.doses[f] == WholeDose; s.finished {
		s.served.cut = true
	} else {
		s.sendPieces(due.Sub(w.now)+w.extraDelay(f, time.Millisecond), noFault, rest)
	}
	s.exchange.n.after(due.Sub(w.now), func() {
		if s.receiving() {
			recordChange(w, f, end, s.received, "%s: the body stalls and the connection stays open", s)
		}
	})
}

// garbageSamples are invalid event streams, and valid ones that this API never sends.
var garbageSamples = [...]string{
	"\x00\xff\xfe", "}{", "\n\ndata: {\"choices\":[{\n\n", "\n\nevent: delta\ndata: nonsense\n\n", "data:",
	"\r\r\n\n: ?\n\ndata: []\n\n",
	"\n\ndata: {\"choices\":[{\"index\":7,\"delta\":{\"content\":\"another's\"}}]}\n\n",
	"\n\nevent: error\ndata: {\"error\":{\"message\":\"it broke\",\"type\":\"overloaded_error\"}}\n\n",
	"\n\ndata: {\"error\":\"it broke\"}\n\n",
	"\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":-1}}\n\n",
	"\n\ndata: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":-1}]}}]}\n\n",
	"\n\ndata: {\"choices\":[{\"finish_reason\":\"stop\"},{\"finish_reason\":\"length\"}]}\n\n", "\n\nevent: state\ndata: {}\n\n",
	"\n\nevent: delta\ndata: {}\n\n",
	modelFrames(`{"choices":[{"finish_reason":"stop","delta":{}}]}`, `{"choices":[{"delta":{"content":"more"}}]}`),
	modelFrames(`{"choices":[{"delta":{"tool_calls":[{"index":5,"id":"a","function":{"name":"x"}}]}}]}`),
	modelFrames(`{"choices":[{"delta":{"tool_calls":[{"index":99}]}}]}`),
	modelFrames(`{"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"clock"}},{"function":{"arguments":"{}"}}]}}]}`),
	modelFrames(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a"}]}}]}`, `{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"b"}]}}]}`),
	modelFrames(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"clock"}},{"index":1,"id":"a","function":{"name":"clock"}}]},"finish_reason":"tool_calls"}]}`, "[DONE]"),
	modelFrames(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"clock","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`, "[DONE]"),
	modelFrames(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"` + strings.Repeat("a", 1<<12) + `"}]}}]}`),
	modelFrames(`{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":9e18}}`), modelFrames(strings.Repeat("[", 200)),
	modelFrames(`{"error":{"type":"invalid_request_error","message":"a\u0000b"}}`), modelFrames(`{"error":null}`),
	"\n\nevent: error\ndata: nonsense\n\n", "\n\nevent: error\ndata: {\"code\":7,\"message\":[]}\n\n", "\n\ndata: a\ndata: b\n\n",
	"\n\ndata: " + strings.Repeat("long ", 1<<19) + "\n\n", "\n\n" + strings.Repeat("data: long\n", 1<<16),
	"\n\nevent: state\ndata: {\"state\":\"a\",\"detail\":null}\n\n",
	"\n\nevent: state\ndata: {\"state\":\"a\",\"detail\":\"" + strings.Repeat("d", 1<<17) + "\"}\n\n", "\n\nevent: done\ndata: []\n\n",
	"\n\nevent: delta\ndata: {\"text\":null}\n\n",
	"\n\nretry: 99999999999999999999\n\n", "\n\nid: a\x00b\n\n", "\n\nevent: done\ndata: {\"usage\":{\"tokens\":-1}}\n\n",
	"\n\nevent: delta\ndata: {\"text\":\"a\",\"run_id\":\"another\"}\n\n", "\n\nid: 7\nretry: 10\n\n",
}

// modelFrames formats data as frames of a model's event stream.
func modelFrames(data ...string) string {
	return "\n\ndata: " + strings.Join(data, "\n\ndata: ") + "\n\n"
}

// insertGarbage inserts a garbage sample at an offset.
func (s *upstreamConn) insertGarbage(b []byte, at int) []byte {
	w := s.exchange.n.w
	garbage := garbageSamples[w.entropy.Int(len(garbageSamples))]
	garbage = garbage[:w.affectedCount(s.faults.garbage, len(garbage))]
	return append(append(append([]byte(nil), b[:at]...), garbage...), b[at:]...)
}

// sendPieces sends bytes as one piece, or split at arbitrary offsets, which may lie
// within a character or a line end.
func (s *upstreamConn) sendPieces(after time.Duration, f Fault, b []byte) {
	w := s.exchange.n.w
	if !s.splitPieces {
		s.sendPiece(after, f, b)
		return
	}
	single := w.entropy.Int(len(b) + 1) // offset at which the single-byte pieces begin
	end := min(single+w.affectedCount(ModelSplit, singleBytePiecesMax), len(b))
	if end == single {
		s.sendPiece(after, f, b)
		return
	}
	if f == noFault {
		f, s.splitPieces = ModelSplit, false // at most one split per answer
	}
	from := 0
	for to := single; from < len(b); to++ {
		if to > end {
			to = len(b)
		}
		if to > from {
			s.sendPiece(after, f, b[from:to])
			from, after, f = to, time.Millisecond, noFault
		}
	}
}

// sendPiece sends bytes as one piece.
func (s *upstreamConn) sendPiece(after time.Duration, f Fault, b []byte) {
	if len(b) > 0 {
		s.deliver(after, f, upstream.Bytes{Attempt: s.attempt, Bytes: bytes.Clone(b)})
	}
}

// singleBytePiecesMax is the maximum number of single-byte pieces per answer.
const singleBytePiecesMax = 16
