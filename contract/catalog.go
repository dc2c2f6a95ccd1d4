// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/nearest"
	"github.com/troupe-run/troupe/tools"
)

// Declaration is what an agent declares of itself.
type Declaration struct {
	Agent        string // its ID
	Code         string // its code, such as ANL; "": none
	Capabilities []actor.Capability
}

// Bounds of a catalog.
const (
	CapabilitiesMax     = 4096
	descriptionBytesMax = 4 << 10
	userTextBytesMax    = 256
	versionBytesMax     = 64
	namesShownMax       = 3 // of near names and owners in an error
	candidatesMax       = 16
)

// anyObject is the schema of a capability that declares none.
const anyObject = `{"type":"object"}`

// Catalog holds the capabilities of all agents. It is read-only.
type Catalog struct {
	rows  []row      // in order of their codes
	codes []codeName // in order of the codes of agents

	former []*Catalog // while it is built
}

// row is a capability with its owners.
type row struct {
	actor.Capability
	owners        []owner // in order of their IDs
	input, output *tools.ObjectSchema
	required      []string        // names of required inputs
	sentences     tools.Sentences // of the input schema
}

// owner is an agent with its place among the owners of a capability.
type owner struct {
	agent string
	place tools.OwnerPlace
}

type codeName struct{ code, agent string }

// NewCatalog returns the catalog of what agents declare. Agents may own the same capability if they
// declare it alike; a code belongs to one agent.
//
// Schemas that a former catalog has compiled are not compiled again.
func NewCatalog(all []Declaration, former ...*Catalog) (*Catalog, error) {
	c := &Catalog{former: former}
	defer func() { c.former = nil }()
	for _, d := range all {
		if err := actor.CheckName(d.Agent); err != nil {
			return nil, fmt.Errorf("agent %w", err)
		}
		if d.Code != "" {
			i, taken := slices.BinarySearchFunc(c.codes, d.Code, func(n codeName, code string) int { return strings.Compare(n.code, code) })
			switch {
			case !isAgentCode(d.Code):
				return nil, fmt.Errorf("agent %s: code %.40q: want three capitals such as ANL", d.Agent, d.Code)
			case taken:
				return nil, fmt.Errorf("agent %s: code %s belongs to agent %s", d.Agent, d.Code, c.codes[i].agent)
			}
			c.codes = slices.Insert(c.codes, i, codeName{d.Code, d.Agent})
		}
		for i := range d.Capabilities {
			if err := c.add(d.Agent, &d.Capabilities[i]); err != nil {
				return nil, fmt.Errorf("agent %s: capability %.80s: %w", d.Agent, d.Capabilities[i].Code, err)
			}
		}
	}
	return c, nil
}

func isAgentCode(text string) bool {
	return len(text) == 3 && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

func (c *Catalog) add(agent string, k *actor.Capability) error {
	i, known := slices.BinarySearchFunc(c.rows, k.Code, func(r row, code string) int { return strings.Compare(r.Code, code) })
	if known {
		r := &c.rows[i]
		at, owns := slices.BinarySearchFunc(r.owners, agent, func(o owner, agent string) int { return strings.Compare(o.agent, agent) })
		switch {
		case owns:
			return errors.New("is declared twice")
		case !sameCapability(&r.Capability, k):
			return fmt.Errorf("agent %s declares it otherwise; owners of one capability share its schemas, version and texts", r.owners[0].agent)
		}
		r.owners = slices.Insert(r.owners, at, newOwner(agent))
		return nil
	}
	if len(c.rows) == CapabilitiesMax {
		return fmt.Errorf("exceeds the maximum of %d capabilities", CapabilitiesMax)
	}
	r, err := c.compiled(k)
	if err != nil {
		return err
	}
	r.owners = []owner{newOwner(agent)}
	c.rows = slices.Insert(c.rows, i, *r)
	return nil
}

func newOwner(agent string) owner { return owner{agent, tools.PlaceOf(agent)} }

func sameCapability(a, b *actor.Capability) bool {
	return a.Input == b.Input && a.Output == b.Output && a.Version == b.Version && a.Timeout == b.Timeout && a.Description == b.Description && a.UserText == b.UserText
}

// compiled returns the row of a capability, with the schemas of a former catalog if they are the same.
func (c *Catalog) compiled(k *actor.Capability) (*row, error) {
	for _, f := range c.former {
		if f == nil {
			continue
		}
		if r := f.row(k.Code); r != nil && sameCapability(&r.Capability, k) && string(r.Example) == string(k.Example) {
			again := *r
			return &again, nil
		}
	}
	return newRow(k)
}

// newRow checks a capability and compiles its schemas.
func newRow(k *actor.Capability) (*row, error) {
	switch {
	case !isCode(k.Code):
		return nil, errors.New("code: want words of capitals and digits joined by '_', at least two, such as DOC_GENERATE")
	case k.Description == "" || len(k.Description) > descriptionBytesMax:
		return nil, fmt.Errorf("description: want 1 to %d bytes", descriptionBytesMax)
	case len(k.UserText) > userTextBytesMax || k.UserText != "" && !actor.IsLine(k.UserText):
		return nil, fmt.Errorf("user_text: want a line of at most %d bytes", userTextBytesMax)
	case len(k.Version) > versionBytesMax:
		return nil, fmt.Errorf("version: want at most %d bytes", versionBytesMax)
	case k.Timeout < 0 || k.Timeout > timeoutMax:
		return nil, fmt.Errorf("timeout_ms: want 1 to %d, or 0 for %d", timeoutMax.Milliseconds(), TimeoutDefault.Milliseconds())
	}
	r := &row{Capability: *k}
	var err error
	if r.input, err = tools.NewObjectSchema(k.Code, cmp.Or(k.Input, anyObject)); err != nil {
		return nil, fmt.Errorf("input schema: %w", err)
	}
	if r.output, err = tools.NewObjectSchema(k.Code, cmp.Or(k.Output, anyObject)); err != nil {
		return nil, fmt.Errorf("output schema: %w", err)
	}
	if k.Input != "" {
		r.required, r.sentences = tools.ReadHints(k.Input)
	}
	if k.Example != nil {
		if v := r.checkInputs(k.Example); v != nil {
			return nil, fmt.Errorf("example: %w", v)
		}
	}
	return r, nil
}

// Find returns a capability, or a refusal that names what is near.
func (c *Catalog) Find(code string) (*actor.Capability, *Violation) {
	r, v := c.find(code)
	if v != nil {
		return nil, v
	}
	return &r.Capability, nil
}

// row returns the row of a capability, or nil.
func (c *Catalog) row(code string) *row {
	if i, ok := slices.BinarySearchFunc(c.rows, code, func(r row, code string) int { return strings.Compare(r.Code, code) }); ok {
		return &c.rows[i]
	}
	return nil
}

func (c *Catalog) find(code string) (*row, *Violation) {
	if r := c.row(code); r != nil {
		return r, nil
	}
	names := make([]string, len(c.rows))
	for i := range c.rows {
		names[i] = c.rows[i].Code
	}
	var near []string
	for len(near) < namesShownMax {
		name := nearest.Of(code, names)
		if name == "" {
			break
		}
		near = append(near, name)
		names = slices.DeleteFunc(names, func(other string) bool { return other == name })
	}
	if len(near) == 0 {
		return nil, violation(InputInvalid, "capability_code", "%.80s is no registered capability", code)
	}
	return nil, violation(InputInvalid, "capability_code", "%.80s is no registered capability; did you mean %s?", code, strings.Join(near, " or "))
}

// CheckInputs returns the rule that the inputs of a request break, or nil. A schema may give its own
// sentence for the violations at a property, in x-error-message.
func (c *Catalog) CheckInputs(code string, inputs jsontext.Value) *Violation {
	r, v := c.find(code)
	if v != nil {
		return v
	}
	return r.checkInputs(inputs)
}

func (r *row) checkInputs(inputs jsontext.Value) *Violation {
	members, err := membersOf(inputs)
	if err != nil {
		return violation(InputInvalid, "inputs_json", "%v", err)
	}
	for _, name := range r.required {
		if !slices.ContainsFunc(members, func(m member) bool { return m.name == name }) {
			v := violation(InputMissing, "inputs_json/"+name, "is missing")
			if text := r.sentences.For(name); text != "" {
				v.Rule, v.alone = text, true
			}
			return v
		}
	}
	refusal := r.input.Check(inputs)
	if refusal == nil {
		return nil
	}
	field := strings.TrimSuffix("inputs_json/"+refusal.Field, "/")
	if text := r.sentences.For(refusal.Field); text != "" {
		return &Violation{Code: InputInvalid, Field: field, Rule: text, alone: true}
	}
	return &Violation{Code: InputInvalid, Field: field, Rule: problemOf(refusal, r.Code)}
}

// problemOf returns the problems of a refusal without the names that a Violation has.
func problemOf(refusal *actor.Refusal, code string) string {
	rule := strings.TrimPrefix(refusal.Detail, code+": ")
	return strings.TrimPrefix(rule, refusal.Field+": ")
}

// CheckResult returns the rule that the result of a response breaks, or nil. Without a result there
// is none to check.
func (c *Catalog) CheckResult(code string, r *Response) *Violation {
	k, v := c.find(code)
	if v != nil {
		return v
	}
	return k.checkResult(r)
}

func (r *row) checkResult(out *Response) *Violation {
	if out.Result == nil {
		return nil
	}
	if refusal := r.output.Check(out.Result); refusal != nil {
		return &Violation{Code: OutputViolation, Field: strings.TrimSuffix("result_json/"+refusal.Field, "/"), Rule: problemOf(refusal, r.Code)}
	}
	return nil
}

// ReadResponse reads the answer of an owner to the request with an ID, as DecodeResponse does, and checks the
// result. Every request for a capability gets what it returns: in an envelope, by a tool or as the step of a workflow.
func (c *Catalog) ReadResponse(answer []actor.Part, id, code string) (Response, *Violation) {
	k, v := c.find(code)
	if v != nil {
		return Response{ID: id}, v
	}
	return k.readResponse(answer, id)
}

// ReadResponse is Catalog.ReadResponse for a capability that is in the table of agents, and in no catalog.
func ReadResponse(answer []actor.Part, id string, k *actor.Capability, agents *tools.Agents) (Response, *Violation) {
	output, err := agents.Schema(k.Code, cmp.Or(k.Output, anyObject))
	if err != nil { // the registry has accepted it
		return Response{ID: id}, violation(OutputViolation, "", "output schema: %v", err)
	}
	r := row{Capability: *k, output: output}
	return r.readResponse(answer, id)
}

func (r *row) readResponse(answer []actor.Part, id string) (Response, *Violation) {
	var text strings.Builder
	for _, p := range answer {
		if p.Readable() {
			text.Write(p.Bytes)
		}
	}
	out, v := DecodeResponse(text.String(), id, DefaultLevels())
	switch {
	case v != nil:
	case r.Output != "" && strings.TrimSpace(text.String()) == "":
		v = violation(OutputViolation, "", "the answer is empty")
	default:
		v = r.checkResult(&out)
	}
	return out, v
}

// Refusal returns the violation as the failure of the call that was answered so.
func (v *Violation) Refusal() *actor.Refusal {
	r := actor.Refusal{Reason: actor.Rejected, Code: v.Code, Field: v.Field, Detail: v.Error()}
	return r.Fit()
}

// TimeoutFor returns the timeout of the request for a capability.
func (r *Request) TimeoutFor(k *actor.Capability) actor.Duration {
	return cmp.Or(r.Timeout, k.Timeout, TimeoutDefault)
}

// Candidate is an owner of a capability when a request came.
type Candidate struct {
	Agent   string
	Load    int            // requests that it has open
	Refusal *actor.Refusal // why it gets none; nil: it may
}

// Choice is the decision about the owner of a request, for the record.
type Choice struct {
	Agent      string
	Why        string      // "named", "only owner", "least loaded" or "tie"
	Candidates []Candidate // the first candidatesMax by ID, of Owners
	Owners     int
}

// State reports the load of an agent, and why it gets no request, or nil.
type State func(agent string) (load int, refusal *actor.Refusal)

// Route decides which agent gets a request. Target is the ID or code of an agent. If it is "", the
// healthy owner with the smallest load gets the request. Among owners with the same load the
// session decides, so that a session stays with one owner.
func (c *Catalog) Route(target, code, session string, state State) (Choice, *Violation, *actor.Refusal) {
	r, v := c.find(code)
	if v != nil {
		return Choice{}, v, nil
	}
	if target != "" {
		agent := c.AgentOf(target)
		if _, owns := slices.BinarySearchFunc(r.owners, agent, func(o owner, agent string) int { return strings.Compare(o.agent, agent) }); !owns {
			return Choice{}, violation(InputInvalid, "capability_code", "agent %.80s does not own %s; its owners are %s", target, code, r.ownerNames()), nil
		}
		load, refusal := state(agent)
		return Choice{Agent: agent, Why: "named", Candidates: []Candidate{{agent, load, refusal}}, Owners: len(r.owners)}, nil, refusal
	}
	choice := Choice{Owners: len(r.owners), Candidates: make([]Candidate, 0, min(len(r.owners), candidatesMax))}
	best, least, ties, weight := -1, 0, 0, uint64(0)
	var soonest *actor.Refusal
	here := tools.PlaceOf(session)
	for i := range r.owners {
		o := &r.owners[i]
		load, refusal := state(o.agent)
		if i < candidatesMax {
			choice.Candidates = append(choice.Candidates, Candidate{o.agent, load, refusal})
		}
		switch w := o.place.Weight(here); {
		case refusal != nil:
			if soonest == nil || refusal.RetryAfter < soonest.RetryAfter {
				soonest = refusal
			}
		case best < 0 || load < least:
			best, least, ties, weight = i, load, 1, w
		case load == least:
			if ties++; w > weight {
				best, weight = i, w
			}
		}
	}
	if best < 0 {
		refusal := actor.RefuseUnavailable(soonest.RetryAfter, "%s: none of its %d owners is available: %s", code, len(r.owners), soonest.Detail)
		return choice, nil, refusal
	}
	choice.Agent = r.owners[best].agent
	switch {
	case len(r.owners) == 1:
		choice.Why = "only owner"
	case ties > 1:
		choice.Why = "tie"
	default:
		choice.Why = "least loaded"
	}
	return choice, nil, nil
}

// Others returns up to three owners of a capability that may get its requests, except one agent, in order of
// their IDs.
func (c *Catalog) Others(code, except string, state State) (agents []string) {
	r := c.row(code)
	if r == nil {
		return nil
	}
	for i := range r.owners {
		if len(agents) == namesShownMax {
			break
		}
		if agent := r.owners[i].agent; agent != except {
			if _, refusal := state(agent); refusal == nil {
				agents = append(agents, agent)
			}
		}
	}
	return agents
}

// Listed is a capability with its owners.
type Listed struct {
	actor.Capability
	Owners []string // IDs of agents, in order
}

// All returns the capabilities in order of their codes.
func (c *Catalog) All() []Listed {
	all := make([]Listed, len(c.rows))
	for i := range c.rows {
		all[i].Capability = c.rows[i].Capability
		for _, o := range c.rows[i].owners {
			all[i].Owners = append(all[i].Owners, o.agent)
		}
	}
	return all
}

// AgentOf returns the ID of the agent with a code, or the target itself.
func (c *Catalog) AgentOf(target string) string {
	if i, ok := slices.BinarySearchFunc(c.codes, target, func(n codeName, code string) int { return strings.Compare(n.code, code) }); ok {
		return c.codes[i].agent
	}
	return target
}

func (r *row) ownerNames() string {
	names := make([]string, 0, namesShownMax+1)
	for i := range r.owners[:min(len(r.owners), namesShownMax)] {
		names = append(names, r.owners[i].agent)
	}
	if more := len(r.owners) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
