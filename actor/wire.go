// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// Encoder appends encoded fields to a buffer. All encodings of Troupe use it.
type Encoder struct{ Buf []byte }

// Uint appends a varint, 7 bits per byte.
func (e *Encoder) Uint(v uint64) { e.Buf = binary.AppendUvarint(e.Buf, v) }

// Int appends a signed varint.
func (e *Encoder) Int(v int64) { e.Buf = binary.AppendVarint(e.Buf, v) }

// Bool appends one byte.
func (e *Encoder) Bool(v bool) {
	if v {
		e.Buf = append(e.Buf, 1)
	} else {
		e.Buf = append(e.Buf, 0)
	}
}

// Raw appends bytes whose number is known to the decoder.
func (e *Encoder) Raw(b []byte) { e.Buf = append(e.Buf, b...) }

// Bytes appends a length and that many bytes.
func (e *Encoder) Bytes(b []byte) { e.Uint(uint64(len(b))); e.Buf = append(e.Buf, b...) }

// String appends a length and the text.
func (e *Encoder) String(s string) { e.Uint(uint64(len(s))); e.Buf = append(e.Buf, s...) }

// Decoder reads fields from untrusted bytes. It retains the first error, with its
// offset. All later reads return zero values.
type Decoder struct {
	buf []byte
	off int
	err error
}

// NewDecoder returns a decoder of b. It does not modify b.
func NewDecoder(b []byte) *Decoder { return &Decoder{buf: b} }

// Err returns the first error.
func (d *Decoder) Err() error { return d.err }

// End returns the first error, or an error if bytes are left.
func (d *Decoder) End() error {
	if d.err == nil && d.off != len(d.buf) {
		d.Fail("%d bytes too many", len(d.buf)-d.off)
	}
	return d.err
}

// Fail records an error at the current offset, unless one is recorded already.
func (d *Decoder) Fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("byte %d of %d: %s", d.off, len(d.buf), fmt.Sprintf(format, args...))
	}
}

// Uint reads the encoding of Encoder.Uint. It accepts the shortest form only.
func (d *Decoder) Uint() uint64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.buf[d.off:])
	if n <= 0 || n > 1 && d.buf[d.off+n-1] == 0 {
		d.Fail("invalid varint")
		return 0
	}
	d.off += n
	return v
}

// UintMax reads a number and rejects one above limit.
func (d *Decoder) UintMax(limit uint64, name string) uint64 {
	v := d.Uint()
	if v > limit {
		d.Fail("%s %d exceeds %d", name, v, limit)
		return 0
	}
	return v
}

// Int reads the encoding of Encoder.Int.
func (d *Decoder) Int() int64 {
	v := d.Uint()
	return int64(v>>1) ^ -int64(v&1)
}

// Bool reads one byte, 0 or 1.
func (d *Decoder) Bool() bool {
	b := d.Raw(1)
	if d.err == nil && b[0] > 1 {
		d.Fail("invalid bool %d", b[0])
	}
	return d.err == nil && b[0] == 1
}

// Raw reads n bytes, or returns nil if fewer are left. The result aliases the
// input.
func (d *Decoder) Raw(n int) []byte {
	if d.err != nil {
		return nil
	}
	if n < 0 || n > len(d.buf)-d.off {
		d.Fail("want %d bytes, have %d", n, len(d.buf)-d.off)
		return nil
	}
	b := d.buf[d.off : d.off+n : d.off+n]
	d.off += n
	return b
}

// Bytes reads a length and that many bytes, at most limit. It returns a copy, or
// nil if the length is 0.
func (d *Decoder) Bytes(limit int) []byte {
	n := d.UintMax(uint64(limit), "length")
	b := d.Raw(int(n))
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}

// String reads a length and that many bytes of valid UTF-8, at most limit.
func (d *Decoder) String(limit int) string {
	n := d.UintMax(uint64(limit), "length")
	b := d.Raw(int(n))
	if !utf8.Valid(b) {
		d.Fail("text is not UTF-8")
		return ""
	}
	switch string(b) { // nearly every message holds these strings: do not allocate them
	case DefaultTenant:
		return DefaultTenant
	case MediaText:
		return MediaText
	case MediaJSON:
		return MediaJSON
	case HandleMessageFull:
		return HandleMessageFull
	}
	return string(b)
}

// Count reads the length of a list, at most limit.
func (d *Decoder) Count(limit int, name string) int {
	v := d.Uint()
	if v > uint64(limit) {
		d.Fail("number of %s %d exceeds %d", name, v, limit)
		return 0
	}
	return int(v)
}

// More reports whether bytes are left and no error is recorded.
func (d *Decoder) More() bool { return d.err == nil && d.off < len(d.buf) }
