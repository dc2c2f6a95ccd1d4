// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"cmp"
	"math"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/memory"
)

// MemoryRequest is the body of a request to remember or to forget.
type MemoryRequest struct {
	Scope  memory.Scope
	Key    string // session or agent of the scope
	Change memory.Change
}

// DecodeMemory decodes the body of a request to remember, or to forget an entity.
func DecodeMemory(body []byte, forget bool) (out MemoryRequest, r *actor.Refusal) {
	var in struct {
		Scope      *string             `json:"scope"`
		Session    *string             `json:"session_id"`
		Agent      *string             `json:"agent_id"`
		Entity     *string             `json:"entity"`
		Reason     *string             `json:"reason"`
		Content    *string             `json:"content"`
		Supersedes *string             `json:"supersedes"`
		Relations  []memory.RelationTo `json:"relations"`
	}
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	text := func(s *string) string { return *cmp.Or(s, new(string)) }
	if forget && (in.Content != nil || in.Supersedes != nil || in.Relations != nil) {
		return out, invalid("content", "want no value: an entity is forgotten with all its facts")
	}
	if out.Scope, out.Key, r = MemoryScope(text(in.Scope), text(in.Session), text(in.Agent)); r != nil {
		return out, r
	}
	out.Change = memory.Change{Entity: text(in.Entity), Reason: text(in.Reason), Content: text(in.Content), Supersedes: text(in.Supersedes), Relations: in.Relations}
	return out, nil
}

// MemoryScope returns a scope and its key. A scope that is not named is that of the session or the agent that
// is, and otherwise the workspace.
func MemoryScope(name, session, agent string) (scope memory.Scope, key string, r *actor.Refusal) {
	switch {
	case name != "":
		var err error
		if scope, err = memory.ParseScope(name); err != nil {
			return "", "", invalid("scope", "%v", err)
		}
	case session != "":
		scope = memory.Session
	case agent != "":
		scope = memory.Agent
	default:
		scope = memory.Workspace
	}
	if session != "" && scope != memory.Session {
		return "", "", invalid("session_id", "want no value with the scope %s", scope)
	}
	if agent != "" && scope != memory.Agent {
		return "", "", invalid("agent_id", "want no value with the scope %s", scope)
	}
	key = session + agent
	if _, err := scope.ID(actor.DefaultTenant, key); err != nil {
		return "", "", invalid(map[memory.Scope]string{memory.Session: "session_id", memory.Agent: "agent_id"}[scope], "%v", err)
	}
	return scope, key, nil
}

// MemoryQuestion is the body of a request that asks about what is remembered.
type MemoryQuestion struct {
	Scope      memory.Scope
	Key        string // session or agent of the scope
	Text       string // words to search for, or the name of an entity
	Relation   string
	Depth      int
	Superseded bool
	Limit      int
}

// DecodeMemoryQuestion decodes the body of a question. The field is that of its text; the body may have
// the further fields.
func DecodeMemoryQuestion(body []byte, field string, further ...string) (out MemoryQuestion, r *actor.Refusal) {
	var in struct {
		Scope      *string  `json:"scope"`
		Session    *string  `json:"session_id"`
		Agent      *string  `json:"agent_id"`
		Query      *string  `json:"query"`
		Entity     *string  `json:"entity"`
		From       *string  `json:"from"`
		Relation   *string  `json:"relation"`
		Depth      *float64 `json:"depth"`
		Superseded *bool    `json:"superseded"`
		Limit      *float64 `json:"limit"`
	}
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	for _, f := range []struct {
		name  string
		given bool
	}{{"query", in.Query != nil}, {"entity", in.Entity != nil}, {"from", in.From != nil}, {"relation", in.Relation != nil},
		{"depth", in.Depth != nil}, {"superseded", in.Superseded != nil}, {"limit", in.Limit != nil}} {
		if f.given && f.name != field && !slices.Contains(further, f.name) {
			return out, invalid(f.name, "want no value here")
		}
	}
	text := func(s *string) string { return *cmp.Or(s, new(string)) }
	if out.Scope, out.Key, r = MemoryScope(text(in.Scope), text(in.Session), text(in.Agent)); r != nil {
		return out, r
	}
	out.Text = text(map[string]*string{"query": in.Query, "entity": in.Entity, "from": in.From}[field])
	out.Relation, out.Superseded = text(in.Relation), in.Superseded != nil && *in.Superseded
	for _, n := range []struct {
		name string
		from *float64
		to   *int
		most int
	}{{"depth", in.Depth, &out.Depth, memory.DepthMax}, {"limit", in.Limit, &out.Limit, memory.HitsMax}} {
		if n.from == nil {
			continue
		}
		if *n.from != math.Trunc(*n.from) || *n.from < 1 || *n.from > float64(n.most) {
			return out, invalid(n.name, "want 1 to %d", n.most)
		}
		*n.to = int(*n.from)
	}
	return out, nil
}
