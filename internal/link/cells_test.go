// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// frame returns a frame whose head announces a size.
func frame(size uint32, body string) string {
	return string(binary.BigEndian.AppendUint32(nil, size)) + body
}

// message returns the frame of a message.
func message(n uint64) string {
	body := "\x00\x01" + string(actor.Encode(*numbered(n, 1)))
	return frame(uint32(len(body)), body)
}

// A frame that no member sends ends the connection. A message that cannot be decoded is lost alone.
func TestMalformedFramesEndConnection(t *testing.T) {
	for name, c := range map[string]struct {
		sent string
		ends string // prefix of the error
		got  []uint64
	}{
		"beats":              {sent: frame(0, "") + message(1) + frame(0, "") + message(2), ends: "EOF", got: []uint64{1, 2}},
		"nothing":            {ends: "EOF"},
		"cut in a length":    {sent: message(1) + "\x00\x00", ends: "unexpected EOF", got: []uint64{1}},
		"cut in a cell":      {sent: frame(9, "\x00"), ends: "unexpected EOF"},
		"cut in a message":   {sent: message(1)[:40], ends: "unexpected EOF"},
		"cut in a large one": {sent: frame(1<<20, strings.Repeat("x", 1<<19)), ends: "unexpected EOF"},
		"no message":         {sent: frame(2, "\x00\x01") + message(1), ends: "protocol violated by the peer: frame of 2 bytes"},
		"oversized":          {sent: frame(messageBytesMax+3, "") + message(1), ends: "protocol violated by the peer: frame of 4194307 bytes"},
		"text":               {sent: "GET / HTTP/1.1\r\n", ends: "protocol violated"},
		"undecodable":        {sent: frame(4, "\x00\x01\xff\xff") + message(2), ends: "EOF", got: []uint64{2}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []uint64
			lost := 0
			err := readMessages(strings.NewReader(c.sent), func(_ uint16, env *actor.Envelope) { got = append(got, env.From.Incarnation) }, func(error) { lost++ })
			if err == nil || !strings.HasPrefix(err.Error(), c.ends) || fmt.Sprint(got) != fmt.Sprint(c.got) || (lost > 0) != (name == "undecodable") {
				t.Errorf("%v, %v, %d lost; want %s, %v", err, got, lost, c.ends, c.got)
			}
		})
	}
	a := newMember(t, "a", socketOf(t))
	c, _ := greeted(t, a, hello{messagesChannel, "b", "a"}.String())
	if _, err := c.Write([]byte(message(0) + frame(messageBytesMax+3, ""))); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes after an oversized frame", n)
	}
	if d := <-a.delivered; d.env.From.Incarnation != 0 {
		t.Errorf("%+v", d.env)
	}
}

// An outbox takes messages up to its bounds, and forgets none that it took.
func TestOutboxIsBounded(t *testing.T) {
	large := numbered(1, 1<<20-100)
	one := len(actor.Encode(*large)) + lengthBytes + cellBytes
	tooLarge := numbered(1, 1)
	call := tooLarge.Body.(actor.Request).Call
	call.Trace = strings.Repeat("x", messageBytesMax)
	tooLarge.Body = actor.Request{Call: call}
	for name, c := range map[string]struct {
		env  *actor.Envelope
		took int
		err  error
	}{
		"small": {numbered(1, 1), queuedMax, errQueueFull},
		"large": {large, queuedBytesMax / one, errQueueFull},
		"huge":  {tooLarge, 0, errTooLarge},
	} {
		o := newOutbox()
		for round := range 2 {
			took, err := 0, error(nil)
			for ; err == nil; took++ {
				err = o.put(9, c.env)
			}
			frames, count := o.take(nil)
			if took-1 != c.took || err != c.err || count != c.took {
				t.Errorf("%s: took %d, %v, and returned %d; want %d, %v", name, took-1, err, count, c.took, c.err)
			}
			got := 0
			_ = readMessages(bytes.NewReader(frames), func(cell uint16, env *actor.Envelope) {
				if cell == 9 && bytes.Equal(actor.Encode(*env), actor.Encode(*c.env)) {
					got++
				}
			}, func(err error) { t.Error(err) })
			if woken := len(o.wake) == 1; got != c.took || woken != (c.took > 0) {
				t.Errorf("%s: round %d: read %d of %d, woken %v", name, round, got, c.took, woken)
			}
			if c.took > 0 {
				<-o.wake
			}
		}
		if c.took > 0 {
			_ = o.put(1, numbered(1, 1))
			if left, err := o.end(), o.put(1, numbered(1, 1)); left != 1 || err != errEnded {
				t.Errorf("%s: %d were left, then %v", name, left, err)
			}
		}
	}
}

// Whatever arrives, no more memory is used than a message needs, and each message that is passed on encodes to the bytes that
// arrived.
func FuzzReadMessages(f *testing.F) {
	f.Add([]byte(frame(0, "") + message(1) + frame(4, "\x00\x01\xff\xff") + message(2)))
	f.Add([]byte(frame(messageBytesMax+3, "")))
	f.Fuzz(func(t *testing.T, b []byte) {
		var out []byte
		err := readMessages(bytes.NewReader(b), func(cell uint16, env *actor.Envelope) {
			body := string(binary.BigEndian.AppendUint16(nil, cell)) + string(actor.Encode(*env))
			if out = append(out, frame(uint32(len(body)), body)...); !bytes.Contains(b, out[len(out)-len(body):]) {
				t.Errorf("%x has a message that encodes to %x", b, body)
			}
		}, func(error) {})
		if err == nil || len(out) > len(b) {
			t.Errorf("%d bytes of %d were read, %v", len(out), len(b), err)
		}
	})
}
