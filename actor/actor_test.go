// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"strings"
	"testing"
	"time"
)

func TestIDRoundTrip(t *testing.T) {
	for text, want := range map[string]string{
		"planner": "planner/main", "planner/s-42": "planner/s-42", "acme/planner/s": "acme/planner/s", "default/a/b": "a/b",
	} {
		id, err := ParseID(text)
		if err != nil || id.String() != want {
			t.Errorf("%s: got %s, %v, want %s", text, id, err, want)
		}
	}
	for _, text := range []string{"", "/", "a/", "/b", "a/b/c/d", "a b", "agent:x", "..", "a/..", strings.Repeat("x", 65), "ä"} {
		if id, err := ParseID(text); err == nil {
			t.Errorf("ParseID(%q) = %s, want an error", text, id)
		}
	}
}

func TestCallIDIsUUIDv7(t *testing.T) {
	id := NewCallID(Time(1_700_000_000_123_456_789), ^uint64(0), ^uint64(0))
	text := id.String()
	if text[14] != '7' || !strings.ContainsRune("89ab", rune(text[19])) {
		t.Errorf("%s is not a UUIDv7", text)
	}
	parsed, err := ParseCallID(text)
	if err != nil || parsed != id {
		t.Errorf("ParseCallID(%s) = %s, %v", text, parsed, err)
	}
	if later := NewCallID(Time(1_700_000_000_124_456_789), 0, 0); later.Compare(id) <= 0 {
		t.Errorf("later call ID %s does not sort after %s", later, id)
	}
	for _, bad := range []string{"", "x", strings.ToUpper(text), text[:35], strings.Replace(text, "-", "_", 1)} {
		if _, err := ParseCallID(bad); err == nil {
			t.Errorf("ParseCallID(%q): want an error", bad)
		}
	}
}

func TestClockStopsWhileHeld(t *testing.T) {
	const s = Time(time.Second)
	c := NewClock(0, 30*time.Second)
	c.Hold(10*s, 100*s)
	if c.Due() != 120*s || c.Remaining(50*s) != 20*time.Second {
		t.Errorf("held at 10 s until 100 s: due %v, left at 50 s %v, want 120 s and 20 s", c.Due(), c.Remaining(50*s))
	}
	d := c
	d.Resume(40 * s)
	if d.Due() != 60*s {
		t.Errorf("resumed at 40 s: due %v, want 60 s", d.Due())
	}
	c.Resume(105 * s) // after the hold has expired
	if c.Due() != 120*s || c.Remaining(125*s) != 0 {
		t.Errorf("resumed at 105 s: due %v, want 120 s", c.Due())
	}
}

// Clients of the specified interfaces match these pieces of text.
func TestRefusalNamesAndCodes(t *testing.T) {
	a, b := NewID("a", ""), NewID("b", "")
	for _, test := range []struct {
		refusal *Refusal
		want    []string
	}{
		{RefuseCycle([]ID{a, b}, a), []string{"cycle detected", "Cycle detected: a already in call chain", "a/main -> b/main -> a/main"}},
		{RefuseDepth([]ID{a}, b, 5), []string{"Maximum call depth exceeded"}},
		{RefuseDeadline(b, HandleMessageFull, time.Second), []string{"AgentCallTimeout", "timeout", "invoke b/main handle_message_full", "1000 ms"}},
		{RefuseBusy(ScopeCallee, 1, "full"), []string{"AgentBusy"}},
	} {
		for _, want := range test.want {
			if !strings.Contains(test.refusal.Error(), want) {
				t.Errorf("%s: want %q in %q", test.refusal.Reason, want, test.refusal.Error())
			}
		}
	}
	codes := map[string]Reason{}
	for _, r := range Reasons() {
		info := r.Info()
		if info.HTTP < 400 || info.Name == "" || info.Error == "" || info.Code == "" || info.Status == "" {
			t.Errorf("%s: empty field in its row: %+v", r, info)
		}
		if other, exists := codes[info.Type]; exists {
			t.Errorf("%s and %s share the code %s", r, other, info.Type)
		}
		codes[info.Type] = r
	}
	if len(codes) != 17 {
		t.Errorf("%d reasons, want 17", len(codes))
	}
}

func TestPrincipalScopeLength(t *testing.T) {
	for n, ok := range map[int]bool{1: true, 64: true, 65: false} {
		p := NewPrincipal("u", "k", strings.Repeat("s", n))
		if err := p.Check(); (err == nil) != ok {
			t.Errorf("a scope of %d bytes: %v", n, err)
		}
	}
}
