// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// storedWorkspace is the state of the actor of a workspace, whose changes are durable only after a sync.
type storedWorkspace struct{ durable, items []actor.StateItem }

// put performs a change and returns the version that it is; 0 if it is refused.
func (s *storedWorkspace) put(p WorkspacePut, at actor.Time) (version uint64, status string, _ *actor.Refusal) {
	updates, answer, refusal := p.apply(s.items, at)
	if refusal != nil {
		return 0, "", refusal
	}
	s.items = slices.Clone(s.items)
	for _, u := range updates {
		i, found := slices.BinarySearchFunc(s.items, u.Name, func(i actor.StateItem, name string) int { return strings.Compare(i.Name, name) })
		switch {
		case u.Check() != nil:
			panic(u.Check())
		case found && len(u.Value) == 0:
			s.items = slices.Delete(s.items, i, i+1)
		case found:
			panic("a version was written twice: " + u.Name)
		case len(u.Value) > 0:
			s.items = slices.Insert(s.items, i, u)
		}
	}
	var out struct {
		Version uint64 `json:"version"`
		Status  string `json:"status"`
	}
	if err := json.Unmarshal([]byte(answer), &out, json.RejectUnknownMembers(false)); err != nil {
		panic(err)
	}
	return out.Version, out.Status, nil
}

// The versions of a document are 1, 2, 3 and so on, for all writers together. A writer that names the version that it has
// read overwrites no other change. The newest versions read as they were written. A crash loses only changes that were not
// acknowledged.
func TestVersionsOfDocumentsAreLinear(t *testing.T) {
	keys := []string{"a", "a/0000000001", "a-b", "plans/2027"}
	rapid.Check(t, func(t *rapid.T) {
		var s storedWorkspace
		current, acknowledged := map[string]uint64{}, map[string]uint64{}                   // newest version, also that of a removal
		contents, durable := map[string]map[uint64]string{}, map[string]map[uint64]string{} // kept ones
		copyOf := func(all map[string]map[uint64]string) map[string]map[uint64]string {
			out := map[string]map[uint64]string{}
			for key, versions := range all {
				out[key] = map[uint64]string{}
				for v, text := range versions {
					out[key][v] = text
				}
			}
			return out
		}
		for step := range rapid.IntRange(1, 80).Draw(t, "steps") {
			key := rapid.SampledFrom(keys).Draw(t, "key")
			if contents[key] == nil {
				contents[key] = map[uint64]string{}
			}
			switch action := rapid.IntRange(0, 9).Draw(t, "action"); {
			case action == 8: // everything so far is durable
				s.durable, durable = s.items, copyOf(contents)
				for k, v := range current {
					acknowledged[k] = v
				}
			case action == 9: // a crash
				s.items, contents = s.durable, copyOf(durable)
				clear(current)
				for k, v := range acknowledged {
					current[k] = v
				}
			default:
				p := WorkspacePut{Key: key, Content: jsontext.Value(fmt.Sprintf(`"text %d"`, step))}
				removes := action == 0
				if removes {
					p.Content = jsontext.Value("null")
				}
				exists, wants := len(contents[key]) > 0, true
				if rapid.Bool().Draw(t, "expects") {
					expect := current[key] + uint64(rapid.IntRange(0, 2).Draw(t, "ahead"))
					if rapid.Bool().Draw(t, "new") {
						expect = 0
					}
					p.Expect = &expect
					wants = expect == current[key] || expect == 0 && !exists
				}
				wants = wants && (exists || !removes)
				version, _, refusal := s.put(p, actor.Time(step+1))
				if (refusal == nil) != wants {
					t.Fatalf("%s of version %d with expect %v: %v", key, current[key], p.Expect, refusal)
				}
				if refusal != nil {
					continue
				}
				if version != current[key]+1 {
					t.Fatalf("version %d of %s follows %d", version, key, current[key])
				}
				current[key] = version
				if removes {
					clear(contents[key])
				} else {
					contents[key][version] = fmt.Sprintf("text %d", step)
					delete(contents[key], version-WorkspaceVersionsMax)
				}
			}
			for _, key := range keys {
				for version := uint64(1); version <= current[key]; version++ {
					got, refusal := WorkspaceDocument(s.items, key, version)
					want, kept := contents[key][version]
					if kept != (refusal == nil) || kept && !strings.Contains(string(got), fmt.Sprintf(`"content":%q`, want)) {
						t.Fatalf("version %d of %s: %s %v, want %q", version, key, got, refusal, want)
					}
				}
			}
		}
	})
}

func TestRefusedChangesOfWorkspace(t *testing.T) {
	var s storedWorkspace
	at := actor.Time(0)
	put := func(key, content string, expect ...uint64) (string, *actor.Refusal) {
		p := WorkspacePut{Key: key, Content: jsontext.Value(content)}
		if len(expect) > 0 {
			p.Expect = &expect[0]
		}
		at++
		_, status, refusal := s.put(p, at)
		return status, refusal
	}
	for _, c := range []struct {
		key, content string
		expect       []uint64
		want         string
	}{
		{"config", `{"a": 1}`, []uint64{0}, "created"},
		{"config", `{"a": 2}`, []uint64{1}, "replaced"},
		{"config", `"x"`, []uint64{1}, "expect_version: the current version of config is 2, not 1: read it with workspace_get, and repeat your change with expect_version 2"},
		{"config", `"x"`, []uint64{0}, "the current version of config is 2, not 0"},
		{"config", `"x"`, []uint64{3}, "the current version of config is 2, not 3"},
		{"other", `null`, nil, "key: the workspace has no document \"other\": workspace_get without a key lists"},
		{"config", `null`, []uint64{1}, "the current version of config is 2"},
		{"config", `null`, []uint64{2}, "removed"},
		{"config", `null`, nil, "has no document \"config\" since its version 3, which removed it"},
		{"config", `"back"`, []uint64{2}, "the current version of config is 3, not 2"},
		{"config", `"back"`, []uint64{0}, "created"},
		{"config", `"twice"`, []uint64{0}, "the current version of config is 4, not 0"},
		{"", `1`, nil, "key: "},
		{"a//b", `1`, nil, "key: "},
		{"../etc", `1`, nil, "key: "},
		{"a b", `1`, nil, "key: "},
		{"Grüße", `1`, nil, "key: "},
		{strings.Repeat("abc/", 32) + "x", `1`, nil, "key: "},
		{"k", ``, nil, "content: want a JSON value"},
		{"k", `{`, nil, "content: want a JSON value"},
		{"k", `"` + strings.Repeat("x", WorkspaceContentMax-2) + `"`, nil, "created"},
		{"k", `"` + strings.Repeat("x", WorkspaceContentMax-1) + `"`, nil, "content: has 61441 bytes, at most 61440 allowed: divide it"},
	} {
		status, refusal := put(c.key, c.content, c.expect...)
		if got := status + fmt.Sprint(refusal); !strings.Contains(got, c.want) {
			t.Errorf("%s %.20s %v: %s, want %s", c.key, c.content, c.expect, got, c.want)
		}
	}
	for i := range WorkspaceDocsMax - 2 {
		if _, refusal := put(fmt.Sprintf("doc-%d", i), `1`); refusal != nil {
			t.Fatal(refusal)
		}
	}
	if _, refusal := put("more", `1`); refusal == nil || refusal.Reason != actor.Budget || !strings.Contains(refusal.Detail, "remove one with the content null") {
		t.Errorf("a document too many: %v", refusal)
	}
	long := `"` + strings.Repeat("x", WorkspaceContentMax-2) + `"`
	full := 0 // documents with all their versions
	var refusal *actor.Refusal
	for ; refusal == nil; full++ {
		for range WorkspaceVersionsMax {
			if _, refusal = put(fmt.Sprintf("doc-%d", full), long); refusal != nil {
				break
			}
			if w := readWorkspace(s.items); w.bytes > WorkspaceBytesMax {
				t.Fatalf("the workspace has %d bytes", w.bytes)
			}
		}
	}
	if refusal.Reason != actor.Budget || !strings.Contains(refusal.Detail, "remove documents with the content null") {
		t.Errorf("beyond the space: %v", refusal)
	}
	if status, refusal := put("doc-0", long); status != "replaced" {
		t.Errorf("a full workspace takes no change of a document: %v", refusal)
	}
	if status, refusal := put("doc-1", `null`); status != "removed" {
		t.Errorf("a full workspace does not shrink: %v", refusal)
	}
	if status, refusal := put(fmt.Sprintf("doc-%d", full-1), long); status != "replaced" {
		t.Errorf("the space of a removed document is not free: %v", refusal)
	}
}

// Removals are remembered up to a bound, the last ones.
func TestRemovalsOfWorkspaceAreBounded(t *testing.T) {
	var s storedWorkspace
	for i := range WorkspaceRemovedMax + 3 {
		for _, content := range []string{`1`, `null`} {
			if _, _, refusal := s.put(WorkspacePut{Key: fmt.Sprintf("doc-%d", i), Content: jsontext.Value(content)}, actor.Time(i+1)); refusal != nil {
				t.Fatal(refusal)
			}
		}
	}
	if n := len(s.items); n != WorkspaceRemovedMax {
		t.Errorf("%d removals are kept, want %d", n, WorkspaceRemovedMax)
	}
	for key, want := range map[string]uint64{"doc-2": 1, "doc-3": 3} {
		if version, _, refusal := s.put(WorkspacePut{Key: key, Content: jsontext.Value("1")}, 1e6); version != want {
			t.Errorf("%s came back as version %d, want %d: %v", key, version, want, refusal)
		}
	}
}

func TestWorkspaceIsListedInPages(t *testing.T) {
	var s storedWorkspace
	for i := range WorkspacePageMax + 5 {
		s.put(WorkspacePut{Key: fmt.Sprintf("doc-%02d", i), Content: jsontext.Value("[1]"), By: WorkspaceBy{Agent: "clerk"}}, 1)
	}
	s.put(WorkspacePut{Key: "doc-00", Content: jsontext.Value("null")}, 2)
	var keys []string
	for after := ""; ; {
		var page struct {
			Documents []struct {
				Key     string      `json:"key"`
				Version uint64      `json:"version"`
				Bytes   int         `json:"bytes"`
				Source  WorkspaceBy `json:"source"`
			} `json:"documents"`
			Next string `json:"next"`
		}
		if err := json.Unmarshal(WorkspaceList(s.items, after), &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Documents) > WorkspacePageMax || page.Documents[0].Bytes != 3 || page.Documents[0].Version != 1 || page.Documents[0].Source.Agent != "clerk" {
			t.Errorf("%+v", page)
		}
		for _, d := range page.Documents {
			keys = append(keys, d.Key)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if len(keys) != WorkspacePageMax+4 || keys[0] != "doc-01" || !slices.IsSorted(keys) {
		t.Errorf("listed %v", keys)
	}
}
