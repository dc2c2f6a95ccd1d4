// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe"
)

// remembering is an agent that calls the tool in its message: its name, a blank and its arguments.
func remembering(m troupe.Memory) troupe.Agent {
	return troupe.Agent{Name: "clerk", Memory: m, Func: func(t *troupe.Turn) (string, error) {
		tool, args, _ := strings.Cut(t.Message(), " ")
		found, err := t.Tool(tool, json.RawMessage(args))
		return string(found), err
	}}
}

// An agent in Go remembers in one session, recalls in another and after a restart, and forgets. Another user finds nothing.
func TestAgentRemembers(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	config := troupe.Config{Data: data, Memory: true, Agents: []troupe.Agent{remembering(troupe.Memory{Search: true, Create: true, Traverse: true, Forget: true, Scope: []string{"workspace"}})}}
	s := openWith(t, config)
	ctx, alice := t.Context(), troupe.User("alice")
	say := func(session, message string, by troupe.Option) string {
		t.Helper()
		reply, err := s.Call(ctx, "clerk", message, troupe.Session(session), by)
		if err != nil {
			t.Fatal(err)
		}
		return reply.Text
	}
	const search = `memory_search {"query":"what does ada drink"}`
	if got := say("s-1", `memory_create {"entity":"Ada","content":"Ada drinks oolong","relations":[{"relation":"works_at","to":"Mill"}]}`, alice); !strings.Contains(got, `"status":"created"`) {
		t.Error(got)
	}
	for range 2 {
		if got := say("s-2", search, alice); !strings.Contains(got, "Ada drinks oolong") || !strings.Contains(got, `"session_id":"s-1"`) || !strings.Contains(got, `"user":"alice"`) {
			t.Error(got)
		}
		if got := say("s-2", search, troupe.User("bob")); !strings.Contains(got, `"hits":[]`) {
			t.Errorf("another user recalls %s", got)
		}
		if got := say("s-2", `memory_traverse {"from":"Ada"}`, alice); !strings.Contains(got, `"entity":"Mill"`) {
			t.Error(got)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openWith(t, config)
	}
	if got := say("s-3", `memory_forget {"entity":"Ada","reason":"she asked"}`, alice); !strings.Contains(got, `"status":"forgotten"`) {
		t.Error(got)
	}
	if got := say("s-2", search, alice); strings.Contains(got, "oolong") {
		t.Errorf("recalled after it was forgotten: %s", got)
	}
}

// What the program does not grant is refused, and what cannot be granted does not open.
func TestMemoryIsGranted(t *testing.T) {
	reads := troupe.Memory{Search: true}
	for _, c := range []struct {
		enabled bool
		granted troupe.Memory
		message string
		want    string
	}{
		{true, reads, `memory_create {"entity":"a","content":"b"}`, "agent clerk may not use memory_create"},
		{true, reads, `memory_search {"query":"a","scope":"workspace"}`, "is not granted to agent clerk, which has session"},
		{true, troupe.Memory{}, `memory_search {"query":"a"}`, "agent clerk may not use memory_search"},
		{true, troupe.Memory{Create: true, Scope: []string{"global"}}, `memory_create {"entity":"a","content":"b"}`, "global is written by operators"},
		{false, reads, `memory_search {"query":"a"}`, "memory_search"},
	} {
		s := openWith(t, troupe.Config{Temporary: true, Memory: c.enabled, Agents: []troupe.Agent{remembering(c.granted)}})
		var r *troupe.Refusal
		if _, err := s.Call(t.Context(), "clerk", c.message); !errors.As(err, &r) || !strings.Contains(r.Detail, c.want) {
			t.Errorf("%+v: got %v, want %s", c, err, c.want)
		}
	}
	for _, m := range []troupe.Memory{{Search: true, Scope: []string{"planet"}}, {Search: true, Scope: []string{"agent", "agent"}}, {Scope: []string{"agent"}}} {
		if _, err := troupe.Open(troupe.Config{Temporary: true, Agents: []troupe.Agent{remembering(m)}}); err == nil || !strings.Contains(fmt.Sprint(err), "Memory: ") {
			t.Errorf("%+v: %v", m, err)
		}
	}
}
