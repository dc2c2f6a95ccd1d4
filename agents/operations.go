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

// registryState is what the registry has to go by in one turn.
type registryState struct {
	items     []actor.StateItem // by name
	now       actor.Time
	principal string
	native    []string
}

func (l registryState) apply(operation, body string) (change, *actor.Refusal) {
	switch operation {
	case OpPut, OpRegister:
		spec, refusal := l.readSpec(operation, body)
		if refusal != nil {
			return change{}, refusal
		}
		return l.putAgent(spec)
	case OpDelete:
		id, refusal := nameMember(body, "agent_id")
		if refusal != nil {
			return change{}, refusal
		}
		return l.deleteAgent(id)
	case OpCreateKey:
		return l.createKey(body)
	case OpRevokeKey:
		id, refusal := nameMember(body, "key_id")
		if refusal != nil {
			return change{}, refusal
		}
		return l.revokeKey(id)
	default:
		return change{}, actor.Refuse(actor.Invalid, "the registry knows %s, %s, %s, %s and %s, not %.40q", OpPut, OpRegister, OpDelete, OpCreateKey, OpRevokeKey, operation)
	}
}

func (l registryState) readSpec(operation, body string) (Spec, *actor.Refusal) {
	spec, err := ReadJSON([]byte(body))
	if err != nil {
		refusal := actor.Refuse(actor.Invalid, "%v", err)
		if wrong, ok := err.(Problems); ok && len(wrong) > 0 {
			refusal.Field = wrong[0].Field
		}
		return Spec{}, refusal
	}
	switch {
	case operation == OpRegister && spec.Kind != KindExternal:
		refusal := actor.Refuse(actor.Invalid, `endpoint: is missing; say where the agent answers, like "http://127.0.0.1:9001", or create a declared agent`)
		refusal.Field = "endpoint"
		return Spec{}, refusal
	case operation == OpPut && spec.Kind != KindDeclared:
		refusal := actor.Refuse(actor.Invalid, "endpoint: a declared agent has none; register an external agent instead")
		refusal.Field = "endpoint"
		return Spec{}, refusal
	case spec.ID == RegistryID.Agent || slices.Contains(l.native, spec.ID):
		return Spec{}, actor.Refuse(actor.Rejected, "%s is a part of this program: take another name", spec.ID)
	}
	return spec, nil
}

// putAnswer is what a client is told of an agent that was put.
type putAnswer struct {
	OK         bool   `json:"ok"`
	ID         string `json:"agent_id"`
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	Definition string `json:"definition"`
	Created    bool   `json:"created"`
	Changed    bool   `json:"changed"`
}

func (l registryState) putAgent(spec Spec) (change, *actor.Refusal) {
	before, there := l.agent(spec.ID)
	answer := putAnswer{true, spec.ID, spec.Name, spec.Kind, spec.Hash().String(), !there, true}
	item := actor.StateItem{Name: agentPrefix + spec.ID}
	if refusal := l.checkDurability(spec); refusal != nil {
		return change{}, refusal
	}
	if !there {
		if l.count(agentPrefix) >= AgentsMax {
			return change{}, actor.Refuse(actor.Budget, "there are %d agents, at most %d are kept: delete one first", AgentsMax, AgentsMax)
		}
		item.Value = l.encodeAgent(spec)
		return l.checkSize(change{updates: []actor.StateItem{item}, answer: answer})
	}
	if refusal := l.checkReplace(before, spec); refusal != nil {
		return change{}, refusal
	}
	if before.Hash() == spec.Hash() {
		answer.Changed = false
		item.Value = l.value(item.Name)
		return change{updates: []actor.StateItem{item}, answer: answer}, nil
	}
	item.Value = l.encodeAgent(spec)
	keep, refusal := l.retire(before)
	if refusal != nil {
		return change{}, refusal
	}
	return l.checkSize(change{updates: append([]actor.StateItem{item}, keep...), answer: answer})
}

// checkDurability keeps an agent's durability as it is for as long as one of its runs may be
// open: whether an actor's journal is read, and goes on, must not change under it.
func (l registryState) checkDurability(spec Spec) *actor.Refusal {
	if before, there := l.agent(spec.ID); there { // what it was within a day before had the same
		if before.Durability != spec.Durability {
			return durabilityRefusal(spec.ID, before.Durability)
		}
		return nil
	}
	for _, item := range l.items {
		var f formerRecord
		if !strings.HasPrefix(item.Name, formerPrefix+spec.ID+"/") || l.expired(replacedAt(item.Value)) || json.Unmarshal(item.Value, &f) != nil {
			continue
		}
		if before, err := ReadJSON(f.Spec); err == nil && before.Durability != spec.Durability {
			return durabilityRefusal(spec.ID, before.Durability)
		}
	}
	return nil
}

func durabilityRefusal(id, durability string) *actor.Refusal {
	r := actor.Refuse(actor.Rejected, "%s has durability %s, or had it not long ago, and its actors' journals need it: keep it, or take another name", id, durability)
	r.Field = "durability"
	return r
}

// checkReplace keeps an agent from being taken over by somebody else.
func (l registryState) checkReplace(before, spec Spec) *actor.Refusal {
	owner := l.owner(spec.ID)
	switch {
	case l.principal == Operator:
		return nil
	case before.Kind != spec.Kind:
		return actor.Refuse(actor.Rejected, "%s is an agent of kind %s: delete it first, or take another name", spec.ID, before.Kind)
	case before.Kind == KindExternal && before.Endpoint != spec.Endpoint && owner != actor.FitText(l.principal, runs.NameBytesMax):
		return actor.Refuse(actor.Rejected, "%s is registered at another endpoint by %s, who alone may move it: delete it first, or take another name", spec.ID, ownerOrUnknown(owner))
	}
	return nil
}

func ownerOrUnknown(principal string) string {
	if principal == "" {
		return "somebody"
	}
	return principal
}

func (l registryState) deleteAgent(id string) (change, *actor.Refusal) {
	before, there := l.agent(id)
	if !there {
		if id == RegistryID.Agent || slices.Contains(l.native, id) {
			return change{}, actor.Refuse(actor.Rejected, "%s is a part of this program and cannot be deleted", id)
		}
		return l.announceAbsent(agentPrefix+id, actor.Refuse(actor.NotFound, "no agent is named %s; GET /v1/agents lists those that are", id)), nil
	}
	keep, refusal := l.retire(before)
	if refusal != nil {
		return change{}, refusal
	}
	return change{updates: append([]actor.StateItem{{Name: agentPrefix + id}}, keep...), answer: struct {
		OK bool   `json:"ok"`
		ID string `json:"agent_id"`
	}{true, id}}, nil
}

// announceAbsent is a removal of what is not kept: the world may not have heard of one before.
func (l registryState) announceAbsent(name string, refusal *actor.Refusal) change {
	return change{updates: []actor.StateItem{{Name: name}}, absent: refusal}
}

// retire keeps what an agent was for the runs that began with it. Once there is no
// more room it lets go of what was retired so long ago that hardly any is left: the
// oldest, a few dozen at once.
func (l registryState) retire(before Spec) ([]actor.StateItem, *actor.Refusal) {
	own := formerPrefix + before.ID + "/"
	name := own + before.Hash().String()
	keep := []actor.StateItem{{Name: name, Value: invariant.Must(json.Marshal(formerRecord{before.Encode(), runs.FormatTime(l.now)}))}}
	var all, ours []actor.StateItem
	bytes := 0
	for _, item := range l.items {
		if !strings.HasPrefix(item.Name, formerPrefix) || item.Name == name {
			continue
		}
		all, bytes = append(all, item), bytes+len(item.Value)
		if strings.HasPrefix(item.Name, own) {
			ours = append(ours, item)
		}
	}
	full, alone := len(all) >= FormerMax, len(ours) >= FormerPerAgentMax
	switch {
	case alone:
		keep = l.prune(keep, ours)
	case full || bytes >= formerBytesMax:
		keep = l.prune(keep, all)
	}
	if (full || alone) && len(keep) == 1 {
		return nil, actor.RefuseBusy(actor.ScopeCallee, FormerRetention,
			"%s was changed %d times within a day, and %d agents in all: open runs need what they were; change it later", before.ID, len(ours), len(all))
	}
	return keep, nil
}

// prune lets go of those that are over, the oldest first.
func (l registryState) prune(keep, former []actor.StateItem) []actor.StateItem {
	type was struct {
		name string
		at   actor.Time
	}
	var old []was
	for _, item := range former {
		if at := replacedAt(item.Value); l.expired(at) {
			old = append(old, was{item.Name, at})
		}
	}
	slices.SortStableFunc(old, func(a, b was) int { return cmp.Compare(a.at, b.at) })
	for _, f := range old[:min(len(old), prunedPerActionMax-len(keep))] {
		keep = append(keep, actor.StateItem{Name: f.name})
	}
	return keep
}

// expired tells whether what was replaced then is hardly needed any more.
func (l registryState) expired(at actor.Time) bool { return l.now.Sub(at) > FormerRetention }

// replacedAt is when a former agent was replaced; long ago if it cannot be read.
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

// checkSize refuses what is more than an actor may keep.
func (l registryState) checkSize(c change) (change, *actor.Refusal) {
	bytes := 0
	for _, item := range l.items {
		bytes += len(item.Name) + len(item.Value)
	}
	for _, item := range c.updates {
		bytes += len(item.Name) + len(item.Value) - len(l.value(item.Name))
	}
	if bytes > registryBytesMax {
		return change{}, actor.Refuse(actor.Budget, "all agents together have %d bytes, at most %d are kept: delete some, or shorten prompts", bytes, registryBytesMax)
	}
	return c, nil
}

// createKey keeps what a key is known by. What a key is, the door knows; here it
// is a record with a name.
func (l registryState) createKey(body string) (change, *actor.Refusal) {
	id, refusal := nameMember(body, "key_id")
	if refusal != nil {
		return change{}, refusal
	}
	var record map[string]jsontext.Value
	if err := json.Unmarshal([]byte(body), &record); err != nil || len(body) > keyBytesMax {
		return change{}, actor.Refuse(actor.Invalid, "want a key's record of at most %d bytes", keyBytesMax)
	}
	if _, there := record["secret"]; there {
		return change{}, actor.Refuse(actor.Invalid, "secret: the registry takes a digest of it, and never the secret")
	}
	if digest := string(record["digest"]); len(digest) != 66 || strings.Trim(digest[1:65], "0123456789abcdef") != "" {
		refusal := actor.Refuse(actor.Invalid, "digest: want the 64 hexadecimal digits of a SHA-256")
		refusal.Field = "digest"
		return change{}, refusal
	}
	item := actor.StateItem{Name: keyPrefix + id, Value: l.value(keyPrefix + id)}
	record["created_at"] = invariant.Must(json.Marshal(runs.FormatTime(l.now)))
	if item.Value != nil {
		var before map[string]jsontext.Value
		_ = json.Unmarshal(item.Value, &before)
		if string(before["digest"]) != string(record["digest"]) {
			return change{}, actor.Refuse(actor.Rejected, "there is another key %s: draw a new one", id)
		}
	} else {
		if l.count(keyPrefix) >= KeysMax {
			return change{}, actor.Refuse(actor.Budget, "there are %d keys, at most %d are kept: revoke one first", KeysMax, KeysMax)
		}
		item.Value = invariant.Must(json.Marshal(record, json.Deterministic(true)))
	}
	return l.checkSize(change{updates: []actor.StateItem{item}, answer: keyAnswer{true, id}})
}

type keyAnswer struct {
	OK bool   `json:"ok"`
	ID string `json:"key_id"`
}

func (l registryState) revokeKey(id string) (change, *actor.Refusal) {
	if l.value(keyPrefix+id) == nil {
		return l.announceAbsent(keyPrefix+id, actor.Refuse(actor.NotFound, "there is no key %s; `troupe keys list` lists them", id)), nil
	}
	if mutant.On("revoked-key-kept") {
		return change{answer: keyAnswer{true, id}}, nil
	}
	return change{updates: []actor.StateItem{{Name: keyPrefix + id}}, answer: keyAnswer{true, id}}, nil
}

func (l registryState) value(name string) []byte {
	at, there := slices.BinarySearchFunc(l.items, name, func(i actor.StateItem, name string) int { return strings.Compare(i.Name, name) })
	if !there {
		return nil
	}
	return l.items[at].Value
}

func (l registryState) agent(id string) (Spec, bool) {
	value := l.value(agentPrefix + id)
	if value == nil {
		return Spec{}, false
	}
	spec, _, err := decodeAgentRecord(value)
	return spec, err == nil
}

func (l registryState) owner(id string) string {
	_, owner, _ := decodeAgentRecord(l.value(agentPrefix + id))
	return owner
}

func (l registryState) encodeAgent(spec Spec) []byte {
	return invariant.Must(json.Marshal(agentRecord{spec.Encode(), actor.FitText(l.principal, runs.NameBytesMax), runs.FormatTime(l.now)}))
}

func (l registryState) count(prefix string) int {
	n := 0
	for _, item := range l.items {
		if strings.HasPrefix(item.Name, prefix) {
			n++
		}
	}
	return n
}

// nameMember reads the one member that an operation is about.
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
