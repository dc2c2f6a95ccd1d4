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
		return reencode(err, func() []byte { return actor.Encode(env) })
	}},
	entryCodec: {"entry", false, func(b []byte) ([]byte, error) {
		e, err := store.DecodeEntry(b)
		return reencode(err, func() []byte { return store.EncodeEntry(e) })
	}},
	journalCodec: {"snapshot", false, func(b []byte) ([]byte, error) {
		j, err := store.DecodeJournal(b)
		return reencode(err, func() []byte { return store.EncodeJournal(&j) })
	}},
	eventCodec: {"run event", true, func(b []byte) ([]byte, error) {
		e, err := runs.Decode(b)
		return reencode(err, func() []byte { return runs.Encode(e) })
	}},
	promptCodec: {"prompt", true, func(b []byte) ([]byte, error) {
		p, err := upstream.DecodePrompt(b)
		return reencode(err, p.Encode)
	}},
	completionCodec: {"completion", true, func(b []byte) ([]byte, error) {
		c, err := upstream.DecodeCompletion(b)
		return reencode(err, c.Encode)
	}},
	targetCodec: {"target", true, func(b []byte) ([]byte, error) {
		t, err := upstream.DecodeTarget(b)
		return reencode(err, t.Encode)
	}},
	keyCodec: {"key", true, func(b []byte) ([]byte, error) {
		k, err := ingress.DecodeKey(b)
		return reencode(err, k.Encode)
	}},
	specCodec: {"spec", true, func(b []byte) ([]byte, error) {
		s, err := agents.ReadJSON(b)
		return reencode(err, s.Encode)
	}},
	anchorCodec: {"anchor", false, func(b []byte) ([]byte, error) {
		m, slot, err := store.DecodeAnchor(b, "n1")
		return reencode(err, func() []byte { return anchorFile("n1", slot, m) })
	}},
}

func reencode(err error, write func() []byte) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return write(), nil
}

const (
	// corpusMax is how many things of each form an audit mangles, and
	// manglings how often.
	corpusMax         = 8
	mutationsPerCodec = 24
)

// corpus are some of what a world wrote, the last of each form.
type corpus [codecCount][][]byte

// addToCorpus remembers what was written, for the audit.
func (w *Simulation) addToCorpus(c codec, b []byte) {
	if !w.auditEnabled() {
		return
	}
	if w.corpus == nil {
		w.corpus = &corpus{}
	}
	of := &w.corpus[c]
	if *of = append(*of, b); len(*of) > corpusMax {
		*of = (*of)[1:]
	}
}

// auditCodecs reads what somebody else may have written: something of ours with
// a part that is another. Who reads it says that it cannot, or reads it for
// something that it would write itself.
func (w *Simulation) auditCodecs() {
	w.collectCorpus()
	if w.corpus == nil {
		return
	}
	for c, form := range codecs {
		of := w.corpus[c]
		for range min(len(of), 1) * mutationsPerCodec {
			b := of[w.entropy.Int(len(of))]
			if form.text {
				b = w.mutateJSON(b)
			} else {
				b = w.mutateBytes(b)
			}
			read, err := form.read(b)
			if err != nil {
				w.Stats.Points[MutationRejected]++
				continue
			}
			if once, err := form.read(read); err != nil || !bytes.Equal(once, read) {
				w.fail(CodecRoundTrip, fmt.Sprintf("a %s is read, and what is written of it is read as another, %v: %q", form.name, err, b))
				return
			}
		}
	}
}

// collectCorpus takes specimens from the store.
func (w *Simulation) collectCorpus() {
	for range min(len(w.clients), corpusMax) {
		c := w.clients[w.entropy.Int(len(w.clients))]
		if saved, err := store.LoadActor(w.kv, c.to); err == nil {
			if saved.Snapshot != nil {
				w.addToCorpus(journalCodec, saved.Snapshot)
			}
			for _, e := range saved.Entries[:min(len(saved.Entries), 2)] {
				w.addToCorpus(entryCodec, store.EncodeEntry(e))
			}
		}
		if events, err := store.Events(w.kv, actor.DefaultTenant, c.call, uint64(w.entropy.Int(8)), 4); err == nil {
			for _, e := range events {
				w.addToCorpus(eventCodec, e.Body)
			}
		}
	}
	if w.registryClient != nil {
		for _, p := range w.registryClient.keys {
			w.addToCorpus(keyCodec, p.record.Encode())
		}
	}
	mark := w.nodes[0].log.mark
	before := mark
	before.Batch = max(before.Batch, 1) - 1
	w.addToCorpus(anchorCodec, anchorFile("n1", 1, mark))
	w.addToCorpus(anchorCodec, anchorFile("n1", 0, mark, before))
}

// mutateBytes makes a part of some bytes another.
func (w *Simulation) mutateBytes(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) == 0 {
		return b
	}
	at := w.entropy.Int(len(b))
	upTo := min(len(b), at+1+w.entropy.Int(16))
	switch w.entropy.Int(8) {
	case 0:
		b[at] ^= 1 << w.entropy.Int(8)
	case 1:
		b[at] = [...]byte{0, 1, 2, 0x7f, 0x80, 0xff}[w.entropy.Int(6)]
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
		b = append(b, byte(w.entropy.Int(256)))
	}
	return b
}

// jsonReplacements are what stands in JSON where something else should.
var jsonReplacements = [...]string{"null", "0", "-1", "1.5", "7", "1e300", "9223372036854775807", "true", `""`, `"x"`, `"a b"`, `"x\u0000y"`, `"\ud800"`,
	`"2026-01-01T00:00:00.000000000Z"`, `"0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"`, `"ana/s1"`, `"a/b/c/d"`, `"/"`, "[]", "[[[]]]", "{}", `{"x":1}`, `[null]`, `["x"]`, "", "\xff"}

// mutateJSON makes one value of a JSON text another, or another's, or takes it away.
func (w *Simulation) mutateJSON(b []byte) []byte {
	values := jsonTokens(b)
	if len(values) == 0 || w.entropy.Int(8) == 7 {
		return w.mutateBytes(b)
	}
	at := values[w.entropy.Int(len(values))]
	in := []byte(jsonReplacements[w.entropy.Int(len(jsonReplacements))])
	switch w.entropy.Int(4) {
	case 3:
		from := values[w.entropy.Int(len(values))]
		in = b[from[0]:from[1]]
	case 2: // the values up to another one
		end := values[w.entropy.Int(len(values))]
		at[1], in = max(at[1], end[0]), nil
	}
	return slices.Concat(b[:at[0]], in, b[at[1]:])
}

// jsonTokens are the places of the names and single values in a JSON text.
func jsonTokens(b []byte) (all [][2]int) {
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
