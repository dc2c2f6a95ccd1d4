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

// Chooser decides whatever the world leaves open. It does so in streams, of which
// one counts at a time: a choice more in one changes nothing in the others.
type Chooser interface {
	// Int answers 0 <= i < n. 0 is the benign answer: the oldest event, the
	// least delay, no fault.
	Int(n int) int
	// Turn has another stream count from now on.
	Turn(to StreamID)
}

// StreamID names a stream: what it is about, and whose it is.
type StreamID uint32

// What streams are about.
const (
	aboutPlan StreamID = iota << 24 // each part of it
	aboutWorld
	aboutFault   // each kind
	aboutArrival // each who comes
	aboutCell    // each: its order of things
	aboutDisk    // each node's
	aboutLink    // each, one way
	aboutOutside // who stands behind each node
	aboutLease   // each node's
	aboutReader  // each who reads a stream
	aboutRare    // each place
	aboutClerk   // who has the registry do things

	aboutMask = 0xff << 24
)

var aboutNames = [...]string{"plan", "world", "fault", "arrival", "cell", "disk", "link", "outside", "lease", "reader", "rare", "clerk"}

// String is as fault.17.
func (id StreamID) String() string {
	return aboutNames[id>>24] + "." + strconv.Itoa(int(id&^aboutMask))
}

func parseStreamID(text string) (StreamID, error) {
	about, no, _ := strings.Cut(text, ".")
	i := slices.Index(aboutNames[:], about)
	n, err := strconv.ParseUint(no, 10, 24)
	if i < 0 || err != nil {
		return 0, fmt.Errorf("stream %.40q: want one of %s, a dot and a number", text, strings.Join(aboutNames[:], ", "))
	}
	return StreamID(i)<<24 | StreamID(n), nil
}

// Choices are all that were made, by stream.
type Choices []Stream

// Stream is the choices of one.
type Stream struct {
	ID  StreamID
	Log []uint32
}

// Drawn chooses by a seed, and keeps what it chose.
type Drawn struct {
	seed    uint64
	streams map[StreamID]*drawnStream
	all     []*drawnStream
	now     *drawnStream
}

type drawnStream struct {
	Stream
	pcg *rand.PCG
}

// NewDrawn returns the chooser of a seed.
func NewDrawn(seed uint64) *Drawn {
	d := &Drawn{seed: seed, streams: map[StreamID]*drawnStream{}}
	d.Turn(aboutPlan)
	return d
}

// Turn implements Chooser. The parts of the plan come out of one source, one
// after the other: dividing it otherwise changes no seed.
func (d *Drawn) Turn(to StreamID) {
	if d.now = d.streams[to]; d.now == nil {
		d.now = &drawnStream{Stream: Stream{ID: to}}
		if plan := d.streams[aboutPlan]; plan != nil && to&aboutMask == aboutPlan {
			d.now.pcg = plan.pcg
		} else {
			d.now.pcg = rand.NewPCG(mix(d.seed, uint64(to)), 0x7472_6f75_7065)
		}
		d.streams[to] = d.now
		d.all = append(d.all, d.now)
	}
}

// Int implements Chooser.
func (d *Drawn) Int(n int) int {
	i := uint32(d.now.pcg.Uint64() >> 32 * uint64(n) >> 32)
	d.now.Log = append(d.now.Log, i)
	return int(i)
}

// Choices are those that it made, in the order in which their streams began.
func (d *Drawn) Choices() Choices {
	all := make(Choices, len(d.all))
	for i, s := range d.all {
		all[i] = s.Stream
	}
	return all
}

// Replayed chooses as logs say, and past the end of each what is benign.
type Replayed struct {
	streams map[StreamID]*replayedStream
	now     *replayedStream
}

type replayedStream struct {
	log  []uint32
	used int // how many choices were asked for
}

// NewReplayed returns the chooser of choices that were made.
func NewReplayed(choices Choices) *Replayed {
	r := &Replayed{streams: map[StreamID]*replayedStream{}}
	for _, s := range choices {
		r.streams[s.ID] = &replayedStream{log: s.Log}
	}
	r.Turn(aboutPlan)
	return r
}

// Turn implements Chooser.
func (r *Replayed) Turn(to StreamID) {
	if r.now = r.streams[to]; r.now == nil {
		r.now = &replayedStream{}
		r.streams[to] = r.now
	}
}

// Int implements Chooser. A choice that is too great for n, as a shrunk log may
// have them, is cut to it.
func (r *Replayed) Int(n int) int {
	s := r.now
	i := 0
	if s.used < len(s.log) {
		i = min(int(s.log[s.used]), n-1)
	}
	s.used++
	return i
}

// used is the choices without those that nobody asked for, and without zeros at the ends.
func (r *Replayed) used(choices Choices) (all Choices) {
	for _, s := range choices {
		log := s.Log[:min(len(s.Log), r.streams[s.ID].used)]
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
