// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/internal/invariant"
)

// ProvidesMax is the maximum number of capabilities of an agent.
const ProvidesMax = 32

const providesField = "provides"

// Capability is what an agent does for others: see actor.Capability. The schemas and the example
// are JSON objects.
type Capability struct {
	Code        string         `json:"code"`
	Description string         `json:"description"`
	Version     string         `json:"version,omitzero"`
	TimeoutMS   int64          `json:"timeout_ms,omitzero"`
	UserText    string         `json:"user_text,omitzero"`
	Input       jsontext.Value `json:"input_schema,omitzero"`
	Output      jsontext.Value `json:"output_schema,omitzero"`
	Example     jsontext.Value `json:"example,omitzero"`
}

var capabilityFields = []string{"code", "description", "version", "timeout_ms", "user_text", "input_schema", "output_schema", "example"}

// objects is the value of a list of tables in a source, each as a JSON object.
type objects []jsontext.Value

// newObjects returns a list of tables of a TOML file as JSON.
func newObjects(tables []map[string]any) any {
	out := make(objects, len(tables))
	for i := range tables {
		b, err := json.Marshal(tables[i], json.Deterministic(true))
		if err != nil {
			return unsupported("a list of tables that have no JSON form")
		}
		out[i] = b
	}
	return out
}

// provides sets the capabilities of a spec.
func provides(s *Spec, v any) error {
	tables, ok := v.(objects)
	if list, isList := v.([]any); isList && len(list) == 0 { // an empty list in TOML
		ok = true
	}
	if !ok {
		return fmt.Errorf("want a list of tables with %s, got %s", strings.Join(capabilityFields, ", "), describeValue(v))
	}
	if len(tables) > ProvidesMax {
		return fmt.Errorf("%d entries, at most %d allowed", len(tables), ProvidesMax)
	}
	var wrong mistakes
	for i, table := range tables {
		one, err := readCapability(table)
		wrong.add(err, "entry %d: %w", i+1)
		s.Provides = append(s.Provides, one)
	}
	return wrong.err()
}

func readCapability(table jsontext.Value) (c Capability, err error) {
	err = eachField(table, capabilityFields, c.set)
	return c, err
}

// set sets a field from its JSON value.
func (c *Capability) set(field string, v jsontext.Value) (err error) {
	text := func(to *string) error {
		if json.Unmarshal(v, to) != nil {
			return errors.New("want text")
		}
		return nil
	}
	switch field {
	case "code":
		return text(&c.Code)
	case "description":
		return text(&c.Description)
	case "version":
		return text(&c.Version)
	case "user_text":
		return text(&c.UserText)
	case "timeout_ms":
		if json.Unmarshal(v, &c.TimeoutMS) != nil {
			return errors.New("want a whole number of milliseconds")
		}
	case "input_schema":
		c.Input, err = readObject(v)
	case "output_schema":
		c.Output, err = readObject(v)
	case "example":
		c.Example, err = readObject(v)
	}
	return err
}

// readObject returns a JSON object that is written as such, as a table, or as a text that holds it.
func readObject(v jsontext.Value) (jsontext.Value, error) {
	if v.Kind() == '"' {
		var text string
		if err := json.Unmarshal(v, &text); err != nil {
			return nil, err
		}
		v = jsontext.Value(strings.TrimSpace(text))
	}
	if len(v) == 0 || v.Kind() == 'n' {
		return nil, nil
	}
	v = v.Clone()
	if v.Kind() != '{' || v.Compact() != nil {
		return nil, errors.New("want a JSON object, as a table or as text")
	}
	return v, nil
}

// Declaration returns what the agent declares for the catalog of capabilities.
func (s *Spec) Declaration() contract.Declaration {
	return contract.Declaration{Agent: s.ID, Code: s.Code, Capabilities: s.provided()}
}

// provided returns the capabilities of the agent.
func (s *Spec) provided() (all []actor.Capability) {
	for i := range s.Provides {
		c := &s.Provides[i]
		all = append(all, actor.Capability{Code: c.Code, Input: string(c.Input), Output: string(c.Output), Version: c.Version, Timeout: millis(c.TimeoutMS),
			Description: c.Description, UserText: c.UserText, Example: c.Example})
	}
	return all
}

// Declare adds the code and the capabilities of an agent that is part of a program to its definition. They are
// TOML: the tables [[provides]] of a file.
func Declare(def *actor.Definition, code, tables string) error {
	if code == "" && tables == "" {
		return nil
	}
	spec, err := ReadTOML("name = \"" + def.Name + "\"\n" + tables)
	if err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	bare, _ := ReadTOML("name = \"" + def.Name + "\"")
	bare.Provides = spec.Provides
	if string(bare.Encode()) != string(spec.Encode()) {
		return errors.New("capabilities: want tables [[provides]] only")
	}
	all := spec.provided()
	if _, err := contract.NewCatalog([]contract.Declaration{{Agent: def.Name, Code: code, Capabilities: all}}); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "agent "+def.Name+": "))
	}
	def.Code, def.Provides = code, all
	def.Hash = actor.HashOf(append(def.Hash[:], EncodeDeclaration(def)...))
	return nil
}

// CheckDeclarations returns an error if agents of a program contradict each other.
func CheckDeclarations(all []actor.Definition) error {
	var declared []contract.Declaration
	for i := range all {
		declared = append(declared, contract.Declaration{Agent: all[i].Name, Code: all[i].Code, Capabilities: all[i].Provides})
	}
	_, err := contract.NewCatalog(declared)
	return err
}

// declaration is the JSON form of what an agent of a program declares.
type declaration struct {
	Code     string       `json:"code,omitzero"`
	Provides []Capability `json:"provides,omitzero"`
}

// EncodeDeclaration returns what an agent that has no spec declares for the catalog; nil: nothing.
func EncodeDeclaration(def *actor.Definition) []byte {
	if def.Spec != nil || def.Code == "" && len(def.Provides) == 0 {
		return nil
	}
	d := declaration{Code: def.Code}
	for i := range def.Provides {
		c := &def.Provides[i]
		d.Provides = append(d.Provides, Capability{Code: c.Code, Description: c.Description, Version: c.Version, TimeoutMS: c.Timeout.Milliseconds(), UserText: c.UserText,
			Input: jsontext.Value(c.Input), Output: jsontext.Value(c.Output), Example: c.Example})
	}
	return invariant.Must(json.Marshal(d, json.Deterministic(true)))
}

// ReadDeclaration reads what EncodeDeclaration has returned for an agent.
func ReadDeclaration(agent string, b []byte) (contract.Declaration, error) {
	var d declaration
	if err := json.Unmarshal(b, &d); err != nil {
		return contract.Declaration{}, err
	}
	s := Spec{ID: agent, Code: d.Code, Provides: d.Provides}
	return s.Declaration(), nil
}

// checkDeclaration returns the problem of what the spec declares for the catalog, if there is one.
func (s *Spec) checkDeclaration() (problems Problems) {
	if s.Code == "" && len(s.Provides) == 0 {
		return nil
	}
	d := s.Declaration()
	d.Agent = "a" // its own name is checked elsewhere
	if _, err := contract.NewCatalog([]contract.Declaration{d}); err != nil {
		text, field := strings.TrimPrefix(err.Error(), "agent a: "), providesField
		if rest, isCode := strings.CutPrefix(text, "code "); isCode {
			text, field = rest, "code"
		}
		problems = Problems{{Field: field, Text: text}}
	}
	return problems
}

// conflict returns a refusal if the spec contradicts another agent:
//
//   - The code of one is the ID or the name of the other, so it would take requests for the other.
//   - Both declare a capability, but differently.
//   - Both declare a capability and belong to different principals, so each would get requests for the other. The
//     operator can allow this by naming both as owners.
//
// The spec of a file conflicts with agents of files only: it displaces others, see displace. Schemas are compared as
// text, because compiling the schemas of all agents would block the cell.
func (r registryState) conflict(s *Spec) *actor.Refusal {
	refuse := func(field, format string, args ...any) *actor.Refusal {
		refusal := actor.Refuse(actor.Rejected, format, args...)
		refusal.Field = field
		return refusal
	}
	previous, _ := r.agent(s.ID)
	for _, item := range r.items {
		id, isAgent := AgentOf(item)
		if !isAgent || id == s.ID {
			continue
		}
		other, exists := r.agent(id)
		switch {
		case !exists, r.byFile() && !r.ofFile(id):
		case s.Code != "" && s.Code == id && r.owns(r.owner(id)):
			return refuse("code", "code %s is the name of agent %s: delete that agent first, or choose another code", s.Code, id)
		default:
			for i := range s.Provides {
				for k := range other.Provides {
					if a, b := &s.Provides[i], &other.Provides[k]; a.Code == b.Code && !r.owns(r.owner(id)) && !(previous.declares(a) && a.alike(b)) {
						return refuse(providesField, "%s is a capability of agent %s, which belongs to another principal: choose another code, or have a key with scope admin make both its owners", a.Code, id)
					}
				}
			}
			if p := s.Contradiction(&other); p.Text != "" {
				return refuse(p.Field, "%s", p.Text)
			}
		}
	}
	return nil
}

// Contradiction returns what the spec says otherwise than another one of the same owner; the zero Problem if nothing.
func (s *Spec) Contradiction(other *Spec) Problem {
	switch {
	case s.Code != "" && s.Code == other.Code:
		return Problem{Field: "code", Text: fmt.Sprintf("code %s belongs to agent %s", s.Code, other.ID)}
	case s.Code != "" && (s.Code == other.ID || s.Code == other.Name):
		return Problem{Field: "code", Text: fmt.Sprintf("code %s is the name of agent %s", s.Code, other.ID)}
	case other.Code != "" && (other.Code == s.ID || other.Code == s.Name):
		return Problem{Field: "name", Text: fmt.Sprintf("%s is the code of agent %s", other.Code, other.ID)}
	}
	for i := range s.Provides {
		for k := range other.Provides {
			if a, b := &s.Provides[i], &other.Provides[k]; a.Code == b.Code && !a.alike(b) {
				return Problem{Field: providesField, Text: fmt.Sprintf("capability %s: agent %s declares it otherwise; owners of one capability share its schemas, version and texts", a.Code, other.ID)}
			}
		}
	}
	return Problem{}
}

// declares reports whether the spec has this capability, declared alike.
func (s *Spec) declares(c *Capability) bool {
	return slices.ContainsFunc(s.Provides, func(own Capability) bool { return own.Code == c.Code && own.alike(c) })
}

// byFile reports whether the operation is of the node itself, for a file of its operator. An administrator has the
// rights of the operator, but is a user of its own.
func (r registryState) byFile() bool { return r.by.User == Operator }

// ofFile reports whether the definition of an agent is what a file has said. One that an administrator has stored last is
// not, although the operator owns it.
func (r registryState) ofFile(id string) bool {
	var stored compiledAgent
	_ = stored.read(r.value(agentPrefix + id))
	return stored.owner == Operator && (stored.by.User == Operator || stored.by.User == "") // "": an older record
}

// displaced is what agents lose to one that a file declares.
type displaced struct {
	updates []actor.StateItem
	texts   []string // a sentence for each of these agents
	more    bool     // further ones, in the next operation: an action has a limit of updates
}

// displacedMax is the number of agents that one operation displaces.
const displacedMax = (prunedPerActionMax - 2) / 2

// displace takes from agents that no file declares what a file declares for another one: its code, also as their
// name, and its capabilities, whose requests they would be asked too. An agent whose ID is the code is deleted, because
// an ID does not change. Otherwise a client, or an administrator, could keep a server from its start.
func (r registryState) displace(s *Spec) (d displaced) {
	if !r.byFile() {
		return d
	}
	for _, item := range r.items {
		id, isAgent := AgentOf(item)
		if !isAgent || id == s.ID || r.ofFile(id) {
			continue
		}
		previous, exists := r.agent(id)
		record, err := readAgentRecord(item.Value)
		if !exists || err != nil {
			continue
		}
		if len(d.texts) == displacedMax {
			d.more = true
			return d
		}
		who := fmt.Sprintf("agent %s of %s", id, ownerOrUnknown(record.Owner))
		if record.Owner == Operator {
			who = fmt.Sprintf("agent %s of the administrator %s", id, record.AcceptedBy)
		}
		if id == s.Code {
			d.updates = append(d.updates, actor.StateItem{Name: item.Name}, r.retired(previous, record.Owner))
			d.texts = append(d.texts, fmt.Sprintf("%s was removed: its ID is the code of the agent %s, which a file declares", who, s.ID))
			continue
		}
		var lost []string
		next := previous
		if s.Code != "" && next.Name == s.Code {
			next.Name = id
			lost = append(lost, "name "+s.Code)
		}
		if next.Code != "" && (next.Code == s.Code || next.Code == s.ID || next.Code == s.Name) {
			next.Code = ""
			lost = append(lost, "code "+previous.Code)
		}
		next.Provides = slices.DeleteFunc(slices.Clone(previous.Provides), func(c Capability) bool {
			taken := slices.ContainsFunc(s.Provides, func(own Capability) bool { return own.Code == c.Code })
			if taken {
				lost = append(lost, "capability "+c.Code)
			}
			return taken
		})
		if len(lost) == 0 {
			continue
		}
		if len(next.Provides) == 0 {
			next.Provides = nil
		}
		d.updates = append(d.updates, actor.StateItem{Name: item.Name, Value: record.with(next)}, r.retired(previous, record.Owner))
		d.texts = append(d.texts, fmt.Sprintf("%s has lost its %s: a file declares that for the agent %s", who, strings.Join(lost, ", its "), s.ID))
	}
	return d
}

// unknownCapability returns a refusal if a workflow of the spec has a step that no other agent provides. One of a file
// may wait for an agent that registers at the running node, and only its slips of the hand are refused: what they are
// depends on files alone, so that no client keeps a node from its start.
func (r registryState) unknownCapability(s *Spec) *actor.Refusal {
	if len(s.Workflows) == 0 {
		return nil
	}
	known, near := slices.Clone(r.provided), slices.Clone(r.provided)
	for _, item := range r.items {
		if id, isAgent := AgentOf(item); isAgent && id != s.ID {
			other, _ := r.agent(id)
			for i := range other.Provides {
				known = append(known, other.Provides[i].Code)
				if !r.byFile() || r.ofFile(id) {
					near = append(near, other.Provides[i].Code)
				}
			}
		}
	}
	problems, missing := s.UnknownCapabilities(known, near)
	if !r.byFile() {
		problems = append(problems, missing...)
	}
	if len(problems) == 0 {
		return nil
	}
	refusal := actor.Refuse(actor.Invalid, "%v", problems)
	refusal.Field = problems[0].Field
	return refusal
}

// alike reports whether two agents may own a capability that they declare so.
func (c *Capability) alike(d *Capability) bool {
	return c.Version == d.Version && c.TimeoutMS == d.TimeoutMS && c.Description == d.Description && c.UserText == d.UserText &&
		string(c.Input) == string(d.Input) && string(c.Output) == string(d.Output)
}
