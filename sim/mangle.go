// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// codec is one of the forms in which things are written, to be read elsewhere or
// later: what it reads it writes again in one way, and of anything else it says
// that it cannot.
type codec int

// The codecs.
const (
	frameCodec codec = iota
	entryCodec
	journalCodec
	eventCodec
	promptCodec
	completionCodec
	targetCodec
	keyCodec
	specCodec
	anchorCodec

	codecCount = int(anchorCodec) + 1
)

// codecs read what they wrote, and write what they read.
var codecs = [codecCount]struct {
	name string
	text bool // JSON
	read func([]byte) ([]byte, error)
}{
	frameCodec: {"frame", false, func(b []byte) ([]byte, error) {
		env, err := actor.Decode(b)
		return again(err, func() []byte { return actor.Encode(env) })
	}},
	entryCodec: {"entry", false, func(b []byte) ([]byte, error) {
		e, err := store.DecodeEntry(b)
		return again(err, func() []byte { return store.EncodeEntry(e) })
	}},
	journalCodec: {"snapshot", false, func(b []byte) ([]byte, error) {
		j, err := store.DecodeJournal(b)
		return again(err, func() []byte { return store.EncodeJournal(&j) })
	}},
	eventCodec: {"run event", true, func(b []byte) ([]byte, error) {
		e, err := runs.Decode(b)
		return again(err, func() []byte { return runs.Encode(e) })
	}},
	promptCodec: {"prompt", true, func(b []byte) ([]byte, error) {
		p, err := upstream.DecodePrompt(b)
		return again(err, p.Encode)
	}},
	completionCodec: {"completion", true, func(b []byte) ([]byte, error) {
		c, err := upstream.DecodeCompletion(b)
		return again(err, c.Encode)
	}},
	targetCodec: {"target", true, func(b []byte) ([]byte, error) {
		t, err := upstream.DecodeTarget(b)
		return again(err, t.Encode)
	}},
	keyCodec: {"key", true, func(b []byte) ([]byte, error) {
		k, err := ingress.DecodeKey(b)
		return again(err, k.Encode)
	}},
	specCodec: {"spec", true, func(b []byte) ([]byte, error) {
		s, err := agents.ReadJSON(b)
		return again(err, s.Encode)
	}},
	anchorCodec: {"anchor", false, func(b []byte) ([]byte, error) {
		m, slot, err := store.DecodeAnchor(b, "n1")
		return again(err, func() []byte { return anchorFile("n1", slot, m) })
	}},
}

func again(err error, write func() []byte) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return write(), nil
}

const (
	// specimensMax is how many things of each form an audit mangles, and
	// manglings how often.
	specimensMax = 8
	manglings    = 24
)

// specimens are some of what a world wrote, the last of each form.
type specimens [codecCount][][]byte

// keepSpecimen remembers what was written, for the audit.
func (w *World) keepSpecimen(c codec, b []byte) {
	if !w.audited() {
		return
	}
	if w.wrote == nil {
		w.wrote = &specimens{}
	}
	of := &w.wrote[c]
	if *of = append(*of, b); len(*of) > specimensMax {
		*of = (*of)[1:]
	}
}

// auditCodecs reads what somebody else may have written: something of ours with
// a part that is another. Who reads it says that it cannot, or reads it for
// something that it would write itself.
func (w *World) auditCodecs() {
	w.collect()
	if w.wrote == nil {
		return
	}
	for c, form := range codecs {
		of := w.wrote[c]
		for range min(len(of), 1) * manglings {
			b := of[w.choose.Int(len(of))]
			if form.text {
				b = w.mangleText(b)
			} else {
				b = w.mangle(b)
			}
			read, err := form.read(b)
			if err != nil {
				w.Stats.Sometimes[ManglingTold]++
				continue
			}
			if once, err := form.read(read); err != nil || !bytes.Equal(once, read) {
				w.violate(CodecRoundTrip, fmt.Sprintf("a %s is read, and what is written of it is read as another, %v: %q", form.name, err, b))
				return
			}
		}
	}
}

// collect takes specimens from the store.
func (w *World) collect() {
	for range min(len(w.clients), specimensMax) {
		c := w.clients[w.choose.Int(len(w.clients))]
		if saved, err := store.LoadActor(w.kv, c.to); err == nil {
			if saved.Snapshot != nil {
				w.keepSpecimen(journalCodec, saved.Snapshot)
			}
			for _, e := range saved.Entries[:min(len(saved.Entries), 2)] {
				w.keepSpecimen(entryCodec, store.EncodeEntry(e))
			}
		}
		if events, err := store.Events(w.kv, actor.DefaultTenant, c.call, uint64(w.choose.Int(8)), 4); err == nil {
			for _, e := range events {
				w.keepSpecimen(eventCodec, e.Body)
			}
		}
	}
	if w.clerk != nil {
		for _, p := range w.clerk.passes {
			w.keepSpecimen(keyCodec, p.key.Encode())
		}
	}
	mark := w.nodes[0].log.mark
	before := mark
	before.Batch = max(before.Batch, 1) - 1
	w.keepSpecimen(anchorCodec, anchorFile("n1", 1, mark))
	w.keepSpecimen(anchorCodec, anchorFile("n1", 0, mark, before))
}

// mangle makes a part of some bytes another.
func (w *World) mangle(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) == 0 {
		return b
	}
	at := w.choose.Int(len(b))
	upTo := min(len(b), at+1+w.choose.Int(16))
	switch w.choose.Int(8) {
	case 0:
		b[at] ^= 1 << w.choose.Int(8)
	case 1:
		b[at] = [...]byte{0, 1, 2, 0x7f, 0x80, 0xff}[w.choose.Int(6)]
	case 2:
		clear(b[at:upTo])
	case 3: // a number as great as there is
		b = slices.Replace(b, at, at+1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1)
	case 4:
		b = slices.Delete(b, at, upTo)
	case 5:
		b = slices.Insert(b, at, bytes.Clone(b[at:upTo])...)
	case 6:
		b = b[:at]
	case 7:
		b = append(b, byte(w.choose.Int(256)))
	}
	return b
}

// others are what stands in JSON where something else should.
var others = [...]string{"null", "0", "-1", "1.5", "7", "1e300", "9223372036854775807", "true", `""`, `"x"`, `"a b"`, `"x\u0000y"`, `"\ud800"`,
	`"2026-01-01T00:00:00.000000000Z"`, `"0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"`, `"ana/s1"`, `"a/b/c/d"`, `"/"`, "[]", "[[[]]]", "{}", `{"x":1}`, `[null]`, `["x"]`, "", "\xff"}

// mangleText makes one value of a JSON text another, or another's, or takes it away.
func (w *World) mangleText(b []byte) []byte {
	values := tokens(b)
	if len(values) == 0 || w.choose.Int(8) == 7 {
		return w.mangle(b)
	}
	at := values[w.choose.Int(len(values))]
	in := []byte(others[w.choose.Int(len(others))])
	switch w.choose.Int(4) {
	case 3:
		from := values[w.choose.Int(len(values))]
		in = b[from[0]:from[1]]
	case 2: // the values up to another one
		end := values[w.choose.Int(len(values))]
		at[1], in = max(at[1], end[0]), nil
	}
	return slices.Concat(b[:at[0]], in, b[at[1]:])
}

// tokens are the places of the names and single values in a JSON text.
func tokens(b []byte) (all [][2]int) {
	d := json.NewDecoder(bytes.NewReader(b))
	for {
		before := int(d.InputOffset())
		token, err := d.Token()
		if err != nil {
			return all
		}
		if _, bracket := token.(json.Delim); !bracket {
			end := int(d.InputOffset())
			begin := before + len(b[before:end]) - len(bytes.TrimLeft(b[before:end], " ,:\t\r\n"))
			all = append(all, [2]int{begin, end})
		}
	}
}
