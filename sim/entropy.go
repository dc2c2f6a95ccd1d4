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

// Entropy decides whatever the world leaves open. It does so in streams, of which
// one counts at a time: a choice more in one changes nothing in the others.
type Entropy interface {
	// Int answers 0 <= i < n. 0 is the benign answer: the oldest event, the
	// least delay, no fault.
	Int(n int) int
	// Recorded is a choice that the world makes out of what has happened so far: v, or
	// what it was in the world that is told again, where less happens.
	Recorded(v int) int
	// SetStream has another stream count from now on.
	SetStream(to StreamID)
}

// StreamID names a stream: what it is about, and whose it is; and above these two
// on whose account it is asked, the stream of who came or of a strike. So all that
// was chosen on account of somebody can be left out with them, and what was chosen
// on account of others stays theirs.
type StreamID uint64

// What streams are about.
const (
	topicPlan StreamID = iota << 24 // each part of it
	topicWorld
	topicFault     // each kind
	topicArrival   // each who comes
	topicCell      // each: its order of things
	topicDisk      // each node's
	topicLink      // each, one way
	topicUpstream  // who stands behind each node
	topicLease     // each node's
	topicReader    // each who reads a stream
	topicFailpoint // each place
	topicRegistry  // who has the registry do things
	topicAudit     // what an audit looks at

	topicMask = 0xff << 24
	ownerMask = 1<<24 - 1

	causeShift = 32
	causeMask  = 0xffff_ffff << causeShift
)

// cause is on whose account a stream is; 0: on nobody's.
func (id StreamID) cause() StreamID { return id >> causeShift }

// withCause is the stream on somebody's account.
func (id StreamID) withCause(account StreamID) StreamID {
	return id&^causeMask | account<<causeShift
}

var topicNames = [...]string{"plan", "world", "fault", "arrival", "cell", "disk", "link", "outside", "lease", "reader", "rare", "clerk", "audit"}

// String is as fault.17, or fault.17 for arrival.3.
func (id StreamID) String() string {
	text := topicNames[id&topicMask>>24] + "." + strconv.Itoa(int(id&ownerMask))
	if account := id.cause(); account != 0 {
		text += " for " + account.String()
	}
	return text
}

func parseStreamID(text string) (id StreamID, err error) {
	self, account, is := strings.Cut(text, " for ")
	about, no, _ := strings.Cut(self, ".")
	i := slices.Index(topicNames[:], about)
	n, err := strconv.ParseUint(no, 10, 24)
	if i < 0 || err != nil {
		return 0, fmt.Errorf("stream %.40q: want one of %s, a dot and a number", text, strings.Join(topicNames[:], ", "))
	}
	if id = StreamID(i)<<24 | StreamID(n); is {
		var of StreamID
		if of, err = parseStreamID(account); err == nil && of.cause() != 0 {
			err = fmt.Errorf("stream %.80q: want one account", text)
		}
		id = id.withCause(of)
	}
	return id, err
}

// Choices are all that were made, by stream.
type Choices []Stream

// Stream is the choices of one.
type Stream struct {
	ID  StreamID
	Log []uint32
}

// SeededEntropy chooses by a seed, and keeps what it chose. On whose account it is asked
// changes nothing of that.
type SeededEntropy struct {
	seed    uint64
	streams map[StreamID]*seededStream
	ordered []*seededStream
	current *seededStream
	cause   StreamID
}

type seededStream struct {
	id    StreamID
	log   []uint32
	spans []causeSpan
	pcg   *rand.PCG
}

// causeSpan is what was chosen on one account, from so many on.
type causeSpan struct {
	cause StreamID
	from  int
}

// NewSeededEntropy returns the chooser of a seed.
func NewSeededEntropy(seed uint64) *SeededEntropy {
	d := &SeededEntropy{seed: seed, streams: map[StreamID]*seededStream{}}
	d.SetStream(topicPlan)
	return d
}

// SetStream implements Chooser. The parts of the plan come out of one source, one
// after the other: dividing it otherwise changes no seed.
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

// Int implements Chooser.
func (d *SeededEntropy) Int(n int) int {
	return d.Recorded(int(d.current.pcg.Uint64() >> 32 * uint64(n) >> 32))
}

// Recorded implements Chooser.
func (d *SeededEntropy) Recorded(v int) int {
	s := d.current
	if last := len(s.spans) - 1; last < 0 || s.spans[last].cause != d.cause {
		s.spans = append(s.spans, causeSpan{d.cause, len(s.log)})
	}
	s.log = append(s.log, uint32(v))
	return v
}

// Choices are those that it made, in the order in which their streams began.
func (d *SeededEntropy) Choices() (all Choices) {
	for _, s := range d.ordered {
		if len(s.spans) == 1 {
			all = append(all, Stream{s.id.withCause(s.spans[0].cause), s.log})
			continue
		}
		at := map[StreamID]int{}
		for i, part := range s.spans {
			end := len(s.log)
			if i+1 < len(s.spans) {
				end = s.spans[i+1].from
			}
			id := s.id.withCause(part.cause)
			if _, is := at[id]; !is {
				at[id] = len(all)
				all = append(all, Stream{ID: id})
			}
			log := &all[at[id]].Log
			*log = append(*log, s.log[part.from:end]...)
		}
	}
	return all
}

// ReplayedEntropy chooses as logs say, and past the end of each what is benign.
type ReplayedEntropy struct {
	streams map[StreamID]*replayedStream
	current *replayedStream
}

type replayedStream struct {
	log       []uint32
	requested int // how many choices were asked for
}

// NewReplayedEntropy returns the chooser of choices that were made.
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

// SetStream implements Chooser.
func (r *ReplayedEntropy) SetStream(to StreamID) {
	r.current = r.streams[to]
}

// Int implements Chooser. A choice that is too great for n, as a shrunk log may
// have them, is cut to it.
func (r *ReplayedEntropy) Int(n int) int { return min(r.Recorded(0), n-1) }

// Recorded implements Chooser.
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

// trimmed is the choices without those that nobody asked for, and without zeros at the ends.
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

// mix makes a seed of two (splitmix64): streams that have nothing to do with
// each other.
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
