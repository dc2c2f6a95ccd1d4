// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
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

// EncodeChoices writes a choice log: a line of text that says of which seed it
// is, then one number a line; n zeros in a row are written as 0*n.
func EncodeChoices(seed uint64, log []uint32) []byte {
	b := fmt.Appendf(nil, "troupe choices 1 seed %d\n", seed)
	for i := 0; i < len(log); {
		zeros := 0
		for i+zeros < len(log) && log[i+zeros] == 0 {
			zeros++
		}
		switch {
		case zeros > 1:
			b = fmt.Appendf(b, "0*%d\n", zeros)
			i += zeros
		default:
			b = append(strconv.AppendUint(b, uint64(log[i]), 10), '\n')
			i++
		}
	}
	return b
}

// ChoicesMax bounds a choice log that is read.
const ChoicesMax = 1 << 24

// DecodeChoices reads what EncodeChoices wrote.
func DecodeChoices(text []byte) (seed uint64, log []uint32, err error) {
	head, rest, _ := strings.Cut(string(text), "\n")
	if _, err := fmt.Sscanf(head, "troupe choices 1 seed %d", &seed); err != nil {
		return 0, nil, fmt.Errorf("choices: line 1 is %.60q, want \"troupe choices 1 seed N\"", head)
	}
	no := 1
	for line := range strings.Lines(rest) {
		no++
		line = strings.TrimSuffix(line, "\n")
		count := uint64(1)
		if digits, ok := strings.CutPrefix(line, "0*"); ok {
			if count, err = strconv.ParseUint(digits, 10, 32); err != nil {
				return 0, nil, fmt.Errorf("choices: line %d is %.40q, want 0*n", no, line)
			}
			line = "0"
		}
		v, err := strconv.ParseUint(line, 10, 32)
		if err != nil {
			return 0, nil, fmt.Errorf("choices: line %d is %.40q, want a number", no, line)
		}
		if uint64(len(log))+count > ChoicesMax {
			return 0, nil, fmt.Errorf("choices: line %d: more than %d choices", no, ChoicesMax)
		}
		for range count {
			log = append(log, uint32(v))
		}
	}
	return seed, log, nil
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
