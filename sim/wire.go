// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// wire is the connection of one try, seen from who answers: bytes go in, and
// come out at the node in order, some time later, in pieces of any size. What
// the faults do to them they do here.
type wire struct {
	x       *exchange
	try     int
	kinds   *streamFaults
	sent    int        // bytes of the body
	arrives actor.Time // when the last thing that was sent does
	over    bool       // no more is sent
	closed  bool       // the node has given it up
	deaf    bool       // and still hears what comes
	late    Fault      // why
	split   bool       // into pieces as small as they can be

	half, hang, garbage int // at which byte of the body; never: not
}

const never = -1

// streamFaults are those that may befall an answer on its way, as its kind of
// answerer calls them.
type streamFaults struct{ half, hang, garbage, reset Fault }

var (
	modelFaults = streamFaults{ModelHalfStream, ModelHang, ModelGarbage, ModelReset}
	agentFaults = streamFaults{AgentHalfStream, AgentHang, AgentGarbage, AgentReset}
)

// String says who answers whom.
func (s *wire) String() string {
	return fmt.Sprintf("the answer to %s, try %d, for run %s", s.x.call.To, s.try, s.x.id.Run.Short())
}

// befall decides what happens to the answer, somewhere in its first bytes.
func (s *wire) befall(kinds *streamFaults, bytes int) {
	w := s.x.n.w
	s.kinds = kinds
	for _, f := range [...]struct {
		fault Fault
		at    *int
	}{{kinds.half, &s.half}, {kinds.hang, &s.hang}, {kinds.garbage, &s.garbage}} {
		if w.fault(f.fault) {
			*f.at = w.choose.Int(max(bytes, 1))
		}
	}
}

// resets tells whether the connection breaks before anything came over it, and
// whether the request has left by then.
func (s *wire) resets(kinds *streamFaults) (breaks, left bool) {
	w := s.x.n.w
	if !w.fault(kinds.reset) {
		return false, false
	}
	left = w.choose.Int(2) == 0
	s.lose(w.between(time.Millisecond, 200*time.Millisecond), kinds.reset, left, "reset by peer")
	return true, left
}

// deliver has something come to the node, behind all that was sent before.
func (s *wire) deliver(after time.Duration, f Fault, in upstream.Input) {
	x, w := s.x, s.x.n.w
	if !s.alive() {
		return
	}
	s.arrives = max(s.arrives, w.now.Add(after))
	x.n.later(s.arrives.Sub(w.now), func() {
		if s.closed && !s.deaf {
			return
		}
		if f != noFault {
			w.hit(f, "%s: %s", s, describe(in))
		}
		x.take(s, in)
	})
}

// alive tells whether the process that asked is still there.
func (s *wire) alive() bool {
	n := s.x.n
	return n.up && n.process == s.x.process && (!s.closed || s.deaf)
}

func describe(in upstream.Input) string {
	switch in := in.(type) {
	case upstream.Head:
		return "status " + strconv.Itoa(in.Status)
	case upstream.Bytes:
		return fmt.Sprintf("%.60q", in.Bytes)
	case upstream.End:
		return "its end"
	case upstream.Loss:
		return in.Detail
	}
	return fmt.Sprintf("%T", in)
}

func (s *wire) head(after time.Duration, f Fault, status int, headers ...upstream.Header) {
	s.deliver(after, f, upstream.Head{Attempt: s.try, Status: status, Headers: headers})
}

// streams begins an answer of events.
func (s *wire) streams(after time.Duration) {
	s.head(after, noFault, 200, upstream.Header{Name: "content-type", Value: "text/event-stream"})
}

// fails answers with a status and an error in the words of the API.
func (s *wire) fails(after time.Duration, f Fault, status int, kind string, headers ...upstream.Header) {
	s.head(after, f, status, append(headers, upstream.Header{Name: "content-type", Value: "application/json"})...)
	s.deliver(0, noFault, upstream.Bytes{Attempt: s.try, Bytes: fmt.Appendf(nil, `{"error":{"message":"as it was told to","type":%q}}`, kind)})
	s.end(0, noFault)
}

// lose breaks the connection.
func (s *wire) lose(after time.Duration, f Fault, left bool, detail string) {
	s.deliver(after, f, upstream.Loss{Attempt: s.try, Sent: left, Detail: detail})
	s.over = true
}

// astray is the connection that a node does not make.
func (s *wire) astray(why error) {
	s.deliver(0, NameAstray, upstream.Loss{Attempt: s.try, Final: true, Detail: why.Error()})
	s.over = true
}

// end is the end of the body, as it should be.
func (s *wire) end(after time.Duration, f Fault) {
	if !s.over {
		s.deliver(after, f, upstream.End{Attempt: s.try})
		s.over = true
	}
}

// write sends the next bytes of the body, as far as nothing befalls them. With a
// fault, it is by them that it shows.
func (s *wire) write(after time.Duration, f Fault, b []byte) {
	if s.over || len(b) == 0 {
		return
	}
	begin, end := s.sent, s.sent+len(b)
	s.sent = end
	within := func(at int) bool { return at >= begin && at < end }
	if within(s.garbage) {
		b, f = s.spoil(b, s.garbage-begin), s.kinds.garbage
	}
	switch w := s.x.n.w; {
	case within(s.half):
		s.carry(after, f, b[:s.half-begin])
		if s.over = true; w.choose.Int(2) == 0 {
			s.deliver(0, s.kinds.half, upstream.End{Attempt: s.try})
		} else {
			s.lose(0, s.kinds.half, true, "it breaks in the middle")
		}
	case within(s.hang):
		s.carry(after, f, b[:s.hang-begin])
		s.over = true
		s.hit(s.kinds.hang, "it stops in the middle and keeps the line open")
	default:
		s.carry(after, f, b)
	}
}

// hit says of a fault that nothing shows what it did: what does not come.
func (s *wire) hit(f Fault, how string) {
	if s.alive() {
		s.x.n.w.hit(f, "%s: %s", s, how)
	}
}

// garbages is what no event stream holds, or none of ours.
var garbages = [...]string{
	"\x00\xff\xfe", "}{", "\n\ndata: {\"choices\":[{\n\n", "\n\nevent: delta\ndata: nonsense\n\n", "data:",
	"\r\r\n\n: ?\n\ndata: []\n\n",
	"\n\ndata: {\"choices\":[{\"index\":7,\"delta\":{\"content\":\"another's\"}}]}\n\n",
	"\n\nevent: error\ndata: {\"error\":{\"message\":\"it broke\",\"type\":\"overloaded_error\"}}\n\n",
	"\n\ndata: {\"error\":\"it broke\"}\n\n",
	"\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":-1}}\n\n",
	"\n\ndata: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":-1}]}}]}\n\n",
	"\n\ndata: {\"choices\":[{\"finish_reason\":\"stop\"},{\"finish_reason\":\"length\"}]}\n\n", "\n\nevent: state\ndata: {}\n\n",
	"\n\nevent: delta\ndata: {}\n\n",
	chunk(`{"choices":[{"finish_reason":"stop","delta":{}}]}`, `{"choices":[{"delta":{"content":"more"}}]}`),
	chunk(`{"choices":[{"delta":{"tool_calls":[{"index":5,"id":"a","function":{"name":"x"}}]}}]}`),
	chunk(`{"choices":[{"delta":{"tool_calls":[{"index":99}]}}]}`),
	chunk(`{"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"clock"}},{"function":{"arguments":"{}"}}]}}]}`),
	chunk(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a"}]}}]}`, `{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"b"}]}}]}`),
	chunk(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"clock"}},{"index":1,"id":"a","function":{"name":"clock"}}]},"finish_reason":"tool_calls"}]}`, "[DONE]"),
	chunk(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"clock","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`, "[DONE]"),
	chunk(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"` + strings.Repeat("a", 1<<12) + `"}]}}]}`),
	chunk(`{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":9e18}}`), chunk(strings.Repeat("[", 200)),
	chunk(`{"error":{"type":"invalid_request_error","message":"a\u0000b"}}`), chunk(`{"error":null}`),
	"\n\nevent: error\ndata: nonsense\n\n", "\n\nevent: error\ndata: {\"code\":7,\"message\":[]}\n\n", "\n\ndata: a\ndata: b\n\n",
	"\n\ndata: " + strings.Repeat("long ", 1<<19) + "\n\n", "\n\n" + strings.Repeat("data: long\n", 1<<16),
	"\n\nevent: state\ndata: {\"state\":\"a\",\"detail\":null}\n\n",
	"\n\nevent: state\ndata: {\"state\":\"a\",\"detail\":\"" + strings.Repeat("d", 1<<17) + "\"}\n\n", "\n\nevent: done\ndata: []\n\n",
	"\n\nevent: delta\ndata: {\"text\":null}\n\n",
	"\n\nretry: 99999999999999999999\n\n", "\n\nid: a\x00b\n\n", "\n\nevent: done\ndata: {\"usage\":{\"tokens\":-1}}\n\n",
	"\n\nevent: delta\ndata: {\"text\":\"a\",\"run_id\":\"another\"}\n\n", "\n\nid: 7\nretry: 10\n\n",
}

// chunk is what a model says, as it streams it.
func chunk(data ...string) string {
	return "\n\ndata: " + strings.Join(data, "\n\ndata: ") + "\n\n"
}

// spoil puts garbage between two bytes.
func (s *wire) spoil(b []byte, at int) []byte {
	what := garbages[s.x.n.w.choose.Int(len(garbages))]
	return append(append(append([]byte(nil), b[:at]...), what...), b[at:]...)
}

// carry sends bytes in one piece, or in many: cut anywhere, inside a character
// and a line end too.
func (s *wire) carry(after time.Duration, f Fault, b []byte) {
	w := s.x.n.w
	if !s.split {
		if len(b) > 0 {
			s.deliver(after, f, upstream.Bytes{Attempt: s.try, Bytes: b})
		}
		return
	}
	single := w.choose.Int(len(b) + 1) // from here on, some bytes come one by one
	for i, piece := range [...][]byte{b[:single], b[single:min(single+splitMax, len(b))], b[min(single+splitMax, len(b)):]} {
		step := max(len(piece), 1)
		if i == 1 {
			step = 1
		}
		for ; len(piece) > 0; piece = piece[step:] {
			kind := f
			if s.split && i > 0 && f == noFault {
				kind, s.split = ModelSplit, false // once an answer, at one place
			}
			s.deliver(after, kind, upstream.Bytes{Attempt: s.try, Bytes: bytes.Clone(piece[:step])})
			after, f = time.Millisecond, noFault
		}
	}
}

// splitMax is how many bytes of an answer come one by one.
const splitMax = 16
