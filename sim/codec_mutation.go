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

// codec is an encoding whose bytes are decoded elsewhere or later. A codec MUST decode
// every encoding that it has written. Other bytes MUST be rejected, or be decoded to a
// value that does not change when it is encoded and decoded again.
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

// codecs holds a function per codec that decodes bytes and encodes the result.
var codecs = [codecCount]struct {
	name string
	text bool // the encoding is JSON
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
		a, slot, err := store.DecodeAnchor(b, "n1")
		return reencode(err, func() []byte { return anchorFile("n1", slot, a) })
	}},
}

func reencode(err error, write func() []byte) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return write(), nil
}

const (
	// corpusMax is the maximum number of samples per codec. mutationsPerCodec is the
	// number of mutated samples that an audit decodes per codec.
	corpusMax         = 8
	mutationsPerCodec = 24
)

// corpus holds the most recent samples of each codec written in a simulation.
type corpus [codecCount][][]byte

// addToCorpus keeps encoded bytes for the audit at the end of the run.
func (w *Simulation) addToCorpus(c codec, b []byte) {
	if !w.auditEnabled() {
		return
	}
	if w.corpus == nil {
		w.corpus = &corpus{}
	}
	samples := &w.corpus[c]
	if *samples = append(*samples, b); len(*samples) > corpusMax {
		*samples = (*samples)[1:]
	}
}

// auditCodecs decodes mutated samples, as another program may have written them.
// Decoding MUST either fail or yield a value that encodes and decodes to itself.
func (w *Simulation) auditCodecs() {
	w.collectCorpus()
	if w.corpus == nil {
		return
	}
	for c, format := range codecs {
		samples := w.corpus[c]
		for range min(len(samples), 1) * mutationsPerCodec {
			b := samples[w.entropy.Int(len(samples))]
			if format.text {
				b = w.mutateJSON(b)
			} else {
				b = w.mutateBytes(b)
			}
			w.Stats.Audit.CodecRoundTrip++
			encoded, err := format.read(b)
			if err != nil {
				w.Stats.Points[MutationRejected]++
				continue
			}
			if again, err := format.read(encoded); err != nil || !bytes.Equal(again, encoded) {
				w.fail(CodecRoundTrip, fmt.Sprintf("a mutated %s decodes, but its re-encoding decodes to a different value, %v: %q", format.name, err, b))
				return
			}
		}
	}
}

// collectCorpus adds samples from the store to the corpus.
func (w *Simulation) collectCorpus() {
	for range min(len(w.clients), corpusMax) {
		c := w.clients[w.entropy.Int(len(w.clients))]
		if saved, err := w.store.Load(c.to); err == nil {
			if saved.Snapshot != nil {
				w.addToCorpus(journalCodec, saved.Snapshot)
			}
			for _, e := range saved.Entries[:min(len(saved.Entries), 2)] {
				w.addToCorpus(entryCodec, store.EncodeEntry(e))
			}
		}
		if events, err := w.store.Events(c.to.Tenant, c.call, uint64(w.entropy.Int(8)), 4); err == nil {
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
	w.addToCorpus(anchorCodec, anchorFile("n1", 1, store.Anchor{End: mark}))
	w.addToCorpus(anchorCodec, anchorFile("n1", 0, store.Anchor{End: mark, Origin: before}, store.Anchor{End: before}))
}

// mutateBytes returns a copy of b with one part changed.
func (w *Simulation) mutateBytes(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) == 0 {
		return b
	}
	at := w.entropy.Int(len(b))
	end := min(len(b), at+1+w.entropy.Int(16))
	switch w.entropy.Int(8) {
	case 0:
		b[at] ^= 1 << w.entropy.Int(8)
	case 1:
		b[at] = [...]byte{0, 1, 2, 0x7f, 0x80, 0xff}[w.entropy.Int(6)]
	case 2:
		clear(b[at:end])
	case 3: // the longest varint
		b = slices.Replace(b, at, at+1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1)
	case 4:
		b = slices.Delete(b, at, end)
	case 5:
		b = slices.Insert(b, at, bytes.Clone(b[at:end])...)
	case 6:
		b = b[:at]
	case 7:
		b = append(b, byte(w.entropy.Int(256)))
	}
	return b
}

// jsonReplacements are JSON values and invalid bytes that replace a valid value.
var jsonReplacements = [...]string{"null", "0", "-1", "1.5", "7", "1e300", "9223372036854775807", "true", `""`, `"x"`, `"a b"`, `"x\u0000y"`, `"\ud800"`,
	`"2026-01-01T00:00:00.000000000Z"`, `"0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"`, `"ana/s1"`, `"a/b/c/d"`, `"/"`, "[]", "[[[]]]", "{}", `{"x":1}`, `[null]`, `["x"]`, "", "\xff"}

// mutateJSON replaces a value of a JSON text by another one, or removes it.
func (w *Simulation) mutateJSON(b []byte) []byte {
	values := jsonTokens(b)
	if len(values) == 0 || w.entropy.Int(8) == 7 {
		return w.mutateBytes(b)
	}
	at := values[w.entropy.Int(len(values))]
	replacement := []byte(jsonReplacements[w.entropy.Int(len(jsonReplacements))])
	switch w.entropy.Int(4) {
	case 3:
		from := values[w.entropy.Int(len(values))]
		replacement = b[from[0]:from[1]]
	case 2: // removes the values between two positions
		end := values[w.entropy.Int(len(values))]
		at[1], replacement = max(at[1], end[0]), nil
	}
	return slices.Concat(b[:at[0]], replacement, b[at[1]:])
}

// jsonTokens returns the byte ranges of all names and scalar values in a JSON text.
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
