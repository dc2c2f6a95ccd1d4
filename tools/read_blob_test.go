// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/tools"
)

// readBlob plans a call of read_blob in a run with one result.
func readBlob(t interface{ Fatalf(string, ...any) }, whole []byte, input string) (string, *actor.Refusal) {
	call := actor.Call{To: actor.NewID("a", "s")}
	ec := tools.NewContext(call, time.Minute, dispatcher.Asks{})
	if whole != nil {
		ec.Result = func(ref string) []byte {
			if ref == tools.BlobRef(whole) {
				return whole
			}
			return nil
		}
	}
	_, result := tools.NewRegistry().Plan(ec, actor.Ask{Kind: actor.AskTool, Name: tools.ReadBlob, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(input)}}})
	if result == nil {
		t.Fatalf("%s: no immediate result", input)
	}
	if result.Refusal != nil {
		return "", result.Refusal
	}
	return string(result.Parts[0].Bytes), nil
}

func TestReadBlobReturnsPart(t *testing.T) {
	whole := []byte("0123ä56789")
	ref := tools.BlobRef(whole)
	long := []byte(strings.Repeat("x", 100_000))
	for _, c := range []struct {
		whole         []byte
		input, want   string
		reason        actor.Reason
		refusedDetail string
	}{
		{whole, `{"ref":"` + ref + `"}`, `{"text":"0123ä56789","offset":0,"size":11}`, 0, ""},
		{whole, `{"ref":"` + ref + `","offset":2,"length":2}`, `{"text":"23","offset":2,"size":11,"next_offset":4}`, 0, ""},
		{whole, `{"ref":"` + ref + `","offset":6,"length":5}`, `{"text":"56789","offset":6,"size":11}`, 0, ""},
		{whole, `{"ref":"` + ref + `","offset":5,"length":2}`, `{"text":"ä","offset":4,"size":11,"next_offset":6}`, 0, ""}, // within a character: nothing is lost
		{whole, `{"ref":"` + ref + `","offset":3,"length":2}`, `{"text":"3","offset":3,"size":11,"next_offset":4}`, 0, ""},
		{whole, `{"ref":"` + ref + `","offset":4,"length":1}`, `{"text":"ä","offset":4,"size":11,"next_offset":6}`, 0, ""},
		{whole, `{"ref":"` + ref + `","offset":11}`, "", actor.Invalid, "read_blob: offset: the result has 11 bytes"},
		{whole, `{"ref":"` + ref + `","offset":1e300}`, "", actor.Invalid, "read_blob: offset: the result has 11 bytes"},
		{whole, `{"ref":"` + ref + `","offset":-1}`, "", actor.Invalid, "read_blob: offset: want at least 0"},
		{whole, `{"ref":"` + ref + `","offset":1.5}`, "", actor.Invalid, "read_blob: offset: want integer"},
		{whole, `{"ref":"` + ref + `","length":0}`, "", actor.Invalid, "read_blob: length: want at least 1"},
		{whole, `{"ref":"` + ref + `","length":65537}`, "", actor.Invalid, "read_blob: length: want at most 65536"},
		{whole, `{"offset":1}`, "", actor.Invalid, "read_blob: ref: is missing"},
		{whole, `{"ref":"blob:0"}`, "", actor.Rejected, `read_blob: no result of this run that was cut has the ref "blob:0"`},
		{nil, `{"ref":"` + ref + `"}`, "", actor.Rejected, "read_blob: no result of this run"},
		{long, `{"ref":"` + tools.BlobRef(long) + `"}`, fmt.Sprintf(`{"text":%q,"offset":0,"size":100000,"next_offset":16384}`, long[:16384]), 0, ""},
		{[]byte("a\xffb"), `{"ref":"` + tools.BlobRef([]byte("a\xffb")) + `"}`, "{\"text\":\"a\uFFFDb\",\"offset\":0,\"size\":3}", 0, ""},
	} {
		got, refusal := readBlob(t, c.whole, c.input)
		if got != c.want || (refusal != nil) != (c.reason != 0) || refusal != nil && (refusal.Reason != c.reason || !strings.HasPrefix(refusal.Detail, c.refusedDetail)) {
			t.Errorf("%s: got %.100s %v, want %.100s", c.input, got, refusal, c.want)
		}
	}
}

// TestPartsOfBlobAreTheWhole checks that parts read one after the other are the whole result, whatever their lengths.
func TestPartsOfBlobAreTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.StringN(1, 300, -1).Draw(t, "whole")
		read, offset := "", 0
		for n := 0; ; n++ {
			input := fmt.Sprintf(`{"ref":%q,"offset":%d,"length":%d}`, tools.BlobRef([]byte(whole)), offset, rapid.IntRange(1, 40).Draw(t, "length"))
			out, refusal := readBlob(t, []byte(whole), input)
			var part struct {
				Text   string `json:"text"`
				Offset int    `json:"offset"`
				Next   int    `json:"next_offset"`
			}
			if err := json.Unmarshal([]byte(out), &part); refusal != nil || err != nil || part.Offset != offset || n > len(whole) {
				t.Fatalf("%s: %s %v %v", input, out, refusal, err)
			}
			read += part.Text
			if offset = part.Next; offset == 0 {
				break
			}
		}
		if utf8.ValidString(whole) && read != whole {
			t.Fatalf("read %q, want %q", read, whole)
		}
	})
}
