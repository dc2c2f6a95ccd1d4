// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestTranscriptPolicy(t *testing.T) {
	for _, c := range []struct {
		text string
		want TranscriptPolicy
		from []uint64 // of transcripts with 0, 1, 2 and 10 messages
	}{
		{"none", TranscriptNone, []uint64{0, 1, 2, 10}}, {"all", TranscriptAll, []uint64{0, 0, 0, 0}},
		{"last:1", 1, []uint64{0, 0, 1, 9}}, {"last:2", 2, []uint64{0, 0, 0, 8}}, {"last:100000", TranscriptLastMax, []uint64{0, 0, 0, 0}},
	} {
		got, err := ParseTranscriptPolicy(c.text)
		if err != nil || got != c.want || got.String() != c.text {
			t.Errorf("%s: got %v, error %v", c.text, got, err)
		}
		for i, n := range []uint64{0, 1, 2, 10} {
			if from := got.Window(n); from != c.from[i] {
				t.Errorf("%s of %d messages: from %d, want %d", c.text, n, from, c.from[i])
			}
		}
	}
	for _, text := range []string{"", "last", "last:", "last:0", "last:-1", "last:01", "last:+1", "last: 1", "last:1 ", "last:100001", "last:99999999999999999999", "All", "100", "last:1:2"} {
		if p, err := ParseTranscriptPolicy(text); err == nil || !strings.Contains(err.Error(), "last:N") {
			t.Errorf("%q: got %v, error %v, want one that names the forms", text, p, err)
		}
	}
}

func TestMessageID(t *testing.T) {
	call := NewCallID(1, 2, 3)
	for source, answer := range map[Source]bool{FromUser: false, FromAgent: true, FromOperator: false, FromDelivered: false} {
		m := ChatMessage{Call: call, Source: source}
		id := m.ID()
		if got, err := ParseMessageID(id.String()); err != nil || got != id || id != (MessageID{call, answer}) {
			t.Errorf("%s: got %v from %s, error %v", source, got, id, err)
		}
	}
	for _, text := range []string{"", call.String(), call.String() + ".", call.String() + ".2", call.String() + ".00", call.String() + ".0.0", "x.0", ".1"} {
		if id, err := ParseMessageID(text); err == nil {
			t.Errorf("%q is the id %v", text, id)
		}
	}
}

func TestRoleNames(t *testing.T) {
	for r := RoleUser; r <= RoleTool; r++ {
		if got, err := ParseRole(r.String()); err != nil || got != r {
			t.Errorf("%s: got %v, error %v", r, got, err)
		}
	}
	for _, text := range []string{"", "User", "function", "none"} {
		if r, err := ParseRole(text); err == nil {
			t.Errorf("%q is the role %s", text, r)
		}
	}
}

func TestChatMessageRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := ChatMessage{Call: drawCallID(t), Role: Role(rapid.IntRange(1, int(RoleTool)).Draw(t, "role")), Source: Source(rapid.IntRange(1, int(FromDelivered)).Draw(t, "source")),
			At: Time(rapid.Int64().Draw(t, "at")), Parts: drawParts(t), Extensions: drawExtensions(t)}
		var e Encoder
		e.ChatMessage(&want)
		d := NewDecoder(e.Buf)
		if got := d.ChatMessage(); d.End() != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("encoded %+v\ndecoded %+v, error %v", want, got, d.Err())
		}
	})
	for name, change := range map[string]func(*ChatMessage){"call": func(m *ChatMessage) { m.Call = CallID{} }, "role": func(m *ChatMessage) { m.Role = 0 },
		"other role": func(m *ChatMessage) { m.Role = RoleTool + 1 }, "source": func(m *ChatMessage) { m.Source = 0 }, "other source": func(m *ChatMessage) { m.Source = FromDelivered + 1 }} {
		m := ChatMessage{Call: NewCallID(1, 2, 3), Role: RoleUser, Source: FromUser}
		change(&m)
		var e Encoder
		e.ChatMessage(&m)
		if d := NewDecoder(e.Buf); d.ChatMessage().Call != (CallID{}) && d.End() == nil {
			t.Errorf("%s: decoded", name)
		}
	}
}

// The policy of a client's message, and the role of an appended one, are extensions of the call
// that no child inherits. A value that this version does not know is the default.
func TestTagsOfCalls(t *testing.T) {
	for p := BusyQueue; p <= BusyInterrupt; p++ {
		var c Call
		c.SetBusy(p)
		if parsed, ok := ParseBusyPolicy(p.String()); !ok || parsed != p || c.Busy() != p || (c.Extensions == "") != (p == BusyQueue) {
			t.Errorf("%s: got %s, %s in %q", p, parsed, c.Busy(), c.Extensions)
		}
		if c.Extensions.Inherited() != "" {
			t.Errorf("%s is inherited", p)
		}
	}
	for r := RoleUser; r <= RoleTool; r++ {
		var c Call
		c.SetRole(r)
		if c.AppendedRole() != r || c.Extensions.Inherited() != "" {
			t.Errorf("%s: got %s", r, c.AppendedRole())
		}
	}
	for _, value := range [][]byte{nil, {9}, {1, 1}} {
		c := Call{Extensions: Extensions("").With(TagBusy, value).With(TagRole, value)}
		if c.Busy() != BusyQueue || c.AppendedRole() != 0 {
			t.Errorf("%v: got %s and %s", value, c.Busy(), c.AppendedRole())
		}
	}
	if p, ok := ParseBusyPolicy("now"); ok {
		t.Errorf("got the policy %s", p)
	}
	if got := fmt.Sprint(BusyPolicy(7), Role(0), Source(9)); got != "unknown(7) unknown(0) unknown(9)" {
		t.Errorf("got %s", got)
	}
}
