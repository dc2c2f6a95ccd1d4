// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// A body that decodeMessageFast accepts MUST decode to the same value with
// Decode.
func TestFastMessageDecodeMatchesDecode(t *testing.T) {
	check := func(body []byte) bool {
		got, content, ok := decodeMessageFast(body)
		if content != nil {
			got.Content = jsontext.Value(`"` + string(content) + `"`)
		}
		var want messageBody
		r := Decode(body, &want)
		if ok && (r != nil || !reflect.DeepEqual(got, want)) {
			t.Fatalf("%q: fast path returns %+v; Decode returns %+v, %v", body, got, want, r)
		}
		return ok
	}
	for body, want := range map[string]bool{
		`{"content":"hello","session":"s-1"}`:                true,
		" {\n\t\"timeout_ms\" : 5 , \"content\" : \"é\"\r} ": true,
		`{"content":"a","priority":"high"}`:                  true,
		`{"priority":"","project_id":"p"}`:                   true,
		`{"priority":"low","priority":"low"}`:                false,
		`{"project_id":"","project_id":"p"}`:                 false,
		`{}`:                                                 true,
		`{"content":""}`:                                     true,
		`{"content":"a\nb"}`:                                 false,
		`{"content":"a","content":"b"}`:                      false,
		`{"session":"","session":"b"}`:                       false,
		`{"session":"a","session":"b"}`:                      false,
		`{"timeout_ms":0,"timeout_ms":1}`:                    false,
		`{"timeout_ms":1.5}`:                                 false,
		`{"timeout_ms":1e3}`:                                 false,
		`{"timeout_ms":01}`:                                  false,
		`{"timeout_ms":-1}`:                                  false,
		`{"timeout_ms":9999999999999999999}`:                 false,
		`{"content":null}`:                                   false,
		`{"Content":"a"}`:                                    false,
		`{"content":"a",}`:                                   false,
		`{,"content":"a"}`:                                   false,
		`{"content" "a"}`:                                    false,
		`{"content":"a"`:                                     false,
		`{"content":"a`:                                      false,
		`{"content":"a"}x`:                                   false,
		`{"content":"a"}{}`:                                  false,
		"{\"content\":\"\xff\"}":                             false,
		"{\"content\":\"\x00\"}":                             false,
		"\ufeff{}":                                           false,
		`[]`:                                                 false,
		``:                                                   false,
	} {
		if got := check([]byte(body)); got != want {
			t.Errorf("%q: %v, want %v", body, got, want)
		}
	}
	pieces := []string{"{", "}", ":", ",", `"content"`, `"session"`, `"timeout_ms"`, `"a"`, `"`, `\`, "0", "1", "12", "-", ".", "e", "null", " ", "\n", "\xff", "é", "[", "]"}
	r := rand.New(rand.NewPCG(1, 2))
	read := 0
	for range 200_000 {
		body := []byte("{")
		for n := r.IntN(3); n > 0; n-- {
			body = append(body, pieces[4+r.IntN(3)]+":"+pieces[7+r.IntN(6)]+","[:r.IntN(2)]...)
		}
		for n := r.IntN(5); n > 0; n-- {
			body = append(body, pieces[r.IntN(len(pieces))]...)
		}
		if check(append(body, "}"[:r.IntN(2)]...)) {
			read++
		}
	}
	if read < 1000 {
		t.Errorf("the fast path accepted %d generated bodies, want at least 1000", read)
	}
}
