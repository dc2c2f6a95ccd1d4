// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"cmp"
	"fmt"
	"slices"
)

// Bounds of the extensions of one value. The codec rejects more.
const (
	ExtensionsMax     = 32      // fields
	ExtensionBytesMax = 4 << 10 // encoded fields, in bytes
)

// Extensions are the fields of an encoded value that follow those of its version. A
// program keeps fields that it does not know and passes them on. A later program can
// therefore add a field without a new version of the codec.
//
// A field is a tag and a value. Tags are in ascending order. The calls that a run makes
// have all fields of its own call with an odd tag, which are properties of the whole tree
// such as a user or a device. They have none of the others.
//
// The fields of a reply end at the caller, because the answers that its agent receives have
// none. A later program that needs one in the caller adds it to the answer.
//
// The zero value has no fields. The type is the encoding of the fields, which is immutable,
// so that copies of a value may share it.
type Extensions string

// extension is one field.
type extension struct {
	tag   uint64
	value []byte
}

// inherited reports whether child calls have the field.
func (f extension) inherited() bool { return f.tag%2 == 1 }

// With returns the extensions with the field set to value. Check reports whether the
// result exceeds a bound.
func (x Extensions) With(tag uint64, value []byte) Extensions {
	fields, _ := x.fields()
	at, found := slices.BinarySearchFunc(fields, tag, func(f extension, tag uint64) int { return cmp.Compare(f.tag, tag) })
	if !found {
		fields = slices.Insert(fields, at, extension{})
	}
	fields[at] = extension{tag, value}
	return encodeExtensions(fields)
}

// Get returns the value of a field, or false if it is absent.
func (x Extensions) Get(tag uint64) ([]byte, bool) {
	fields, _ := x.fields()
	for _, f := range fields {
		if f.tag == tag {
			return f.value, true
		}
	}
	return nil, false
}

// Inherited returns the fields that the calls of a run have in common with its own call.
func (x Extensions) Inherited() Extensions {
	if x == "" {
		return ""
	}
	fields, _ := x.fields()
	return encodeExtensions(slices.DeleteFunc(fields, func(f extension) bool { return !f.inherited() }))
}

// Check returns an error if the extensions exceed a bound or cannot be decoded.
func (x Extensions) Check() error {
	if x == "" {
		return nil
	}
	_, err := x.fields()
	return err
}

func (x Extensions) fields() ([]extension, error) {
	if len(x) > ExtensionBytesMax {
		return nil, fmt.Errorf("extensions of %d bytes, at most %d allowed", len(x), ExtensionBytesMax)
	}
	var all []extension
	d := NewDecoder([]byte(x))
	for d.More() {
		f := extension{d.Uint(), d.Raw(int(d.UintMax(ExtensionBytesMax, "length")))}
		if n := len(all); n > 0 && f.tag <= all[n-1].tag {
			d.Fail("extension %d follows extension %d", f.tag, all[n-1].tag)
		}
		if all = append(all, f); len(all) > ExtensionsMax {
			return nil, fmt.Errorf("more than %d extensions", ExtensionsMax)
		}
	}
	if err := d.End(); err != nil {
		return nil, fmt.Errorf("extensions: %w", err)
	}
	return all, nil
}

func encodeExtensions(fields []extension) Extensions {
	var e Encoder
	for _, f := range fields {
		e.Uint(f.tag)
		e.Bytes(f.value)
	}
	return Extensions(e.Buf)
}

// Extensions appends the length of the extensions and their fields.
func (e *Encoder) Extensions(x Extensions) {
	e.String(string(x))
}

// Extensions reads extensions within their bounds.
func (d *Decoder) Extensions() Extensions {
	x := Extensions(d.Raw(int(d.UintMax(ExtensionBytesMax, "length of extensions"))))
	if err := x.Check(); err != nil {
		d.Fail("%v", err)
		return ""
	}
	return x
}
