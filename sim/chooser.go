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
	// Given is a choice that the world makes out of what has happened so far: v, or
	// what it was in the world that is told again, where less happens.
	Given(v int) int
	// Turn has another stream count from now on.
	Turn(to StreamID)
}

// StreamID names a stream: what it is about, and whose it is; and above these two
// on whose account it is asked, the stream of who came or of a strike. So all that
// was chosen on account of somebody can be left out with them, and what was chosen
// on account of others stays theirs.
type StreamID uint64

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
	aboutAudit   // what an audit looks at

	aboutMask = 0xff << 24
	whoseMask = 1<<24 - 1

	accountBits = 32
	accountMask = 0xffff_ffff << accountBits
)

// account is on whose account a stream is; 0: on nobody's.
func (id StreamID) account() StreamID { return id >> accountBits }

// on is the stream on somebody's account.
func (id StreamID) on(account StreamID) StreamID {
	return id&^accountMask | account<<accountBits
}

var aboutNames = [...]string{"plan", "world", "fault", "arrival", "cell", "disk", "link", "outside", "lease", "reader", "rare", "clerk", "audit"}

// String is as fault.17, or fault.17 for arrival.3.
func (id StreamID) String() string {
	text := aboutNames[id&aboutMask>>24] + "." + strconv.Itoa(int(id&whoseMask))
	if account := id.account(); account != 0 {
		text += " for " + account.String()
	}
	return text
}

func parseStreamID(text string) (id StreamID, err error) {
	self, account, is := strings.Cut(text, " for ")
	about, no, _ := strings.Cut(self, ".")
	i := slices.Index(aboutNames[:], about)
	n, err := strconv.ParseUint(no, 10, 24)
	if i < 0 || err != nil {
		return 0, fmt.Errorf("stream %.40q: want one of %s, a dot and a number", text, strings.Join(aboutNames[:], ", "))
	}
	if id = StreamID(i)<<24 | StreamID(n); is {
		var of StreamID
		if of, err = parseStreamID(account); err == nil && of.account() != 0 {
			err = fmt.Errorf("stream %.80q: want one account", text)
		}
		id = id.on(of)
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

// Drawn chooses by a seed, and keeps what it chose. On whose account it is asked
// changes nothing of that.
type Drawn struct {
	seed    uint64
	streams map[StreamID]*drawnStream
	all     []*drawnStream
	now     *drawnStream
	account StreamID
}

type drawnStream struct {
	id    StreamID
	log   []uint32
	parts []drawnPart
	pcg   *rand.PCG
}

// drawnPart is what was chosen on one account, from so many on.
type drawnPart struct {
	account StreamID
	from    int
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
	d.account = to.account()
	to = to.on(0)
	if d.now != nil && d.now.id == to {
		return
	}
	if d.now = d.streams[to]; d.now == nil {
		d.now = &drawnStream{id: to}
		if plan := d.streams[aboutPlan]; plan != nil && about(to) == aboutPlan {
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
	return d.Given(int(d.now.pcg.Uint64() >> 32 * uint64(n) >> 32))
}

// Given implements Chooser.
func (d *Drawn) Given(v int) int {
	s := d.now
	if last := len(s.parts) - 1; last < 0 || s.parts[last].account != d.account {
		s.parts = append(s.parts, drawnPart{d.account, len(s.log)})
	}
	s.log = append(s.log, uint32(v))
	return v
}

// Choices are those that it made, in the order in which their streams began.
func (d *Drawn) Choices() (all Choices) {
	for _, s := range d.all {
		if len(s.parts) == 1 {
			all = append(all, Stream{s.id.on(s.parts[0].account), s.log})
			continue
		}
		at := map[StreamID]int{}
		for i, part := range s.parts {
			end := len(s.log)
			if i+1 < len(s.parts) {
				end = s.parts[i+1].from
			}
			id := s.id.on(part.account)
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
	r := &Replayed{streams: make(map[StreamID]*replayedStream, len(choices))}
	all := make([]replayedStream, len(choices))
	for i, s := range choices {
		all[i].log = s.Log
		r.streams[s.ID] = &all[i]
	}
	r.Turn(aboutPlan)
	return r
}

// Turn implements Chooser.
func (r *Replayed) Turn(to StreamID) {
	r.now = r.streams[to]
}

// Int implements Chooser. A choice that is too great for n, as a shrunk log may
// have them, is cut to it.
func (r *Replayed) Int(n int) int { return min(r.Given(0), n-1) }

// Given implements Chooser.
func (r *Replayed) Given(int) (v int) {
	s := r.now
	if s == nil {
		return 0
	}
	if s.used < len(s.log) {
		v = int(s.log[s.used])
	}
	s.used++
	return v
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
