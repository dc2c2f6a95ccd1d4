// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/signals"
)

// Capabilities is what the agents of a node do for others, as the clients of one server see it: the
// catalog, and the requests that each agent has open. The zero value is ready, and safe for concurrent
// use.
type Capabilities struct {
	// Unavailable returns why an agent gets no requests now, or nil. It may be nil.
	Unavailable func(agent string) *actor.Refusal
	// Unhealthy reports whether an agent does not answer, as far as known. It gets a request only if no
	// other owner is healthy. The function may be nil.
	Unhealthy func(agent string) bool

	mu      sync.Mutex
	of      []command.Agent // of catalog; it keeps the list reachable, so that no other has its address
	hash    actor.Hash      // of their definitions
	catalog *contract.Catalog
	open    map[string]int // requests, by agent
}

// Catalog returns the catalog of a list of agents. Declarations that contradict earlier ones are left
// out.
func (k *Capabilities) Catalog(all []command.Agent) *contract.Catalog {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.catalog != nil && len(k.of) == len(all) && (len(all) == 0 || &k.of[0] == &all[0]) {
		return k.catalog
	}
	content := make([]byte, 0, len(all)*len(k.hash))
	for i := range all {
		content = append(content, all[i].Hash[:]...)
	}
	hash := actor.HashOf(content)
	if k.catalog == nil || hash != k.hash {
		k.catalog = catalogOf(all, k.catalog)
	}
	k.of, k.hash = all, hash
	return k.catalog
}

// Catalog returns the catalog as the client sees it: for one that is limited to agents, of these only.
func (c *Client) Catalog(k *Capabilities, all []command.Agent) *contract.Catalog {
	if len(c.Agents) == 0 {
		return k.Catalog(all)
	}
	return catalogOf(slices.DeleteFunc(slices.Clone(all), func(a command.Agent) bool { return !c.Finds(a.Name) }), nil)
}

func catalogOf(all []command.Agent, former *contract.Catalog) *contract.Catalog {
	var declared []contract.Declaration
	for i := range all {
		if all[i].Declares != nil {
			if d, err := agents.ReadDeclaration(all[i].Name, all[i].Declares); err == nil {
				declared = append(declared, d)
			}
			continue
		}
		if all[i].System || !strings.Contains(string(all[i].Spec), `"provides"`) && !strings.Contains(string(all[i].Spec), `"code"`) {
			continue
		}
		if spec, err := agents.ReadJSON(all[i].Spec); err == nil && (spec.Code != "" || len(spec.Provides) > 0) {
			declared = append(declared, spec.Declaration())
		}
	}
	catalog, err := contract.NewCatalog(declared, former)
	for n := 1; err != nil && n <= len(declared); { // the registry refuses contradictions, earlier versions did not
		if catalog, err = contract.NewCatalog(declared[:n], former); err != nil {
			declared = slices.Delete(declared, n-1, n)
			continue
		}
		n++
	}
	return catalog
}

// unhealthyLoad exceeds the load of any healthy agent.
const unhealthyLoad = 1 << 20

// state is the contract.State of the agents.
func (k *Capabilities) state(agent string) (load int, refusal *actor.Refusal) {
	k.mu.Lock()
	load = k.open[agent]
	k.mu.Unlock()
	if k.Unhealthy != nil && k.Unhealthy(agent) {
		load += unhealthyLoad
	}
	if k.Unavailable != nil {
		refusal = k.Unavailable(agent)
	}
	return load, refusal
}

// begin counts a request to an agent until end is called.
func (k *Capabilities) begin(agent string) (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open == nil {
		k.open = map[string]int{}
	}
	k.open[agent]++
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.open[agent]--; k.open[agent] == 0 {
			delete(k.open, agent)
		}
	}
}

// Envelope is a request of the contract as it has arrived.
type Envelope struct {
	contract.Request
	Addressed string       // ID or code of an agent, or a capability, to which it was sent
	Run       actor.CallID // run on whose behalf an external agent asks; zero: it begins a run
	Actor     actor.ID     // of that run
}

// Fulfilled is the outcome of a request of the contract.
type Fulfilled struct {
	Response contract.Response
	Choice   contract.Choice // of the agent
	Run      actor.CallID    // of the agent; zero if the request was refused before
	Session  string
}

// Fulfil gives a request of the contract to an agent that owns the capability, and waits for its
// response. Each broken rule and each refusal is a response. Only an overload, of which a client should
// know as such, and the end of ctx or of the node are errors.
func (c *Client) Fulfil(ctx context.Context, k *Capabilities, in *Envelope, r *Request) (out Fulfilled, err error) {
	began := time.Now()
	found, err := find(ctx, c, command.AgentsQuery{})
	if err != nil {
		return out, err
	}
	out, err = c.fulfil(ctx, k, found.All, in, r)
	var refusal *actor.Refusal
	switch {
	case errors.As(err, &refusal) && refusal.Reason != actor.Busy:
		out.Response, err = contract.Refused(in.ID, refusal), nil
		c.addAlternatives(k, found.All, in, refusal, &out)
	case err != nil:
		return out, err
	}
	if m := &out.Response.Metadata; !m.Timed {
		m.Took, m.Timed = actor.Duration(time.Since(began)), true
	}
	return out, nil
}

func (c *Client) fulfil(ctx context.Context, k *Capabilities, all []command.Agent, in *Envelope, r *Request) (out Fulfilled, err error) {
	catalog := c.Catalog(k, all)
	target, broken := c.addressee(catalog, all, in)
	if broken == nil {
		broken = c.checkSource(catalog, all, in)
	}
	var capability *actor.Capability
	if broken == nil {
		capability, broken = catalog.Find(in.Capability)
	}
	if broken == nil {
		broken = catalog.CheckInputs(in.Capability, in.Inputs)
	}
	var unavailable *actor.Refusal
	if broken == nil {
		out.Choice, broken, unavailable = catalog.Route(target, in.Capability, in.Session, k.state)
	}
	switch {
	case broken != nil:
		out.Response = contract.Invalid(in.ID, broken)
		return out, nil
	case unavailable != nil:
		return out, unavailable
	}
	defer k.begin(out.Choice.Agent)()
	i := slices.IndexFunc(all, func(a command.Agent) bool { return a.Name == out.Choice.Agent })
	if i < 0 {
		return out, actor.AgentNotFound(out.Choice.Agent)
	}
	answer, err := c.deliverEnvelope(ctx, &all[i], capability, in, r, &out)
	switch {
	case err != nil:
		return out, err
	case answer.Reply.Refusal != nil:
		out.Response = contract.Refused(in.ID, answer.Reply.Refusal)
		c.addAlternatives(k, all, in, answer.Reply.Refusal, &out)
		if out.Response.Status == contract.TimedOut && in.Run.IsZero() {
			c.addPartial(ctx, &out, catalog, in.Capability)
		}
		if answer.Reply.Refusal.Reason == actor.Busy {
			return out, answer.Reply.Refusal
		}
		return out, nil
	case answer.HeldUntil != 0:
		out.Response = contract.Response{ID: in.ID, Status: contract.TimedOut, Warnings: []string{fmt.Sprintf("run %s waits for a person to decide: the same request gets its response later", out.Run)}}
		return out, nil
	}
	out.Response, broken = catalog.ReadResponse(answer.Reply.Parts, in.ID, in.Capability)
	if broken != nil { // the event of the end of the run has the original
		out.Response = contract.Invalid(in.ID, broken)
		return out, nil
	}
	if m := &out.Response.Metadata; m.CapabilityVersion == "" {
		m.CapabilityVersion = capability.Version
	}
	if len(answer.Reply.Warnings) > 0 && out.Response.Status == contract.Success {
		out.Response.Status = contract.Partial
	}
	out.Response.Warnings = append(out.Response.Warnings, answer.Reply.Warnings...)
	return out, nil
}

// addAlternatives adds to the response of an agent that is not available which others own the capability.
func (c *Client) addAlternatives(k *Capabilities, all []command.Agent, in *Envelope, refusal *actor.Refusal, out *Fulfilled) {
	if refusal.Reason != actor.Unavailable {
		return
	}
	answers := func(agent string) (int, *actor.Refusal) {
		load, refusal := k.state(agent)
		if load >= unhealthyLoad {
			refusal = actor.RefuseUnavailable(0, "agent %s does not answer", agent)
		}
		return load, refusal
	}
	r := &out.Response
	r.Metadata.Alternatives = c.Catalog(k, all).Others(in.Capability, out.Choice.Agent, answers)
	if others := r.Metadata.Alternatives; len(others) > 0 {
		r.ErrorMessage += "; " + in.Capability + " is available from " + strings.Join(others, ", ")
	} else {
		r.ErrorMessage += "; no other agent that owns " + in.Capability + " is available"
	}
}

// addPartial adds what a run had produced when its time ran out to its response. Text that is not a result of the
// capability is not added: it stays in the events of the run.
func (c *Client) addPartial(ctx context.Context, out *Fulfilled, catalog *contract.Catalog, code string) {
	r := &out.Response
	p, err := c.Partial(ctx, out.Run)
	if err != nil {
		return
	}
	if len(p.Incomplete) == 0 {
		r.Metadata.Incomplete, r.Warnings = []string{code}, append(r.Warnings, code+" was not completed in time")
	}
	for _, agent := range p.Incomplete {
		r.Warnings = append(r.Warnings, "the part of "+agent+" was not completed")
	}
	r.Metadata.Incomplete = append(r.Metadata.Incomplete, p.Incomplete...)
	if p.Text == "" {
		return
	}
	part, broken := contract.DecodeResponse(p.Text, r.ID, contract.DefaultLevels())
	if jsontext.Value(p.Text).IsValid() && broken == nil && catalog.CheckResult(code, &part) == nil {
		r.Result, r.Confidence = part.Result, part.Confidence
		return
	}
	r.Warnings = append(r.Warnings, fmt.Sprintf("the answer was cut after %d bytes", len(p.Text)))
}

// addressee returns the target of a request, or "" if any owner of the capability may get it.
func (c *Client) addressee(catalog *contract.Catalog, all []command.Agent, in *Envelope) (target string, broken *contract.Violation) {
	if in.Addressed == in.Target || catalog.AgentOf(in.Addressed) == catalog.AgentOf(in.Target) {
		if in.Target == in.Capability {
			return "", nil
		}
		return in.Target, nil
	}
	if in.Addressed == in.Capability { // one of its owners is wanted
		return in.Target, nil
	}
	return "", &contract.Violation{Code: contract.InputInvalid, Field: "target_agent", Rule: fmt.Sprintf("want %.80s, to which the request was sent, and not %.80s", in.Addressed, in.Target)}
}

// checkSource checks that a request comes from its source: from the agent that works on the run, or
// from the principal that registered the agent. A client may use the code of an agent that this server does not
// have.
func (c *Client) checkSource(catalog *contract.Catalog, all []command.Agent, in *Envelope) *contract.Violation {
	wrong := func(format string, args ...any) *contract.Violation {
		return &contract.Violation{Code: contract.InputInvalid, Field: "source_agent", Rule: fmt.Sprintf(format, args...)}
	}
	source := catalog.AgentOf(in.Source)
	if !in.Run.IsZero() {
		if source != in.Actor.Agent {
			return wrong("want %s, the agent of the run, and not %.80s", in.Actor.Agent, in.Source)
		}
		return nil
	}
	i := slices.IndexFunc(all, func(a command.Agent) bool { return a.Name == source && !a.System })
	switch {
	case i < 0 && slices.Contains(contract.Codes(), in.Source):
		return nil
	case i < 0:
		return wrong("no agent is named %.80s, and it is none of the codes %s", in.Source, strings.Join(contract.Codes(), " "))
	case all[i].Owner != "" && all[i].Owner != c.By.User && all[i].Owner != c.Share && c.Key != "" && !ingress.Allows(c.By, ingress.ScopeOperator):
		return wrong("agent %.80s belongs to another principal", in.Source)
	}
	return nil
}

// deliverEnvelope gives a request to an agent, and waits for its answer.
func (c *Client) deliverEnvelope(ctx context.Context, to *command.Agent, capability *actor.Capability, in *Envelope, r *Request, out *Fulfilled) (command.Answer, error) {
	text := string(in.Encode())
	if to.Kind == actor.Declared { // its model does not know the contract
		text += "\n\n" + contract.AnswerHint(capability)
	}
	timeout := in.TimeoutFor(capability)
	if !in.Run.IsZero() {
		call := signals.New(in.Actor, in.Run, signals.CallAgent{Agent: to.Name, Message: text, TimeoutMS: timeout.Milliseconds()})
		call.Lane = in.Priority
		asked := *r
		asked.Origin, asked.Time = actor.Agent, timeout+actor.Duration(time.Minute)
		answer, err := c.Ask(ctx, call, &asked)
		out.Run, out.Session = answer.Reply.Run, in.Actor.Key
		return answer, err
	}
	call := actor.Call{To: c.By.ID(to.Name, in.Session), Left: timeout, Lane: in.Priority, Principal: r.by(c), Trace: r.Trace, Idempotency: r.Key, Workflow: in.Correlation, Parts: actor.Text(text)}
	c.Address(&call, to, in.Session != "")
	out.Run, out.Session = call.ID, call.To.Key
	answer, err := c.Send(ctx, call, func(run actor.CallID) { out.Run = run })
	if err == nil && !answer.Reply.Run.IsZero() {
		out.Run = answer.Reply.Run
	}
	return answer, err
}
