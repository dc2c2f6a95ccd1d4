// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"errors"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// Quotas of declared tools. They leave agents and keys the rest of the registry's state.
const (
	DeclaredToolsMax  = 1000                 // of all principals together
	guestToolsMax     = DeclaredToolsMax / 2 // of all principals but the operator
	principalToolsMax = DeclaredToolsMax / 8 // of a principal other than the operator

	toolBytesMax          = actor.ActorStateBytesMax / 8
	guestToolBytesMax     = toolBytesMax / 2
	principalToolBytesMax = toolBytesMax / 8
)

// toolRecord is the registry's record of a declared tool.
type toolRecord struct {
	Spec  jsontext.Value `json:"spec"`
	Owner string         `json:"owner"` // principal that may change and delete the tool
	At    string         `json:"at"`
	By    string         `json:"accepted_by,omitzero"`        // see agentRecord
	Key   string         `json:"accepted_by_key_id,omitzero"` // likewise
}

// DeclaredTool is a tool that a user has declared, and its owner.
type DeclaredTool struct {
	tools.Declared
	Owner string
}

func decodeToolRecord(value []byte) (DeclaredTool, error) {
	var k toolRecord
	if err := json.Unmarshal(value, &k, json.RejectUnknownMembers(true)); err != nil {
		return DeclaredTool{}, err
	}
	d, err := tools.ReadDeclared(k.Spec)
	return DeclaredTool{d, k.Owner}, err
}

// ToolOf returns the name of the declared tool of an item of the registry, or false if the
// item is not a tool.
func ToolOf(item actor.StateItem) (name string, ok bool) {
	return strings.CutPrefix(item.Name, toolPrefix)
}

// putToolAnswer is the reply to a tool.put operation.
type putToolAnswer struct {
	OK         bool   `json:"ok"`
	Name       string `json:"tool_name"`
	Kind       string `json:"kind"`
	Definition string `json:"definition"`
	Created    bool   `json:"created"`
	Changed    bool   `json:"changed"`
}

func (s registryState) putTool(body string) (change, *actor.Refusal) {
	d, err := tools.ReadDeclared([]byte(body))
	if err != nil {
		refusal := actor.Refuse(actor.Invalid, "%v", err)
		var problems tools.FieldErrors
		if errors.As(err, &problems) {
			refusal.Field = problems[0].Field
		}
		return change{}, refusal
	}
	if refusal := s.checkFallback(&d); refusal != nil {
		return change{}, refusal
	}
	item := actor.StateItem{Name: toolPrefix + d.Name}
	stored := s.value(item.Name)
	previous, err := decodeToolRecord(stored)
	exists := stored != nil && err == nil
	answer := putToolAnswer{true, d.Name, d.Kind, d.Hash().String(), stored == nil, true}
	record := invariant.Must(json.Marshal(toolRecord{d.Encode(), s.self(), runs.FormatTime(s.now), s.by.User, s.by.Key}))
	if exists && previous.Hash() == d.Hash() {
		answer.Changed = false
		item.Value = stored
		if s.principal == Operator && previous.Owner != Operator { // the operator takes the tool over
			item.Value = record
		}
		return change{updates: []actor.StateItem{item}, answer: answer}, nil
	}
	if stored != nil { // also if this version refuses the stored definition
		owner, _ := ownerOf(stored)
		if refusal := s.checkOwner(d.Name, owner); refusal != nil {
			return change{}, refusal
		}
	} else if refusal := s.checkToolName(d.Name); refusal != nil {
		return change{}, refusal
	}
	item.Value = record
	if refusal := s.checkToolQuota(item, stored); refusal != nil {
		return change{}, refusal
	}
	return change{updates: []actor.StateItem{item}, answer: answer}, nil
}

// checkFallback rejects a tool whose fallback is declared and does not take its arguments, and a pipeline that does not
// give those of a declared tool.
func (s registryState) checkFallback(d *tools.Declared) *actor.Refusal {
	for i := range d.Steps {
		tool, err := decodeToolRecord(s.value(toolPrefix + d.Steps[i].Tool))
		if err != nil {
			continue
		}
		if err := d.CheckStep(i, &tools.Tool{Name: tool.Name, Schema: string(tool.InputSchema), Declared: &tool.Declared}); err != nil {
			refusal := actor.Refuse(actor.Invalid, "steps: %v", err)
			refusal.Field = "steps"
			return refusal
		}
	}
	other, err := decodeToolRecord(s.value(toolPrefix + d.Fallback))
	if d.Fallback == "" || err != nil { // it may be declared later
		return nil
	}
	if err := d.CheckFallback(&tools.Tool{Name: other.Name, Schema: string(other.InputSchema)}); err != nil {
		refusal := actor.Refuse(actor.Invalid, "fallback: %v", err)
		refusal.Field = "fallback"
		return refusal
	}
	return nil
}

// checkToolName rejects the name of a new tool that differs from that of another tool in upper and
// lower case only. The tools of other principals do not restrict the operator.
func (s registryState) checkToolName(name string) *actor.Refusal {
	for _, item := range s.items {
		other, ok := strings.CutPrefix(item.Name, toolPrefix)
		if !ok || actor.FoldName(other) != actor.FoldName(name) {
			continue
		}
		if owner, _ := ownerOf(item.Value); s.principal != Operator || owner == Operator {
			r := actor.Refuse(actor.Rejected, "tool_name: %s looks like the tool %s, which belongs to %s; choose another name", name, other, ownerOrUnknown(owner))
			r.Field = "tool_name"
			return r
		}
	}
	return nil
}

// checkToolQuota returns a refusal if a quota of tools is exceeded once item has replaced the
// stored record, which is nil for a new tool.
func (s registryState) checkToolQuota(item actor.StateItem, stored []byte) *actor.Refusal {
	self := s.self()
	var own, guests, all usage
	count := func(name string, value []byte, owner string) {
		r := former{name: name, bytes: len(name) + len(value)}
		all.add(r, 1)
		if owner != Operator {
			guests.add(r, 1)
		}
		if owner == self {
			own.add(r, 1)
		}
	}
	for _, other := range s.items {
		if strings.HasPrefix(other.Name, toolPrefix) && other.Name != item.Name {
			owner, _ := ownerOf(other.Value)
			count(other.Name, other.Value, owner)
		}
	}
	count(item.Name, item.Value, self)
	type quota struct {
		who        string
		used, most usage
	}
	quotas := []quota{{"the node", all, usage{records: DeclaredToolsMax, bytes: toolBytesMax}}}
	if self != Operator {
		quotas = append(quotas, quota{self, own, usage{records: principalToolsMax, bytes: principalToolBytesMax}},
			quota{"all principals but the operator", guests, usage{records: guestToolsMax, bytes: guestToolBytesMax}})
	}
	for _, q := range quotas {
		switch {
		case stored == nil && q.used.records > q.most.records:
			return actor.Refuse(actor.Budget, "%s: at most %d tools are allowed; delete one first", q.who, q.most.records)
		case len(item.Value) > len(stored) && q.used.bytes > q.most.bytes:
			return actor.Refuse(actor.Budget, "%s: the definitions of the tools have %d bytes, at most %d allowed; delete some or shorten them", q.who, q.used.bytes, q.most.bytes)
		}
	}
	return nil
}

// deleteTool deletes a tool. Agents that list it run without it.
func (s registryState) deleteTool(name string) (change, *actor.Refusal) {
	stored := s.value(toolPrefix + name)
	if stored == nil {
		return s.announceAbsent(toolPrefix+name, actor.ToolNotFound(name)), nil
	}
	owner, _ := ownerOf(stored)
	if refusal := s.checkDelete("tools delete", name, owner); refusal != nil {
		return change{}, refusal
	}
	return change{updates: []actor.StateItem{{Name: toolPrefix + name}}, answer: struct {
		OK   bool   `json:"ok"`
		Name string `json:"tool_name"`
	}{true, name}}, nil
}
