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
	"github.com/troupe-run/troupe/runs"
)

// registryState is the input of one registry operation.
type registryState struct {
	items     []actor.StateItem // sorted by name
	now       actor.Time
	principal string // whose rights the operation has: Operator for an administrator
	by        maker
	native    []string
	provided  []string // codes of the capabilities of native agents
	reserved  []string // names of the program that a new agent must not have
	quotas    Quotas

	// The result of ToolOpen; asked reports whether there is one. Without a result,
	// definitions count as open for FormerRetention.
	open  map[string]bool
	asked bool
}

// maker is the client that made a change, in a record of the registry.
type maker struct {
	User string
	Key  string // ID of its API key; empty if it has none
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
	case OpIssue:
		id, refusal := nameMember(body, "key_id")
		if refusal != nil {
			return change{}, refusal
		}
		return s.issue(id)
	case OpPutTool:
		return s.putTool(body)
	case OpDeleteTool:
		name, refusal := nameMember(body, "tool_name")
		if refusal != nil {
			return change{}, refusal
		}
		return s.deleteTool(name)
	case OpPutCapability:
		return s.putCapability(body)
	case OpDeleteCapability:
		return s.deleteCapability(body)
	default:
		all := []string{OpPut, OpRegister, OpDelete, OpCreateKey, OpRevokeKey, OpIssue, OpPutTool, OpDeleteTool, OpPutCapability, OpDeleteCapability}
		return change{}, actor.Refuse(actor.Invalid, "want operation %s, got %.40q", strings.Join(all, ", "), operation)
	}
}

func (s registryState) readSpec(operation, body string) (Spec, *actor.Refusal) {
	spec, refusal := readSpec(operation, body)
	switch {
	case refusal != nil:
		return Spec{}, refusal
	case slices.Contains(s.native, spec.ID): // also if the registry has an agent of this ID
		return Spec{}, actor.Refuse(actor.Rejected, "%s is part of this program; choose another name", spec.ID)
	}
	return spec, nil
}

// CheckNew refuses a definition that no registry accepts as that of a declared agent.
func CheckNew(definition []byte) *actor.Refusal {
	_, refusal := readSpec(OpPut, string(definition))
	return refusal
}

// readSpec returns the definition that a client has sent for an operation.
func readSpec(operation, body string) (Spec, *actor.Refusal) {
	spec, err := readNewJSON([]byte(body))
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
	case operation == OpPut && spec.Kind == KindExternal:
		refusal := actor.Refuse(actor.Invalid, "endpoint: not allowed for a declared agent; register an external agent instead")
		refusal.Field = "endpoint"
		return Spec{}, refusal
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

	// What others have lost to an agent of a file. With more, the agent itself is not stored yet: the operation is repeated.
	Displaced []string `json:"displaced,omitempty"`
	More      bool     `json:"more,omitzero"`
}

func (s registryState) putAgent(spec Spec) (change, *actor.Refusal) {
	previous, exists := s.agent(spec.ID)
	answer := putAnswer{OK: true, ID: spec.ID, Name: spec.Name, Kind: spec.Kind, Definition: spec.Hash().String(), Created: !exists, Changed: true}
	item := actor.StateItem{Name: agentPrefix + spec.ID}
	if refusal := cmp.Or(s.checkDurability(spec), s.checkSchedules(&spec), s.conflict(&spec)); refusal != nil {
		return change{}, refusal
	}
	d := s.displace(&spec)
	answer.Displaced, answer.More = d.texts, d.more
	if !exists {
		if refusal := cmp.Or(s.checkNames(spec, previous, true), s.unknownCapability(&spec)); refusal != nil {
			return change{}, refusal
		}
		if d.more {
			return change{updates: d.updates, answer: answer}, nil
		}
		item.Value = s.encodeAgent(spec)
		return s.makeRoom(spec.ID, change{updates: append(d.updates, item), answer: answer})
	}
	owner := s.owner(spec.ID)
	if previous.Hash() == spec.Hash() {
		answer.Changed = false
		item.Value = s.value(item.Name)
		switch takes := s.byFile() && !s.ofFile(spec.ID); {
		case takes && d.more:
			return change{updates: d.updates, answer: answer}, nil
		case takes:
			item.Value = s.encodeAgent(spec)
			return change{updates: append(d.updates, item), answer: answer}, nil
		}
		answer.Displaced, answer.More = nil, false        // owners of a capability that an administrator has chosen stay
		if s.principal == Operator && owner != Operator { // the operator takes the agent over
			item.Value = s.encodeAgent(spec)
		} else if !s.owns(owner) { // an announcement would be a sign of life of the agent
			return change{answer: answer}, nil
		}
		return change{updates: []actor.StateItem{item}, answer: answer}, nil
	}
	if refusal := cmp.Or(s.checkOwner(spec.ID, owner), s.checkNames(spec, previous, false), s.unknownCapability(&spec)); refusal != nil {
		return change{}, refusal
	}
	if previous.Kind != spec.Kind && s.principal != Operator {
		return change{}, actor.Refuse(actor.Rejected, "%s is an agent of kind %s; delete it first or choose another name", spec.ID, previous.Kind)
	}
	if d.more {
		return change{updates: d.updates, answer: answer}, nil
	}
	item.Value = s.encodeAgent(spec)
	return s.makeRoom(spec.ID, change{updates: append(d.updates, item, s.retired(previous, owner)), answer: answer})
}

// checkDurability rejects a change of an agent's durability by a client while one of
// its runs may be open. The operator may change it at any time, because otherwise an
// agent of a client could prevent the start of a node whose files declare that agent.
// The change affects no open run: the actors of the agent adopt its durability when
// their runs have ended (see becomeVolatile in package runtime).
func (s registryState) checkDurability(spec Spec) *actor.Refusal {
	if s.principal == Operator {
		return nil
	}
	if previous, exists := s.agent(spec.ID); exists {
		if previous.Durability != spec.Durability {
			return durabilityRefusal(spec.ID, previous.Durability)
		}
		return nil
	}
	for _, item := range s.items {
		var f formerRecord
		if !strings.HasPrefix(item.Name, formerPrefix+spec.ID+"/") {
			continue
		}
		if _, at := ownerOf(item.Value); s.now.Sub(at) > FormerRetention || json.Unmarshal(item.Value, &f) != nil {
			continue
		}
		if previous, err := ReadJSON(f.Spec); err == nil && previous.Durability != spec.Durability {
			return durabilityRefusal(spec.ID, previous.Durability)
		}
	}
	return nil
}

func durabilityRefusal(id, durability string) *actor.Refusal {
	r := actor.Refuse(actor.Rejected, "%s has, or recently had, durability %s, which only the operator can change while its runs may be open; keep it or choose another agent_id", id, durability)
	r.Field = "durability"
	return r
}

// checkOwner permits a change of an agent to its owner and to the operator only. A
// change by the operator makes the operator the owner; no other change moves an agent.
func (s registryState) checkOwner(id, owner string) *actor.Refusal {
	if s.owns(owner) {
		return nil
	}
	return actor.Refuse(actor.Rejected, "%s belongs to %s: only that principal or a key with scope admin may change or delete it; choose another name", id, ownerOrUnknown(owner))
}

// checkDelete permits a deletion to the owner of the agent or tool and to the operator only.
// The command is that of the owner of the data folder.
func (s registryState) checkDelete(command, id, owner string) *actor.Refusal {
	if s.owns(owner) {
		return nil
	}
	return actor.Refuse(actor.Rejected, "%s belongs to %s: only that principal or a key with scope admin may delete it, or the owner of the data folder by: troupe %s %s --data DIR",
		id, ownerOrUnknown(owner), command, id)
}

func (s registryState) owns(owner string) bool {
	return s.principal == Operator || owner == s.self() && owner != ""
}

// self returns the principal of the operation as records hold it.
func (s registryState) self() string { return actor.FitText(s.principal, runs.NameBytesMax) }

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
		return s.announceAbsent(agentPrefix+id, actor.AgentNotFound(id)), nil
	}
	owner := s.owner(id)
	if refusal := s.checkDelete("agents delete", id, owner); refusal != nil {
		return change{}, refusal
	}
	// The former definition takes the place of the agent in every quota, so a
	// deletion is never refused for lack of space.
	return change{updates: []actor.StateItem{{Name: agentPrefix + id}, s.retired(previous, owner)}, answer: struct {
		OK bool   `json:"ok"`
		ID string `json:"agent_id"`
	}{true, id}}, nil
}

// announceAbsent announces the removal of an item that does not exist, because the
// announcement of an earlier removal may have been lost.
func (s registryState) announceAbsent(name string, refusal *actor.Refusal) change {
	return change{updates: []actor.StateItem{{Name: name}}, absent: refusal}
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
	delete(record, "created_by_key_id")
	for _, member := range [...][2]string{{"created_at", runs.FormatTime(s.now)}, {"created_by", s.by.User}, {"created_by_key_id", s.by.Key}} {
		if member[1] != "" {
			record[member[0]] = invariant.Must(json.Marshal(member[1]))
		}
	}
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
		if refusal := s.checkUser(record["user"]); refusal != nil {
			return change{}, refusal
		}
		item.Value = invariant.Must(json.Marshal(record, json.Deterministic(true)))
	}
	return change{updates: []actor.StateItem{item}, answer: keyAnswer{true, id}}, nil
}

// checkUser rejects a new key for a user that looks like the user of another key. Keys for the
// very same user are accepted, also if earlier versions have accepted both users.
func (s registryState) checkUser(value jsontext.Value) *actor.Refusal {
	var user, alike, id string
	if json.Unmarshal(value, &user) != nil || user == "" {
		return nil
	}
	form := actor.FoldName(user)
	for _, item := range s.items {
		var key struct {
			User string `json:"user"`
		}
		name, ok := strings.CutPrefix(item.Name, keyPrefix)
		if !ok || json.Unmarshal(item.Value, &key) != nil {
			continue
		}
		if key.User == user {
			return nil
		}
		if actor.FoldName(key.User) == form {
			alike, id = key.User, name
		}
	}
	if alike == "" {
		return nil
	}
	r := actor.Refuse(actor.Rejected, "user: %.80q looks like %.80q, the user of key %s: use that spelling for the same user, or choose another name", user, alike, id)
	r.Field = "user"
	return r
}

type keyAnswer struct {
	OK bool   `json:"ok"`
	ID string `json:"key_id"`
}

func (s registryState) revokeKey(id string) (change, *actor.Refusal) {
	if s.value(keyPrefix+id) == nil {
		unknown := actor.RefuseNotFound(actor.WhatKey, "no key is named %s", id)
		return s.announceAbsent(keyPrefix+id, unknown), nil
	}
	return change{updates: []actor.StateItem{{Name: keyPrefix + id}}, answer: keyAnswer{true, id}}, nil
}

// issue records that a key has issued a client token, for as long as the key exists.
func (s registryState) issue(id string) (change, *actor.Refusal) {
	var record map[string]jsontext.Value
	if err := json.Unmarshal(s.value(keyPrefix+id), &record); err != nil {
		return change{}, actor.RefuseNotFound(actor.WhatKey, "no key is named %s", id)
	}
	record["issues_tokens"] = jsontext.Value("true")
	item := actor.StateItem{Name: keyPrefix + id, Value: invariant.Must(json.Marshal(record, json.Deterministic(true)))}
	return change{updates: []actor.StateItem{item}, answer: keyAnswer{true, id}}, nil
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
	var stored compiledAgent
	err := stored.read(value)
	return stored.spec, err == nil
}

func (s registryState) owner(id string) string {
	var stored compiledAgent
	_ = stored.read(s.value(agentPrefix + id)) // an agent that is not stored has no owner
	return stored.owner
}

func (s registryState) encodeAgent(spec Spec) []byte {
	return invariant.Must(json.Marshal(agentRecord{spec.Encode(), s.self(), runs.FormatTime(s.now), s.by.User, s.by.Key, s.formerOwners(spec.ID)}))
}

// formerOwners returns the principals that have registered an agent of this ID before, without that of
// the operation, the last ones: calls of the runs that they have begun may still wait for a person.
func (s registryState) formerOwners(id string) []string {
	var all []string
	add := func(owner string) {
		if owner != "" && owner != s.self() && !slices.Contains(all, owner) {
			all = append(all, owner)
		}
	}
	type retiredOwner struct {
		owner string
		at    actor.Time
	}
	var retired []retiredOwner
	for _, item := range s.items {
		if strings.HasPrefix(item.Name, formerPrefix+id+"/") {
			owner, at := ownerOf(item.Value)
			retired = append(retired, retiredOwner{owner, at})
		}
	}
	slices.SortStableFunc(retired, func(a, b retiredOwner) int { return cmp.Compare(a.at, b.at) })
	var record agentRecord
	if value := s.value(agentPrefix + id); value != nil && json.Unmarshal(value, &record) == nil {
		for _, owner := range record.Former {
			add(owner)
		}
	}
	for _, r := range retired {
		add(r.owner)
	}
	add(record.Owner)
	return all[max(0, len(all)-formerOwnersMax):]
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
