// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Entropy makes every choice that the simulation leaves open. Choices are drawn from
// streams, one of which is current. An additional choice in one stream changes no other
// stream.
type Entropy interface {
	// Int returns a choice i with 0 <= i < n. 0 is the benign choice: the oldest event,
	// the shortest delay, no fault.
	Int(n int) int
	// Recorded records v, which the simulation computed from its state, as a choice and
	// returns it. A replay returns the recorded value instead: in a shrunk run fewer
	// things have happened, and the computed value differs.
	Recorded(v int) int
	// SetStream makes a stream the current one.
	SetStream(to StreamID)
}

// StreamID identifies a random stream by topic, owner and cause. The cause is in the high
// bits. It is the stream of the client arrival, fault round or registry operation that
// led to the choice. The shrinker can thus drop a cause together with all choices that it
// led to, without disturbing the choices of other causes.
type StreamID uint64

// Topics of streams. The comment names the owners of the topic's streams.
const (
	topicPlan      StreamID = iota << 24 // parts of the plan
	topicWorld                           // all choices without a topic of their own; as a cause: a fault round, by its number
	topicFault                           // kinds of faults
	topicArrival                         // arrivals of clients
	topicCell                            // cells: order and delay of their inputs
	topicDisk                            // nodes
	topicLink                            // links, in one direction
	topicUpstream                        // nodes: answers of their models, tools and external agents
	topicLease                           // nodes
	topicReader                          // readers of streams
	topicFailpoint                       // failpoints
	topicRegistry                        // registry operations
	topicAudit                           // choices of audits
	topicRetention                       // clients of deleted sessions
	topicApproval                        // people who decide about tool calls, and changes of the tools
	topicOperator                        // the operator of parked runs
	topicSocket                          // clients that follow sessions

	topicMask = 0xff << 24
	ownerMask = 1<<24 - 1

	causeShift = 32
	causeMask  = 0xffff_ffff << causeShift
)

// cause returns the stream of the cause, or 0 if the stream has none.
func (id StreamID) cause() StreamID { return id >> causeShift }

// withCause returns the stream of the same topic and owner with another cause.
func (id StreamID) withCause(cause StreamID) StreamID {
	return id&^causeMask | cause<<causeShift
}

var topicNames = [...]string{"plan", "world", "fault", "arrival", "cell", "disk", "link", "outside", "lease", "reader", "rare", "clerk", "audit", "retention", "approval", "operator", "socket"}

// String formats the stream as in fault.17, or fault.17 for arrival.3 if it has a
// cause.
func (id StreamID) String() string {
	text := topicNames[id&topicMask>>24] + "." + strconv.Itoa(int(id&ownerMask))
	if cause := id.cause(); cause != 0 {
		text += " for " + cause.String()
	}
	return text
}

// parseStreamID parses the format of StreamID.String.
func parseStreamID(text string) (id StreamID, err error) {
	self, causeText, hasCause := strings.Cut(text, " for ")
	topic, owner, _ := strings.Cut(self, ".")
	i := slices.Index(topicNames[:], topic)
	n, err := strconv.ParseUint(owner, 10, 24)
	if i < 0 || err != nil {
		return 0, fmt.Errorf("stream %.40q: want one of %s, followed by a dot and a number", text, strings.Join(topicNames[:], ", "))
	}
	if id = StreamID(i)<<24 | StreamID(n); hasCause {
		var cause StreamID
		if cause, err = parseStreamID(causeText); err == nil && cause.cause() != 0 {
			err = fmt.Errorf("stream %.80q: want one cause", text)
		}
		id = id.withCause(cause)
	}
	return id, err
}

// Choices are all choices of a run, by stream.
type Choices []Stream

// Stream holds the choices of one stream, in order.
type Stream struct {
	ID  StreamID
	Log []uint32
}

// SeededEntropy draws choices from a seed, and records them. The cause of a stream does
// not influence the values drawn from it.
type SeededEntropy struct {
	seed    uint64
	streams map[StreamID]*seededStream
	ordered []*seededStream // by first use
	current *seededStream
	cause   StreamID // of the current choices
}

type seededStream struct {
	id    StreamID
	log   []uint32
	spans []causeSpan
	pcg   *rand.PCG
}

// causeSpan is a sequence of consecutive choices in a stream that have the same cause.
type causeSpan struct {
	cause StreamID
	from  int // index of its first choice
}

// NewSeededEntropy returns the entropy of a seed.
func NewSeededEntropy(seed uint64) *SeededEntropy {
	d := &SeededEntropy{seed: seed, streams: map[StreamID]*seededStream{}}
	d.SetStream(topicPlan)
	return d
}

// SetStream implements Entropy. All parts of the plan share one generator, so dividing
// the plan into other parts changes no seed.
func (d *SeededEntropy) SetStream(to StreamID) {
	d.cause = to.cause()
	to = to.withCause(0)
	if d.current != nil && d.current.id == to {
		return
	}
	if d.current = d.streams[to]; d.current == nil {
		d.current = &seededStream{id: to}
		if plan := d.streams[topicPlan]; plan != nil && topicOf(to) == topicPlan {
			d.current.pcg = plan.pcg
		} else {
			d.current.pcg = rand.NewPCG(mix(d.seed, uint64(to)), 0x7472_6f75_7065)
		}
		d.streams[to] = d.current
		d.ordered = append(d.ordered, d.current)
	}
}

// Int implements Entropy.
func (d *SeededEntropy) Int(n int) int {
	return d.Recorded(int(d.current.pcg.Uint64() >> 32 * uint64(n) >> 32))
}

// Recorded implements Entropy.
func (d *SeededEntropy) Recorded(v int) int {
	s := d.current
	if last := len(s.spans) - 1; last < 0 || s.spans[last].cause != d.cause {
		s.spans = append(s.spans, causeSpan{d.cause, len(s.log)})
	}
	s.log = append(s.log, uint32(v))
	return v
}

// Choices returns the choices made so far. Streams are ordered by first use.
func (d *SeededEntropy) Choices() (all Choices) {
	for _, s := range d.ordered {
		if len(s.spans) == 1 {
			all = append(all, Stream{s.id.withCause(s.spans[0].cause), s.log})
			continue
		}
		index := map[StreamID]int{}
		for i, span := range s.spans {
			end := len(s.log)
			if i+1 < len(s.spans) {
				end = s.spans[i+1].from
			}
			id := s.id.withCause(span.cause)
			if _, ok := index[id]; !ok {
				index[id] = len(all)
				all = append(all, Stream{ID: id})
			}
			log := &all[index[id]].Log
			*log = append(*log, s.log[span.from:end]...)
		}
	}
	return all
}

// ReplayedEntropy replays recorded choices. Past the end of a stream it makes the
// benign choice.
type ReplayedEntropy struct {
	streams map[StreamID]*replayedStream
	current *replayedStream
}

type replayedStream struct {
	log       []uint32
	requested int // number of choices requested
}

// NewReplayedEntropy returns an entropy that replays choices.
func NewReplayedEntropy(choices Choices) *ReplayedEntropy {
	r := &ReplayedEntropy{streams: make(map[StreamID]*replayedStream, len(choices))}
	all := make([]replayedStream, len(choices))
	for i, s := range choices {
		all[i].log = s.Log
		r.streams[s.ID] = &all[i]
	}
	r.SetStream(topicPlan)
	return r
}

// SetStream implements Entropy.
func (r *ReplayedEntropy) SetStream(to StreamID) {
	r.current = r.streams[to]
}

// Int implements Entropy. A recorded choice is capped at n-1, because choices of a
// shrunk run may exceed their range.
func (r *ReplayedEntropy) Int(n int) int { return min(r.Recorded(0), n-1) }

// Recorded implements Entropy.
func (r *ReplayedEntropy) Recorded(int) (v int) {
	s := r.current
	if s == nil {
		return 0
	}
	if s.requested < len(s.log) {
		v = int(s.log[s.requested])
	}
	s.requested++
	return v
}

// trimmed returns the choices that were requested, without zeros at the end of a
// stream.
func (r *ReplayedEntropy) trimmed(choices Choices) (all Choices) {
	for _, s := range choices {
		log := s.Log[:min(len(s.Log), r.streams[s.ID].requested)]
		for len(log) > 0 && log[len(log)-1] == 0 {
			log = log[:len(log)-1]
		}
		if len(log) > 0 {
			all = append(all, Stream{s.ID, log})
		}
	}
	return all
}

// mix derives a seed from two numbers with splitmix64, such that the streams of
// different seeds are unrelated.
func mix(seed, salt uint64) uint64 {
	z := seed + (salt+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func seed32(a, b uint64) (s [32]byte) {
	for i := range 4 {
		binary.LittleEndian.PutUint64(s[8*i:], mix(a, mix(b, uint64(i))))
	}
	return s
}
