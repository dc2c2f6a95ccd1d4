// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"
)

// AskKind is the kind of an ask.
type AskKind uint8

// The kinds of ask.
const (
	AskCall   AskKind = iota + 1 // call of another agent
	AskTool                      // tool call, by name, with JSON input
	AskWork                      // function of the agent, run outside the cell
	AskSleep                     // delay
	AskWait                      // signal by name, from a person or an event
	AskModel                     // prompt to a model
	AskInvoke                    // delivery of this turn's message to an external agent
	AskDetach                    // detached call; it is answered at once, so no journal has it
)

var askNames = [...]string{AskCall: "call", AskTool: "tool", AskWork: "work", AskSleep: "sleep", AskWait: "wait", AskModel: "model", AskInvoke: "invoke", AskDetach: "detach"}

// String returns the name of the kind.
func (k AskKind) String() string { return nameOf(askNames[:], int(k)) }

// Work is slow or impure code of an agent. It runs outside the cell and is
// cancelled through ctx.
type Work func(ctx context.Context) ([]byte, error)

// Ask is one request of an agent to its environment. The turn waits for the answer.
type Ask struct {
	Kind AskKind
	// Name is the name of the tool, work, signal, model or external agent. A
	// model has the name that the configuration of this program gives it. For a
	// call, Name is the target as the agent wrote it: agent or agent/key.
	Name string
	// Operation is the operation of a call; empty means HandleMessageFull.
	Operation string
	// Parts is the content of a call or the JSON input of a tool. For a model
	// it is a summary of the messages added since the last prompt. For an
	// external agent it is the address as JSON.
	Parts []Part
	// Timeout is the requested time limit of a call or tool, the length of a
	// sleep, or the time a wait stays open. 0 means the default of the kind.
	Timeout Duration
	// Idempotent reports whether the ask may be performed again after a crash.
	// If not, an interrupted ask is answered with the refusal Unknown.
	Idempotent bool
	// Lane is the lowest priority of a call, 0 for that of its caller. A call never
	// has a higher priority than its caller.
	Lane Lane
	// Work is the function itself. It is not persisted: after a crash the turn
	// is replayed up to this ask to obtain the function again.
	Work Work
	// Body is the complete prompt of a model, or the earlier messages for an external
	// agent. It repeats earlier content, so it is not persisted: a replay of the turn
	// builds it again.
	Body []byte
	// PromptTokens and AnswerTokens are the most tokens that the prompt and the answer of a model can have; 0: by the
	// size of Body, and unknown. They are not persisted.
	PromptTokens, AnswerTokens int64
}

// NeedsReplay reports whether a repeated attempt needs data that is not persisted.
// The turn must then be replayed to obtain that data.
func (a *Ask) NeedsReplay() bool {
	return a.Kind == AskWork || a.Kind == AskModel || a.Kind == AskInvoke
}

// RunsOutsideCell reports whether the host performs the ask outside the cell and
// delivers its result as an input.
func (a *Ask) RunsOutsideCell() bool {
	return a.Kind == AskTool || a.Kind == AskWork || a.Streams()
}

// Streams reports whether pieces of the answer may arrive before the whole.
func (a *Ask) Streams() bool { return a.Kind == AskModel || a.Kind == AskInvoke }

// Piece is a partial result of a model or an external agent. It holds text, the
// state of the agent, or the refusal of an attempt that is being retried.
type Piece struct {
	Text   string
	State  string
	Detail string   // JSON value that belongs to State; may be empty
	Retry  *Refusal // refusal of the previous attempt, whose pieces are void
}

// StateItem is one key-value pair of an actor's state. The state persists from one
// message to the next.
type StateItem struct {
	Name  string // [A-Za-z0-9._-/]
	Value []byte // empty: the item is deleted
}

// WaitTimeoutMax is the maximum time that a turn waits for a person or an event. The limit
// wait_timeout_ms_max may be lower.
const WaitTimeoutMax = 90 * 24 * time.Hour

// Limits of an actor's state.
const (
	ActorStateItemsMax     = 8192     // items
	MemoryItemsMax         = 1 << 17  // items of an actor that remembers
	StateItemNameBytesMax  = 256      // length of a name in bytes
	StateItemValueBytesMax = 64 << 10 // length of a value in bytes
	ActorStateBytesMax     = 32 << 20 // names and values in bytes
	StateUpdatesMax        = 64       // updates per action
)

// Answer is the result of one ask: content or a refusal.
type Answer struct {
	Parts    []Part
	Warnings []string
	Refusal  *Refusal
	Usage    Usage // of a model or an external agent; of a call, Reply.Tree
}

// Outcome ends a turn with content and a status, or with a refusal.
type Outcome struct {
	Status   Status
	Parts    []Part
	Warnings []string
	Refusal  *Refusal
}

// Action is the next action of a turn. It either issues asks, all at once, or ends
// the turn. Exactly one of Asks and Done is set.
type Action struct {
	Asks []Ask
	Done *Outcome
	// StateUpdates is persisted with the action, before any ask is issued and
	// before the outcome is visible. Only serial, journaled actors have state.
	StateUpdates []StateItem
	// Refused lists the asks that the agent's own rules did not permit since the
	// last action. They are shown in the run's events and not persisted.
	Refused []RefusedAsk
}

// RefusedAsk is an ask that was refused before it was issued.
type RefusedAsk struct {
	Ask     Ask
	Refusal *Refusal
}

// Complete returns the action that ends a turn with content.
func Complete(parts []Part) Action { return Action{Done: &Outcome{Status: Succeeded, Parts: parts}} }

// EndRefused returns the action that ends a turn with a refusal.
func EndRefused(r *Refusal) Action { return Action{Done: &Outcome{Status: Failed, Refusal: r}} }

// Begin is the input of a turn. The same Begin and the same answers MUST lead to
// the same actions, on any machine, at any time.
type Begin struct {
	Call       Call
	At         Time // time at which the call was accepted
	Left       Duration
	ActorState []StateItem // actor's state before the turn, sorted by name
	// Transcript are the earlier messages of the conversation, oldest first, as the policy
	// of the definition selects them.
	Transcript []ChatMessage
}

// Behavior is the message handler of an agent's actors.
type Behavior interface {
	// Begin returns a new turn. It has no side effects.
	Begin(Begin) Turn
}

// Turn is the processing of one message.
type Turn interface {
	// Next takes the answers to the asks of the last action, in order. The first
	// call takes no answers. Next returns the next action. An error fails the run.
	Next(answers []Answer) (Action, error)
	// Stop abandons the turn. Next MUST NOT be called afterwards.
	Stop()
}

// Durability defines which data of an agent survives a crash.
type Durability uint8

// The durabilities.
const (
	Journaled Durability = iota // every turn is in the log
	Volatile                    // durability = "none": nothing is logged, loaded or gated
)

// Turns defines whether an actor keeps its turn while it waits for calls.
type Turns uint8

// The turn modes.
const (
	Serial      Turns = iota // one message at a time, from start to end
	Interleaved              // takes other messages while it waits; turns share no state
)

// Recursion defines which callers a call may not target.
type Recursion uint8

// The two cycle checks.
const (
	ByAgent Recursion = iota // any actor of a calling agent
	ByActor                  // only the calling actors themselves
)

// Capability is what an agent does for others under the contract between agents.
type Capability struct {
	Code          string // such as DOC_GENERATE
	Input, Output string // JSON Schemas of inputs_json and result_json; "": any object
	Version       string
	Timeout       Duration // of a request that names none; 0: contract.TimeoutDefault
	Description   string   // for agents
	UserText      string   // for users: what is done, and what it adds; no code of an agent or a capability
	Example       []byte   // of inputs_json, as JSON; nil: none
}

// Definition is an agent: the behavior and settings of its actors. Hash identifies
// it. A run keeps the hash that it started with.
type Definition struct {
	Name  string
	Hash  Hash
	Title string // display name, need not be unique; empty: Name
	Doc   string
	// Capabilities are the abilities that the agent declares.
	Capabilities []string
	// Code is an alias of the agent in requests for capabilities, and Provides is what it does for others.
	Code     string
	Provides []Capability
	// Callees are the agents that it may call; nil: any.
	Callees []string
	// Sends are the agents to which it may make detached calls; nil: any.
	Sends []string
	// Requests are the agents for whose capabilities it may ask; nil: any.
	Requests []string
	// Skills are what detached calls may ask of it; nil: anything.
	Skills []string
	// Routing are the parts of its detached calls that it switches.
	Routing Routing
	// Coalesce reports whether outcomes of its detached calls that wait have one turn, that of the last one.
	Coalesce bool

	Kind   AgentKind
	Spec   []byte // source spec as JSON; nil for a native agent
	System bool   // part of Troupe itself; neither clients nor agents may call it
	Owner  string // principal that registered the agent; empty for a native agent
	// FormerOwners are the principals that had registered an agent of this name before, the last ones.
	FormerOwners []string
	Durability   Durability
	Turns        Turns
	Recursion    Recursion
	// UserText is what becomes of codes of agents and capabilities in texts for users; "" is off. See
	// contract.ParseUserText.
	UserText string
	// Inward means that the pieces of its models' answers are not for users.
	Inward     bool
	Lane       Lane // lane of clients' calls that name none; 0 means Normal
	Transcript TranscriptPolicy
	// Purse is what a run of the agent and the runs below it may spend on models; nil: any amount. Reserve is the part of it
	// that its calls are not given; nil: a part.
	Purse, Reserve *Purse
	MaxActive      int // running turns on a node; 0 means the limit of the node
	// OneSession means that the messages of clients that name no session share the actor
	// under DefaultKey. Otherwise each begins a session.
	OneSession bool
	Behavior   Behavior
	Target     []byte // External only: the encoded address, which may change during a run
}

// OfOperator reports whether the agent is the operator's: part of the program, of an agent file,
// or of an administrator.
func (d *Definition) OfOperator() bool {
	return d.Owner == OperatorUser || d.Owner == "" && d.Kind == Native
}

// AgentKind is the form in which an agent is written.
type AgentKind uint8

// The kinds of agent.
const (
	Native   AgentKind = iota // Go code
	Declared                  // TOML or JSON: a prompt, a model, tools
	External                  // HTTP service
)

var agentKindNames = [...]string{Native: "native", Declared: "declared", External: "external"}

// String returns the name of the kind.
func (k AgentKind) String() string { return nameOf(agentKindNames[:], int(k)) }

// SameAsks returns an error that describes the first difference between the asks
// of a turn and those of its replay. Data that is not persisted is not compared.
func SameAsks(before, replayed []Ask) error {
	if len(before) != len(replayed) {
		return fmt.Errorf("made %d asks, the replay makes %d", len(before), len(replayed))
	}
	for i := range before {
		if a, b := &before[i], &replayed[i]; !a.Same(b) {
			return fmt.Errorf("ask %d was %s, is %s in the replay", i, a, b)
		}
	}
	return nil
}

// Same reports whether both asks request the same.
func (a *Ask) Same(b *Ask) bool {
	return a.Kind == b.Kind && a.Name == b.Name && a.Operation == b.Operation &&
		a.Timeout == b.Timeout && a.Idempotent == b.Idempotent && a.Lane == b.Lane && slices.EqualFunc(a.Parts, b.Parts, samePart)
}

func samePart(a, b Part) bool {
	return a.Media == b.Media && a.Blob == b.Blob && bytes.Equal(a.Bytes, b.Bytes)
}

// String returns a short description of the ask.
func (a Ask) String() string {
	return fmt.Sprintf("%s %s %.60q within %v", a.Kind, a.Name, TextOf(a.Parts), a.Timeout)
}
