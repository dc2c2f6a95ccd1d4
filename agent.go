// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"cmp"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
)

// Agent defines an agent written in Go. Name and either Func or Handler are required.
type Agent struct {
	// address of the agent: 1 to 64 letters, digits, '.', '_' and '-'; not troupe, and no name
	// that begins with "troupe."
	Name string
	// version of the code, shown as part of its definition; default "1"
	Version string
	// one line for lists of agents
	Doc string

	// Func processes a message and returns the answer. An error fails the run. It is called
	// concurrently for different sessions.
	Func func(t *Turn) (string, error)
	// Handler is the alternative to Func.
	Handler Handler

	// earlier messages of the session that a turn is given: "none" (default), "all", or "last:N"
	// with N from 1 to 100,000
	Transcript string
	// tools that Turn.Model offers to models, by name: those of Config.Tools, declared ones, and call_agent
	// and list_agents to call other agents. One that the server does not have is left out.
	Tools []string
	// what the agent may do with what is remembered, if Config.Memory is set
	Memory Memory
	// what Turn.Send and agent_call may ask of it, at most 64 names; another skill is refused with CodeInvalid. nil
	// means anything.
	Skills []string
	// Code is the alias of the agent in requests for capabilities: three capitals such as "ANL"; empty for none.
	Code string
	// Provides declares the capabilities that others ask of the agent, at most 32, in TOML as in a file of an agent:
	// [[provides]] with code, description, input_schema and so on. The message of such a turn is the request of the contract as
	// JSON, and the answer is its response, or the result alone.
	Provides string
	// OneSession makes all messages that name no session share the session "main", which cannot
	// be deleted. Otherwise each begins a session.
	OneSession bool
	// maximum number of running turns, apart from those that wait for a signal; a message beyond it
	// is refused with CodeBusy. The cells of the server share it, each at least one turn. 0 means
	// the limit max_active_per_agent.
	MaxActive int

	// version of the type that the agent keeps with SetState
	StateVersion int
	// Migrate converts a state of another version to the present version, both as JSON. If it is
	// nil, such a state is refused with CodeRejected. It MUST depend on its arguments alone.
	Migrate func(version int, state []byte) ([]byte, error)
}

// Handler processes the messages of an agent. One value serves all sessions concurrently, so it
// MUST NOT keep data of a turn.
type Handler interface {
	Turn(t *Turn) (string, error)
}

// definition returns the agent for the runtime.
func (a Agent) definition(box *toolbox) (actor.Definition, error) {
	turn := a.Func
	if a.Handler != nil {
		turn = a.Handler.Turn
	}
	transcript, err := actor.ParseTranscriptPolicy(cmp.Or(a.Transcript, actor.TranscriptNone.String()))
	switch {
	case actor.CheckName(a.Name) != nil:
		err = fmt.Errorf("name %w", actor.CheckName(a.Name))
	case actor.CheckUnreserved(a.Name) != nil:
		err = actor.CheckUnreserved(a.Name)
	case (a.Func == nil) == (a.Handler == nil):
		err = fmt.Errorf("want one of Func and Handler")
	case err != nil:
		err = fmt.Errorf("Transcript: %w", err)
	case len(a.Tools) > agents.SpecToolsMax:
		err = fmt.Errorf("the list Tools has %d names, at most %d allowed", len(a.Tools), agents.SpecToolsMax)
	case len(a.Skills) > agents.SkillsMax:
		err = fmt.Errorf("the list Skills has %d names, at most %d allowed", len(a.Skills), agents.SkillsMax)
	case slices.ContainsFunc(a.Skills, func(name string) bool { return actor.CheckName(name) != nil }):
		err = fmt.Errorf("the list Skills has %q, want names of letters, digits, '.', '_' and '-'", a.Skills)
	case a.MaxActive < 0:
		err = fmt.Errorf("MaxActive: got %d, want at least 1, or 0 for the limit of the server", a.MaxActive)
	case a.StateVersion < 0:
		err = fmt.Errorf("StateVersion: got %d, want 0 or more", a.StateVersion)
	}
	if err != nil {
		return actor.Definition{}, fmt.Errorf("agent %.80q: %w", a.Name, err)
	}
	granted, err := a.Memory.grants()
	if err != nil {
		return actor.Definition{}, fmt.Errorf("agent %.80q: Memory: %w", a.Name, err)
	}
	a.Tools = slices.Clip(a.Tools)
	for _, name := range granted.Tools() {
		if !slices.Contains(a.Tools, name) {
			a.Tools = append(a.Tools, name)
		}
	}
	behavior := agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		defer box.logPanic("agent " + a.Name)
		text, err := turn(newTurn(t, &a, box))
		return text, agentError(err)
	}))
	def := agents.Define(a.Name, cmp.Or(a.Version, "1"), a.Doc, behavior)
	if err := agents.Declare(&def, a.Code, a.Provides); err != nil {
		return actor.Definition{}, fmt.Errorf("agent %.80q: %w", a.Name, err)
	}
	def.Transcript, def.OneSession, def.MaxActive, def.Skills = transcript, a.OneSession, a.MaxActive, a.Skills
	return def, nil
}

// toolbox holds the present tools of a server.
type toolbox struct {
	current atomic.Pointer[tools.Registry]
	log     *slog.Logger // nil: panics are not logged
}

// logPanic logs a panic of the code of the program with its stack, and lets it continue: the runtime
// answers it with a refusal. It is called by defer.
func (b *toolbox) logPanic(what string) {
	p := recover()
	if p == nil {
		return
	}
	if b.log != nil && !agents.IsUnwind(p) {
		b.log.Error(what+" panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	}
	panic(p)
}

// registry returns the present tools.
func (b *toolbox) registry() *tools.Registry { return b.current.Load() }

// definitions returns the agents for the runtime.
func definitions(all []Agent, box *toolbox) (out []actor.Definition, err error) {
	names := map[string]bool{}
	for _, a := range all {
		def, err := a.definition(box)
		if err != nil {
			return nil, err
		}
		if names[a.Name] {
			return nil, fmt.Errorf("two agents are named %s", a.Name)
		}
		names[a.Name] = true
		out = append(out, def)
	}
	return out, agents.CheckDeclarations(out)
}

func agentNames(all []Agent) (names []string) {
	for _, a := range all {
		names = append(names, a.Name)
	}
	return names
}

// providedCodes returns the codes of the capabilities of agents.
func providedCodes(all []actor.Definition) (codes []string) {
	for i := range all {
		for k := range all[i].Provides {
			codes = append(codes, all[i].Provides[k].Code)
		}
	}
	return codes
}
