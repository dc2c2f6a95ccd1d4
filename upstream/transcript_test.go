// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"reflect"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// The messages of a transcript become those of a prompt, in their order. An external agent gets
// them through an ask, which holds bytes.
func TestTranscriptMessages(t *testing.T) {
	var all []actor.ChatMessage
	for _, role := range []actor.Role{actor.RoleUser, actor.RoleAssistant, actor.RoleSystem, actor.RoleTool} {
		all = append(all, actor.ChatMessage{Role: role, Parts: actor.Text("of " + role.String() + " \"é\x00\n")})
	}
	want := []Message{{Role: User, Text: "of user \"é\x00\n"}, {Role: Assistant, Text: "of assistant \"é\x00\n"}, {Role: System, Text: "of system \"é\x00\n"}, {Role: User, Text: "of tool \"é\x00\n"}}
	got := TranscriptMessages(all, actor.TextOf)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if decoded, err := DecodeTranscript(EncodeTranscript(got)); err != nil || !reflect.DeepEqual(decoded, want) {
		t.Errorf("got %+v, error %v, want %+v", decoded, err, want)
	}
	if b := EncodeTranscript(TranscriptMessages(nil, actor.TextOf)); b != nil {
		t.Errorf("no messages are encoded as %q", b)
	}
	if decoded, err := DecodeTranscript(nil); decoded != nil || err != nil {
		t.Errorf("got %+v, error %v", decoded, err)
	}
	for _, b := range []string{"x", "{}", `[{"r":"x"}]`} {
		if decoded, err := DecodeTranscript([]byte(b)); err == nil {
			t.Errorf("%s: got %+v", b, decoded)
		}
	}
}
