// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/runs"
)

// registryState is the input of one registry operation.
type registryState struct {
	items     []actor.StateItem // sorted by name
	now       actor.Time
	principal string
	native    []string
}

func (s registryState) apply(operation, body string) (change, *actor.Refusal) {
	switch operation {
	case OpPut, OpRegister:
		spec, refusal := s.readSpec(operation, body)
		if refusal != nil {
			return change{}, refusal
		}
		return s.putAgent(spec)
	case OpDelete:
		id, refusal := nameMember(body, "agent_id")
		if refusal != nil {
			return change{}, refusal
		}
		return s.deleteAgent(id)
	case OpCreateKey:
		return s.createKey(body)
	case OpRevokeKey:
		id, refusal := nameMember(body, "key_id")
		if refusal != nil {
			return change{}, refusal
		}
		return s.revokeKey(id)
	default:
		return change{}, actor.Refuse(actor.Invalid, "want operation %s, %s, %s, %s or %s, got %.40q", OpPut, OpRegister, OpDelete, OpCreateKey, OpRevokeKey, operation)
	}
}

func (s registryState) readSpec(operation, body string) (Spec, *actor.Refusal) {
	spec, err := ReadJSON([]byte(body))
	if err != nil {
		refusal := actor.Refuse(actor.Invalid, "%v", err)
		if problems, ok := err.(Problems); ok && len(problems) > 0 {
			refusal.Field = problems[0].Field
		}
		return Spec{}, refusal
	}
	switch {
	case operation == OpRegister && spec.Kind != KindExternal:
		refusal := actor.Refuse(actor.Invalid, `endpoint: is missing; want the URL of the agent, like "http://127.0.0.1:9001", or create a declared agent`)
		refusal.Field = "endpoint"
		return Spec{}, refusal
	case operation == OpPut && spec.Kind != KindDeclared:
		refusal := actor.Refuse(actor.Invalid, "endpoint: not allowed for a declared agent; register an external agent instead")
		refusal.Field = "endpoint"
		return Spec{}, refusal
	case spec.ID == RegistryID.Agent || slices.Contains(s.native, spec.ID):
		return Spec{}, actor.Refuse(actor.Rejected, "%s is part of this program; choose another name", spec.ID)
	}
	return spec, nil
}

// putAnswer is the reply to an agent.put or agent.register operation.
type putAnswer struct {
	OK         bool   `json:"ok"`
	ID         string `json:"agent_id"`
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	Definition string `json:"definition"`
	Created    bool   `json:"created"`
	Changed    bool   `json:"changed"`
}

func (s registryState) putAgent(spec Spec) (change, *actor.Refusal) {
	previous, exists := s.agent(spec.ID)
	answer := putAnswer{true, spec.ID, spec.Name, spec.Kind, spec.Hash().String(), !exists, true}
	item := actor.StateItem{Name: agentPrefix + spec.ID}
	if refusal := s.checkDurability(spec); refusal != nil {
		return change{}, refusal
	}
	if !exists {
		if s.count(agentPrefix) >= AgentsMax {
			return change{}, actor.Refuse(actor.Budget, "%d agents exist, at most %d allowed; delete one first", AgentsMax, AgentsMax)
		}
		item.Value = s.encodeAgent(spec)
		return s.checkSize(change{updates: []actor.StateItem{item}, answer: answer})
	}
	if refusal := s.checkReplace(previous, spec); refusal != nil {
		return change{}, refusal
	}
	if previous.Hash() == spec.Hash() {
		answer.Changed = false
		item.Value = s.value(item.Name)
		return change{updates: []actor.StateItem{item}, answer: answer}, nil
	}
	item.Value = s.encodeAgent(spec)
	retired, refusal := s.retire(previous)
	if refusal != nil {
		return change{}, refusal
	}
	return s.checkSize(change{updates: append([]actor.StateItem{item}, retired...), answer: answer})
}

// checkDurability rejects a change of an agent's durability while one of its runs
// may be open. The durability decides whether the journal of an actor is read and
// extended. This MUST NOT change during a run.
func (s registryState) checkDurability(spec Spec) *actor.Refusal {
	// If the agent exists, its former definitions are not compared: definitions
	// replaced within FormerRetention had the same durability.
	if previous, exists := s.agent(spec.ID); exists {
		if previous.Durability != spec.Durability {
			return durabilityRefusal(spec.ID, previous.Durability)
		}
		return nil
	}
	for _, item := range s.items {
		var f formerRecord
		if !strings.HasPrefix(item.Name, formerPrefix+spec.ID+"/") || s.expired(replacedAt(item.Value)) || json.Unmarshal(item.Value, &f) != nil {
			continue
		}
		if previous, err := ReadJSON(f.Spec); err == nil && previous.Durability != spec.Durability {
			return durabilityRefusal(spec.ID, previous.Durability)
		}
	}
	return nil
}

func durabilityRefusal(id, durability string) *actor.Refusal {
	r := actor.Refuse(actor.Rejected, "%s has, or recently had, durability %s, which cannot change while its runs may be open; keep it or choose another name", id, durability)
	r.Field = "durability"
	return r
}

// checkReplace prevents a principal from taking over the agent of another.
func (s registryState) checkReplace(previous, spec Spec) *actor.Refusal {
	owner := s.owner(spec.ID)
	switch {
	case s.principal == Operator:
		return nil
	case previous.Kind != spec.Kind:
		return actor.Refuse(actor.Rejected, "%s is an agent of kind %s; delete it first or choose another name", spec.ID, previous.Kind)
	case previous.Kind == KindExternal && previous.Endpoint != spec.Endpoint && owner != actor.FitText(s.principal, runs.NameBytesMax):
		return actor.Refuse(actor.Rejected, "%s is registered at another endpoint by %s, and only that principal may change it; delete it first or choose another name", spec.ID, ownerOrUnknown(owner))
	}
	return nil
}

func ownerOrUnknown(principal string) string {
	if principal == "" {
		return "an unknown principal"
	}
	return principal
}

func (s registryState) deleteAgent(id string) (change, *actor.Refusal) {
	previous, exists := s.agent(id)
	if !exists {
		if id == RegistryID.Agent || slices.Contains(s.native, id) {
			return change{}, actor.Refuse(actor.Rejected, "%s is part of this program and cannot be deleted", id)
		}
		return s.announceAbsent(agentPrefix+id, actor.Refuse(actor.NotFound, "no agent is named %s; see GET /v1/agents", id)), nil
	}
	retired, refusal := s.retire(previous)
	if refusal != nil {
		return change{}, refusal
	}
	return change{updates: append([]actor.StateItem{{Name: agentPrefix + id}}, retired...), answer: struct {
		OK bool   `json:"ok"`
		ID string `json:"agent_id"`
	}{true, id}}, nil
}

// announceAbsent announces the removal of an item that does not exist, because the
// announcement of an earlier removal may have been lost.
func (s registryState) announceAbsent(name string, refusal *actor.Refusal) change {
	return change{updates: []actor.StateItem{{Name: name}}, absent: refusal}
}

// retire keeps the definition of an agent for the runs that began with it. When
// a limit is reached, it also deletes definitions that were replaced more than
// FormerRetention ago, because few runs still need them. It deletes the oldest first,
// up to prunedPerActionMax at once.
func (s registryState) retire(previous Spec) ([]actor.StateItem, *actor.Refusal) {
	prefix := formerPrefix + previous.ID + "/"
	name := prefix + previous.Hash().String()
	updates := []actor.StateItem{{Name: name, Value: invariant.Must(json.Marshal(formerRecord{previous.Encode(), runs.FormatTime(s.now)}))}}
	var all, ofAgent []actor.StateItem
	bytes := 0
	for _, item := range s.items {
		if !strings.HasPrefix(item.Name, formerPrefix) || item.Name == name {
			continue
		}
		all, bytes = append(all, item), bytes+len(item.Value)
		if strings.HasPrefix(item.Name, prefix) {
			ofAgent = append(ofAgent, item)
		}
	}
	full, agentFull := len(all) >= FormerMax, len(ofAgent) >= FormerPerAgentMax
	switch {
	case agentFull:
		updates = s.prune(updates, ofAgent)
	case full || bytes >= formerBytesMax:
		updates = s.prune(updates, all)
	}
	if (full || agentFull) && len(updates) == 1 {
		return nil, actor.RefuseBusy(actor.ScopeCallee, FormerRetention,
			"%s was changed %d times within a day, and all agents %d times; open runs need the former definitions; retry later", previous.ID, len(ofAgent), len(all))
	}
	return updates, nil
}

// prune appends to updates the deletion of expired definitions, oldest first.
func (s registryState) prune(updates, former []actor.StateItem) []actor.StateItem {
	type candidate struct {
		name string
		at   actor.Time
	}
	var old []candidate
	for _, item := range former {
		if at := replacedAt(item.Value); s.expired(at) {
			old = append(old, candidate{item.Name, at})
		}
	}
	slices.SortStableFunc(old, func(a, b candidate) int { return cmp.Compare(a.at, b.at) })
	for _, f := range old[:min(len(old), prunedPerActionMax-len(updates))] {
		updates = append(updates, actor.StateItem{Name: f.name})
	}
	return updates
}

// expired reports whether a definition replaced at the given time is older than
// FormerRetention.
func (s registryState) expired(at actor.Time) bool { return s.now.Sub(at) > FormerRetention }

// replacedAt returns the time at which a definition was replaced, or 0 if the
// record cannot be decoded.
func replacedAt(value []byte) actor.Time {
	var f formerRecord
	if json.Unmarshal(value, &f) != nil {
		return 0
	}
	at, err := runs.ParseTime(f.Replaced)
	if err != nil {
		return 0
	}
	return at
}

// checkSize refuses a change that would exceed the maximum size of the registry.
func (s registryState) checkSize(c change) (change, *actor.Refusal) {
	bytes := 0
	for _, item := range s.items {
		bytes += len(item.Name) + len(item.Value)
	}
	for _, item := range c.updates {
		bytes += len(item.Name) + len(item.Value) - len(s.value(item.Name))
	}
	if bytes > registryBytesMax {
		return change{}, actor.Refuse(actor.Budget, "all agents have %d bytes in total, at most %d allowed; delete some or shorten prompts", bytes, registryBytesMax)
	}
	return c, nil
}

// createKey stores the record of an API key. The format of keys is defined by the
// gateway; the registry stores a named record.
func (s registryState) createKey(body string) (change, *actor.Refusal) {
	id, refusal := nameMember(body, "key_id")
	if refusal != nil {
		return change{}, refusal
	}
	var record map[string]jsontext.Value
	if err := json.Unmarshal([]byte(body), &record); err != nil || len(body) > keyBytesMax {
		return change{}, actor.Refuse(actor.Invalid, "want a key's record of at most %d bytes", keyBytesMax)
	}
	if _, exists := record["secret"]; exists {
		return change{}, actor.Refuse(actor.Invalid, "secret: not allowed; send only its digest")
	}
	if digest := string(record["digest"]); len(digest) != 66 || strings.Trim(digest[1:65], "0123456789abcdef") != "" {
		refusal := actor.Refuse(actor.Invalid, "digest: want the 64 hexadecimal digits of a SHA-256")
		refusal.Field = "digest"
		return change{}, refusal
	}
	item := actor.StateItem{Name: keyPrefix + id, Value: s.value(keyPrefix + id)}
	record["created_at"] = invariant.Must(json.Marshal(runs.FormatTime(s.now)))
	if item.Value != nil {
		var previous map[string]jsontext.Value
		_ = json.Unmarshal(item.Value, &previous)
		if string(previous["digest"]) != string(record["digest"]) {
			return change{}, actor.Refuse(actor.Rejected, "key %s exists with another digest; generate a new one", id)
		}
	} else {
		if s.count(keyPrefix) >= KeysMax {
			return change{}, actor.Refuse(actor.Budget, "%d keys exist, at most %d allowed; revoke one first", KeysMax, KeysMax)
		}
		item.Value = invariant.Must(json.Marshal(record, json.Deterministic(true)))
	}
	return s.checkSize(change{updates: []actor.StateItem{item}, answer: keyAnswer{true, id}})
}

type keyAnswer struct {
	OK bool   `json:"ok"`
	ID string `json:"key_id"`
}

func (s registryState) revokeKey(id string) (change, *actor.Refusal) {
	if s.value(keyPrefix+id) == nil {
		return s.announceAbsent(keyPrefix+id, actor.Refuse(actor.NotFound, "no key is named %s; see `troupe keys list`", id)), nil
	}
	if mutant.On("revoked-key-kept") {
		return change{answer: keyAnswer{true, id}}, nil
	}
	return change{updates: []actor.StateItem{{Name: keyPrefix + id}}, answer: keyAnswer{true, id}}, nil
}

func (s registryState) value(name string) []byte {
	at, found := slices.BinarySearchFunc(s.items, name, func(i actor.StateItem, name string) int { return strings.Compare(i.Name, name) })
	if !found {
		return nil
	}
	return s.items[at].Value
}

func (s registryState) agent(id string) (Spec, bool) {
	value := s.value(agentPrefix + id)
	if value == nil {
		return Spec{}, false
	}
	spec, _, err := decodeAgentRecord(value)
	return spec, err == nil
}

func (s registryState) owner(id string) string {
	_, owner, _ := decodeAgentRecord(s.value(agentPrefix + id))
	return owner
}

func (s registryState) encodeAgent(spec Spec) []byte {
	return invariant.Must(json.Marshal(agentRecord{spec.Encode(), actor.FitText(s.principal, runs.NameBytesMax), runs.FormatTime(s.now)}))
}

func (s registryState) count(prefix string) int {
	n := 0
	for _, item := range s.items {
		if strings.HasPrefix(item.Name, prefix) {
			n++
		}
	}
	return n
}

// nameMember decodes the member of body that names the object of an operation.
func nameMember(body, member string) (string, *actor.Refusal) {
	var in map[string]jsontext.Value
	var name string
	bad := func(text string) (string, *actor.Refusal) {
		refusal := actor.Refuse(actor.Invalid, "%s: %s", member, text)
		refusal.Field = member
		return "", refusal
	}
	if json.Unmarshal([]byte(body), &in) != nil || json.Unmarshal(in[member], &name) != nil {
		return bad("is missing")
	}
	if err := actor.CheckName(name); err != nil {
		return bad(err.Error())
	}
	return name, nil
}
