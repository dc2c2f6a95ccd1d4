// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/runs"
)

// A principal that changes its agents without end uses up its own quota only. Other
// principals create, change and delete agents as before, and each may delete its own.
func TestPrincipalCannotFillRegistry(t *testing.T) {
	f := newRegistryFixture(t)
	f.open = func(string) bool { return true } // runs need every definition
	f.principal = "bob"
	f.mustApply(agents.OpPut, `{"name":"bobs"}`)
	f.principal = "mallory"
	var refused *actor.Refusal
	for n := 0; refused == nil; n++ {
		if n > 1000 {
			t.Fatal("the quota of a principal has no bound")
		}
		refused = f.apply(agents.OpPut, fmt.Sprintf(`{"name":"m%d","prompt":"%d"}`, n%3, n)).Refusal
	}
	if refused.Reason != actor.Busy || refused.RetryAfter <= 0 || refused.RetryAfter > time.Hour || !strings.Contains(refused.Detail, "mallory") {
		t.Errorf("%+v", refused)
	}
	for _, f.principal = range []string{"bob", agents.Operator} {
		f.mustApply(agents.OpPut, `{"name":"new-`+f.principal+`"}`)
		f.mustApply(agents.OpPut, `{"name":"new-`+f.principal+`","prompt":"changed"}`)
		f.mustApply(agents.OpDelete, `{"agent_id":"new-`+f.principal+`"}`)
	}
	f.principal = "mallory"
	for n := range 3 {
		f.mustApply(agents.OpDelete, fmt.Sprintf(`{"agent_id":"m%d"}`, n))
	}
	if out := f.apply(agents.OpPut, `{"name":"m4"}`); out.Refusal == nil {
		t.Error("deletions freed space that open runs need")
	}
}

// The share of a principal ends before the registry is full of agents, in number and in
// bytes. The operator has a share that others cannot use up.
func TestPrincipalCannotUseUpAgents(t *testing.T) {
	for name, test := range map[string]struct {
		prompt string
		stored int // agents stored directly, because operations take longer
	}{"number": {"", 250}, "bytes": {strings.Repeat("x", 30<<10), 95}} {
		f := newRegistryFixture(t)
		f.open = func(string) bool { return false }
		fill := func(principal string) (created int) {
			f.principal = principal
			for {
				body := fmt.Sprintf(`{"name":"%s-%d","prompt":"x%s"}`, principal, created, test.prompt)
				if created < test.stored && principal != "late" {
					spec, err := agents.ReadJSON([]byte(body))
					if err != nil {
						t.Fatal(err)
					}
					f.state["agent/"+spec.ID] = fmt.Sprintf(`{"spec":%s,"owner":%q,"at":"x"}`, spec.Encode(), principal)
					created++
					continue
				}
				if out := f.apply(agents.OpPut, body); out.Refusal != nil {
					if out.Refusal.Reason != actor.Budget {
						t.Errorf("%s: %+v", name, out.Refusal)
					}
					return created
				}
				created++
			}
		}
		first := fill("mallory")
		for principal := range 3 {
			if got := fill(fmt.Sprint("p", principal)); got != first {
				t.Errorf("%s: principal %d created %d agents, the first %d", name, principal, got, first)
			}
		}
		if got := fill("late"); got != 0 && name == "number" {
			t.Errorf("%s: %d agents beyond the share of all principals", name, got)
		}
		f.principal = agents.Operator
		f.mustApply(agents.OpPut, `{"name":"operators"}`)
		f.mustApply(agents.OpPut, `{"name":"operators","prompt":"changed"}`)
		f.mustApply(agents.OpDelete, `{"agent_id":"mallory-0"}`)
	}
}

// Principals within their quotas cannot together store more former definitions than
// their common share. If open runs need all of them, changes wait.
func TestPrincipalsShareFormerDefinitions(t *testing.T) {
	const principals = (agents.AgentsMax + agents.FormerMax) / agents.PrincipalRecordsMax
	f := newRegistryFixture(t)
	for p := range principals {
		f.principal = fmt.Sprint("p", p)
		f.mustApply(agents.OpPut, fmt.Sprintf(`{"name":"a%d"}`, p))
		for n := range agents.PrincipalRecordsMax - 1 {
			f.state[fmt.Sprintf("former/b%d/%064d", p, n)] = fmt.Sprintf(`{"spec":{"name":"b"},"replaced_at":%q,"owner":"p%d"}`, runs.FormatTime(f.now), p)
		}
	}
	f.principal, f.open = "late", func(string) bool { return true }
	out := f.apply(agents.OpPut, `{"name":"late"}`)
	if out.Refusal == nil || out.Refusal.Reason != actor.Busy || !strings.Contains(out.Refusal.Detail, "all principals together") {
		t.Fatalf("%+v", out)
	}
	f.open = func(string) bool { return false }
	before := len(f.state)
	if f.mustApply(agents.OpPut, `{"name":"late"}`); len(f.state) > before {
		t.Errorf("%d records, %d before", len(f.state), before)
	}
}

// Former definitions that no open run needs are deleted first, the oldest before the
// others. Needed ones are kept however old they are.
func TestUnneededDefinitionsArePruned(t *testing.T) {
	f := newRegistryFixture(t)
	needed := map[string]bool{}
	f.open = func(hash string) bool { return needed[hash] }
	var last string
	for n := range 700 {
		f.now = f.now.Add(time.Second)
		last = f.mustApply(agents.OpPut, fmt.Sprintf(`{"name":"helper","prompt":"%d"}`, n))["definition"].(string)
		if n%100 == 0 {
			needed[last] = true
		}
	}
	kept := map[string]bool{}
	for _, def := range f.catalog().Former {
		kept[def.Hash.String()] = true
	}
	for hash := range needed {
		if !kept[hash] {
			t.Errorf("definition %s was deleted, but an open run needs it", hash)
		}
	}
	if len(kept) > agents.PrincipalRecordsMax || len(kept) < agents.PrincipalRecordsMax/2 || !reflect.DeepEqual(f.state, f.announced) {
		t.Errorf("%d former definitions", len(kept))
	}
}

// While the node does not know its open runs, definitions are kept for FormerRetention.
func TestDefinitionsAreKeptWhileRunsAreUnknown(t *testing.T) {
	f := newRegistryFixture(t)
	put := func(n int) actor.Outcome {
		f.now = f.now.Add(time.Second)
		return f.apply(agents.OpPut, fmt.Sprintf(`{"name":"helper","prompt":"%d"}`, n))
	}
	for n := range agents.PrincipalRecordsMax {
		if out := put(n); out.Refusal != nil {
			t.Fatal(n, out.Refusal)
		}
	}
	if out := put(-1); out.Refusal == nil || out.Refusal.Reason != actor.Busy || out.Refusal.RetryAfter > time.Minute {
		t.Fatalf("%+v", out)
	}
	f.now = f.now.Add(agents.FormerRetention)
	before := len(f.catalog().Former)
	if out := put(-1); out.Refusal != nil {
		t.Fatal(out.Refusal)
	}
	if got := len(f.catalog().Former); got >= before || got < before-100 || !reflect.DeepEqual(f.state, f.announced) {
		t.Errorf("%d former, %d before", got, before)
	}
}

// Agents and definitions stored by earlier versions may exceed the quota. They can
// still be changed and deleted.
func TestStoreBeyondQuota(t *testing.T) {
	f := newRegistryFixture(t)
	for n := range 1000 {
		spec, err := agents.ReadJSON(fmt.Appendf(nil, `{"name":"a%d"}`, n))
		if err != nil {
			t.Fatal(err)
		}
		f.state["agent/"+spec.ID] = fmt.Sprintf(`{"spec":%s,"owner":"key:a","at":"x"}`, spec.Encode())
	}
	for n := range 2000 {
		f.state[fmt.Sprintf("former/y%d/%064d", n, n)] = fmt.Sprintf(`{"spec":{"name":"x"},"replaced_at":%q}%s`, runs.FormatTime(f.now), strings.Repeat(" ", 6<<10))
	}
	f.open = func(string) bool { return false }
	for n := range 200 {
		f.mustApply(agents.OpDelete, fmt.Sprintf(`{"agent_id":"a%d"}`, n))
	}
	f.mustApply(agents.OpPut, `{"name":"a500","prompt":"changed"}`)
	if out := f.apply(agents.OpPut, `{"name":"more"}`); out.Refusal == nil || out.Refusal.Reason != actor.Budget {
		t.Errorf("%+v", out)
	}
	f.principal = "key:b"
	f.mustApply(agents.OpPut, `{"name":"more"}`)
}

func TestRegistryLimits(t *testing.T) {
	f := newRegistryFixture(t)
	for n := range agents.KeysMax {
		f.state[fmt.Sprintf("key/k%d", n)] = keyRecord(fmt.Sprintf("k%d", n), "a")
	}
	if out := f.apply(agents.OpCreateKey, keyRecord("more", "b")); out.Refusal == nil || out.Refusal.Reason != actor.Budget {
		t.Errorf("%+v", out)
	}
	if !agents.Registry(agents.DefaultQuotas(), agents.NativeNames{}).System {
		t.Error("the registry is not a system agent")
	}
}
