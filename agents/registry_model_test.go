// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// After any sequence of operations the registry and its announcements match the
// replies.
func TestRegistryMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newRegistryFixture(t)
		model := map[string]string{} // agent ID to definition hash
		owners := map[string]string{}
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		applyAs := func(t *rapid.T, op, body string) actor.Outcome {
			f.principal = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "who")
			return f.apply(op, body)
		}
		applyPut := func(t *rapid.T, op, id, body string) {
			before := model[id]
			out := applyAs(t, op, body)
			if out.Refusal != nil {
				return
			}
			if before == "" {
				owners[id] = f.principal
			}
			defer func() {
				if before != "" && before != model[id] && owners[id] != f.principal {
					t.Fatalf("%s changed %s of %s", f.principal, id, owners[id])
				}
			}()
			var answer struct{ Definition string }
			if err := json.Unmarshal(out.Parts[0].Bytes, &answer); err != nil {
				t.Fatal(err)
			}
			model[id] = answer.Definition
		}
		checkCatalog := func(t *rapid.T) {
			got := map[string]string{}
			for _, def := range f.catalog().Definitions {
				got[def.Name] = def.Hash.String()
			}
			if !maps.Equal(got, model) {
				t.Fatalf("catalog %v, want %v", got, model)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				id := name.Draw(t, "agent")
				applyPut(t, agents.OpPut, id, fmt.Sprintf(`{"name":%q,"prompt":"%d"}`, id, rapid.IntRange(0, 3).Draw(t, "prompt")))
			},
			"register": func(t *rapid.T) {
				id := name.Draw(t, "agent")
				applyPut(t, agents.OpRegister, id, fmt.Sprintf(`{"name":%q,"endpoint":"http://127.0.0.1:%d"}`, id, rapid.IntRange(9001, 9003).Draw(t, "port")))
			},
			"delete": func(t *rapid.T) {
				id := name.Draw(t, "agent")
				if out := applyAs(t, agents.OpDelete, fmt.Sprintf(`{"agent_id":%q}`, id)); (out.Refusal == nil) != (model[id] != "" && owners[id] == f.principal) {
					t.Fatalf("delete %s: %+v", id, out)
				} else if out.Refusal == nil {
					delete(model, id)
				}
			},
			"advance time": func(t *rapid.T) {
				f.now = f.now.Add(rapid.SampledFrom([]time.Duration{time.Minute, 13 * time.Hour}).Draw(t, "later"))
			},
			"check": checkCatalog,
			"": func(t *rapid.T) {
				if !maps.Equal(f.state, f.announced) {
					t.Fatalf("state %v, announced %v", f.state, f.announced)
				}
			},
		})
		checkCatalog(t)
	})
}
