// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A map is the model of extensions.
func TestExtensionsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x Extensions
		model := map[uint64][]byte{}
		for range rapid.IntRange(0, 12).Draw(t, "fields") {
			tag, value := rapid.Uint64Range(0, 9).Draw(t, "tag"), rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "value")
			x, model[tag] = x.With(tag, value), value
		}
		inherited := x.Inherited()
		for tag := range uint64(10) {
			want, there := model[tag]
			got, ok := x.Get(tag)
			if ok != there || !bytes.Equal(got, want) {
				t.Fatalf("field %d: got %x, %v, want %x, %v", tag, got, ok, want, there)
			}
			got, ok = inherited.Get(tag)
			if passed := there && tag%2 == 1; ok != passed || ok && !bytes.Equal(got, want) {
				t.Fatalf("field %d of a child call: got %x, %v, want %v", tag, got, ok, passed)
			}
		}
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestExtensionsAreBounded(t *testing.T) {
	many := Extensions("")
	for tag := range uint64(ExtensionsMax) {
		many = many.With(tag, nil)
	}
	full := Extensions("").With(1, make([]byte, ExtensionBytesMax-3))
	for _, test := range []struct {
		name, want string
		x          Extensions
	}{
		{"none", "", ""},
		{"largest number", "", many},
		{"one more", "more than 32 extensions", many.With(ExtensionsMax, nil)},
		{"largest size", "", full},
		{"one more byte", "extensions of 4097 bytes, at most 4096 allowed", full.With(1, make([]byte, ExtensionBytesMax-2))},
		{"tag twice", "extension 1 follows extension 1", "\x01\x00\x01\x00"},
		{"descending tags", "extension 1 follows extension 2", "\x02\x00\x01\x00"},
		{"truncated", "want 2 bytes, have 1", "\x01\x02x"},
	} {
		call := Call{ID: NewCallID(1, 2, 3), To: NewID("a", ""), Lane: Normal, Extensions: test.x}
		call.SetClientDefaults()
		reply := Reply{Call: call.ID, Run: call.ID, Status: Succeeded, Extensions: test.x}
		_, errCall := Decode(Encode(Envelope{To: call.To, Body: Request{call}}))
		_, errReply := Decode(Encode(Envelope{To: call.To, Body: Answered{reply}}))
		_, errHold := Decode(Encode(Envelope{To: call.To, Body: Held{Call: call.ID, For: Hold{Extensions: test.x}}}))
		if err := call.CheckEncodable(); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
		for _, err := range []error{errCall, errReply, errHold} {
			if (err == nil) != (test.want == "") {
				t.Errorf("%s: decoded with error %v, want %q", test.name, err, test.want)
			}
		}
	}
}
