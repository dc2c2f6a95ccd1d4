// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// checkNames rejects a new ID or name that looks like the name of another agent, in the program or in
// the registry: readers, and clients that address agents by name, could confuse the two. Names are
// compared by actor.FoldName. Agents of one principal may have the same name, which then addresses neither. The
// operator may use the name of another principal's agent. A file may also use the name of an agent that an
// administrator has stored. An agent that has such a name already keeps it.
func (s registryState) checkNames(spec, previous Spec, created bool) *actor.Refusal {
	if created {
		if r := s.checkFree(spec.ID, "agent_id", spec.ID); r != nil {
			return r
		}
	}
	if spec.Name == previous.Name || spec.Name == spec.ID {
		return nil
	}
	return s.checkFree(spec.ID, "name", spec.Name)
}

// checkFree rejects a text for a field of the agent id, if it is taken.
func (s registryState) checkFree(id, field, text string) *actor.Refusal {
	form := actor.FoldName(text)
	refuse := func(format string, args ...any) *actor.Refusal {
		r := actor.Refuse(actor.Rejected, field+": "+format+"; choose another "+field, args...)
		r.Field = field
		return r
	}
	for _, native := range s.native {
		switch {
		case native == text:
			return refuse("%s is part of this program", text)
		case actor.FoldName(native) == form:
			return refuse("%q looks like %s, an agent of this program", text, native)
		}
	}
	for _, reserved := range s.reserved {
		if actor.FoldName(reserved) == form {
			return refuse("%q is reserved for %s, an agent of this program, unless a key has the scope operator or admin", text, reserved)
		}
	}
	for _, item := range s.items {
		if !strings.HasPrefix(item.Name, agentPrefix) {
			continue
		}
		otherID, otherName := namesOf(item)
		if otherID == id {
			continue
		}
		taken := ""
		switch {
		case otherID == text, otherName == text:
			taken = text
		case actor.FoldName(otherID) == form:
			taken = otherID
		case actor.FoldName(otherName) == form:
			taken = otherName
		default:
			continue
		}
		switch owner, _ := ownerOf(item.Value); {
		case owner == s.self() && taken == text, s.principal == Operator && owner != Operator, s.byFile() && !s.ofFile(otherID):
		case otherName == text:
			return refuse("%s is the name of agent %s, which belongs to %s", text, otherID, ownerOrUnknown(owner))
		case otherID == text:
			return refuse("%s is the ID of an agent that belongs to %s", text, ownerOrUnknown(owner))
		default:
			return refuse("%q looks like %q, which is that of agent %s and belongs to %s", text, taken, otherID, ownerOrUnknown(owner))
		}
	}
	return nil
}

// namesOf returns the ID and the name in the record of an agent. It reads no further than to them:
// a record may have 48 KiB, and each change of an agent looks at all records.
func namesOf(item actor.StateItem) (id, name string) {
	id, _ = AgentOf(item)
	d := jsontext.NewDecoder(bytes.NewBuffer(item.Value))
	for _, want := range []string{"{", "spec", "{"} {
		if t, err := d.ReadToken(); err != nil || t.String() != want {
			return id, ""
		}
	}
	for d.PeekKind() == '"' {
		member, err := d.ReadToken()
		switch {
		case err != nil:
			return id, name
		case member.String() == "name":
			value, _ := d.ReadToken()
			return id, value.String()
		case d.SkipValue() != nil:
			return id, name
		}
	}
	return id, name
}
