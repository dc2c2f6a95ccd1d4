// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
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

func TestReservedNames(t *testing.T) {
	for name, suggested := range map[string]string{
		"troupe": "team", "troupe.": "team.", "troupe.session": "team.session", "Troupe": "team", "TROUPE.Session": "team.session", " troupe\t": "team", "\ntroupe.x ": "team.x",
		"troupe..": "team..", "troupe." + strings.Repeat("x", 57): "team." + strings.Repeat("x", 57),
	} {
		if err := CheckUnreserved(name); err == nil || !strings.HasSuffix(err.Error(), fmt.Sprintf("choose another name, such as %q", suggested)) {
			t.Errorf("%q: got %v, want a refusal that suggests %q", name, err, suggested)
		}
		if err := CheckNewUser(name); err == nil {
			t.Errorf("user %q: want an error", name)
		}
	}
	for _, name := range []string{"", "team", "troupes", "troupe-session", "troupe_x", "my.troupe", "my.troupe.x", "atroupe.x", "trou.pe", "tro upe", "troup", ".troupe"} {
		if err := CheckUnreserved(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := ParseID("planner/troupe.session"); err != nil {
		t.Errorf("a session may have a reserved name: %v", err)
	}
}

func TestUserNames(t *testing.T) {
	const allowed = ""
	for user, want := range map[string]string{
		"alice": allowed, "A.b_c-1": allowed, "alice@example.com": allowed, "a b": allowed, "a/b": allowed, "auth0|5f7c": allowed, "Zoë": allowed, "艾丽斯": allowed, "ö" + strings.Repeat("u", 254): allowed,
		"locals": allowed, "my.local": allowed, "u-": allowed, "u-0123456789abcde": allowed, "u-0123456789abcdef0": allowed, "u-0123456789abcdeg": allowed, "u-alice": allowed, "x:y": allowed,

		"": "0 bytes, want 1 to 256", strings.Repeat("u", 257): "257 bytes, want 1 to 256", strings.Repeat("u", 10<<10): "10240 bytes, want 1 to 256",
		"a\x00b": "cannot be printed", "a\nb": "cannot be printed", "a\u202eb": "cannot be printed", "a\u200bb": "cannot be printed", "a\u00a0b": "cannot be printed", "\x1b[2J": "cannot be printed",
		"a\xffb": "not UTF-8", " alice": "begins or ends with a space", "alice ": "begins or ends with a space", " ": "begins or ends with a space",
		"default": "is reserved", "local": "is reserved", "Local": "is reserved", "DEFAULT": "is reserved", "operator": "is reserved", "Operator": "is reserved", "key:0123456789abcdef": "is reserved",
		"u-0123456789abcdef": "is reserved", "u-0123456789ABCDEF": "is reserved", "U-0123456789abcdef": "is reserved", "troupe": "is reserved", "troupe.alice": "is reserved",
	} {
		err := CheckNewUser(user)
		if (err == nil) != (want == allowed) || err != nil && (!strings.Contains(err.Error(), want) || len(err.Error()) > 512) {
			t.Errorf("%.80q: got %v, want %q", user, err, want)
		}
	}
	// Keys that earlier versions created keep their users, except those of the node itself.
	for user, want := range map[string]bool{"default": true, "local": true, "Operator": true, "u-0123456789abcdef": true, "troupe.alice": true, "operator": false, "key:0123456789abcdef": false, "a\nb": false} {
		if err := CheckUser(user); (err == nil) != want {
			t.Errorf("key of user %q: got %v, want accepted %v", user, err, want)
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
		{RefuseDeadline(b, HandleMessageFull, time.Second), []string{"AgentCallTimeout", "timeout", "b/main has not answered within 1000 ms"}},
		{RefuseBusy(ScopeCallee, 1, "full"), []string{"AgentBusy"}},
	} {
		for _, want := range test.want {
			if !strings.Contains(test.refusal.Error(), want) {
				t.Errorf("%s: want %q in %q", test.refusal.Reason, want, test.refusal.Error())
			}
		}
	}
	if r := RefuseDeadline(b, HandleMessageFull, time.Second); r.Operation != "invoke b/main handle_message_full" || r.Timeout != time.Second || strings.Contains(r.Error(), HandleMessageFull) {
		t.Errorf("%+v: %s", r, r.Error())
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
	if len(codes) != 20 {
		t.Errorf("%d reasons, want 20", len(codes))
	}
}

// A user never gets the namespace of another user, or the default one.
func TestNamespaces(t *testing.T) {
	for user, want := range map[string]string{
		"": DefaultTenant, "alice": "alice", "Alice": "Alice", "A.b_c-1": "A.b_c-1", strings.Repeat("u", 64): strings.Repeat("u", 64), "u-alice": "u-alice",
		"alice@example.com": "u-ff8d9819fc0e12bf",
	} {
		if got := Namespace(user); got != want {
			t.Errorf("%q: got %s, want %s", user, got, want)
		}
	}
	seen := map[string]string{DefaultTenant: "nobody"}
	for _, user := range []string{"default", "Default", "local", "operator", "troupe", "troupe.x", "Troupe.x", "u-ff8d9819fc0e12bf", "U-FF8D9819FC0E12BF", "alice@example.com", "a b", "a/b", "..", ".", "key:0123456789abcdef",
		strings.Repeat("u", 65), strings.Repeat("u", 10<<10), "\xff", "\x00", " alice", "alice"} {
		got := Namespace(user)
		if other, ok := seen[got]; ok || CheckName(got) != nil || CheckUnreserved(got) != nil || got == user != (user == "alice") {
			t.Errorf("%.80q: got namespace %q, which is that of %q", user, got, other)
		}
		seen[got] = user
	}
}

func TestFindNamespace(t *testing.T) {
	for name, want := range map[string]string{"default": DefaultTenant, "local": DefaultTenant, "key:0123456789abcdef": DefaultTenant, "alice": "alice", "alice@example.com": "u-ff8d9819fc0e12bf", "u-ff8d9819fc0e12bf": "u-ff8d9819fc0e12bf",
		"": "", "troupe.x": "", "operator": "", "u-FF8D9819FC0E12BF": "", "Local": "", "a\x00": "", strings.Repeat("u", 10<<10): ""} {
		if got, err := FindNamespace(name); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%.80q: got %q, %v, want %q", name, got, err, want)
		}
	}
}

func TestUsersOfNamespaces(t *testing.T) {
	for namespace, users := range map[string][]string{DefaultTenant: {"", "local", "key:0123456789abcdef", "operator", "default"}, "alice": {"alice"}, "u-ff8d9819fc0e12bf": {"alice@example.com"}} {
		for _, user := range users {
			if !InNamespace(user, namespace) {
				t.Errorf("%q is not in %s", user, namespace)
			}
			for _, other := range []string{DefaultTenant, "alice", "u-ff8d9819fc0e12bf", "bob"} {
				if other != namespace && InNamespace(user, other) {
					t.Errorf("%q is in %s and %s", user, namespace, other)
				}
			}
		}
	}
}

// The registry of agents and keys is that of all namespaces. Nothing else is.
func TestPrincipalReachesItsNamespaceOnly(t *testing.T) {
	alice := Principal{Tenant: "alice"}
	for text, want := range map[string]bool{"alice/planner/s-1": true, "alice/troupe/registry": true, "troupe/registry": true,
		"planner/s-1": false, "bob/planner/s-1": false, "bob/troupe/registry": false, "troupe.session/s-1": false, "bob/troupe.session/s-1": false} {
		id, err := ParseID(text)
		if r := alice.CheckTenant(id); err != nil || (r == nil) != want || r != nil && r.Reason != NotFound {
			t.Errorf("%s: got %v, %v, want access %v", text, r, err, want)
		}
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
