// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"math/rand/v2"
)

// Chooser decides whatever the world leaves open.
type Chooser interface {
	// Int answers 0 <= i < n. 0 is the benign answer: the oldest event, the
	// least delay, no fault.
	Int(n int) int
}

// Drawn chooses by a seed, and keeps what it chose.
type Drawn struct {
	pcg *rand.PCG
	Log []uint32
}

// NewDrawn returns the chooser of a seed.
func NewDrawn(seed uint64) *Drawn { return &Drawn{pcg: rand.NewPCG(seed, 0x7472_6f75_7065)} }

// Int implements Chooser.
func (d *Drawn) Int(n int) int {
	i := uint32(d.pcg.Uint64() >> 32 * uint64(n) >> 32)
	d.Log = append(d.Log, i)
	return int(i)
}

// Replayed chooses as a log says, and past its end what is benign.
type Replayed struct {
	log  []uint32
	Used int // how many choices were asked for
}

// NewReplayed returns the chooser of a choice log.
func NewReplayed(log []uint32) *Replayed { return &Replayed{log: log} }

// Int implements Chooser. A choice that is too great for n, as a shrunk log may
// have them, is cut to it.
func (r *Replayed) Int(n int) int {
	i := 0
	if r.Used < len(r.log) {
		i = min(int(r.log[r.Used]), n-1)
	}
	r.Used++
	return i
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
