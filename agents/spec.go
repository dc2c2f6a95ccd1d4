// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Spec is a declarative definition of an agent, written by its author or sent by a
// client. ReadTOML and ReadJSON parse it, and Compile turns it into an agent.
//
//  1. A parsed spec is complete. It holds every default explicitly, so that its
//     meaning does not change with the version of this program.
//  2. Equal specs have equal results of Encode and Hash.
//  3. Encode returns at most SpecBytesMax bytes, which ReadJSON accepts.
type Spec struct {
	ID          string `json:"agent_id"`
	Name        string `json:"name"` // for people; need not be unique
	Kind        string `json:"kind"` // KindDeclared, KindOrchestrator or KindExternal
	Description string `json:"description,omitzero"`

	// Declared agents and orchestrators; tools and on_failure: declared agents only.
	Model      string     `json:"model,omitzero"`
	Prompt     string     `json:"prompt,omitzero"`
	Tools      []string   `json:"tools,omitzero"`
	Agents     []string   `json:"agents,omitzero"` // agents it may call; nil: any
	OnFailure  string     `json:"on_failure,omitzero"`
	Parameters Parameters `json:"parameters,omitzero"`
	// Output is the JSON Schema of the answers, which are objects; nil: any text. Declared agents only.
	Output jsontext.Value `json:"output_schema,omitzero"`
	Memory MemoryGrants   `json:"memory,omitzero"` // declared and external agents

	// Orchestrators only.
	Threshold *float64            `json:"threshold,omitzero"` // confidence below which it asks the user
	Workflows map[string]Workflow `json:"workflow,omitzero"`

	Schedules map[string]Schedule `json:"schedule,omitzero"` // messages that it gets at their times

	// External agents only.
	Endpoint    string `json:"endpoint,omitzero"`
	Retry       string `json:"retry,omitzero"`
	Concurrency int    `json:"concurrency,omitzero"`
	Auth        Auth   `json:"auth,omitzero"`

	Capabilities []string `json:"capabilities,omitzero"` // tags
	// Details are the capabilities as an external agent describes them, if that is no list of tags.
	Details  jsontext.Value `json:"capability_details,omitzero"`
	Skills   []string       `json:"skills,omitzero"`     // what detached calls may ask of it; nil: anything
	Routing  CallParts      `json:"agent_call,omitzero"` // parts of its detached calls; nil: as the server has them
	Coalesce bool           `json:"coalesce,omitzero"`   // outcomes of its detached calls that wait have one turn

	// What the agent does for others, under the contract between agents.
	Code     string       `json:"code,omitzero"` // alias of the agent: three capitals such as ANL
	Provides []Capability `json:"provides,omitzero"`

	// UserText is what becomes of codes of agents and capabilities in texts for users: see
	// contract.ParseUserText. "" is off.
	UserText string `json:"user_text,omitzero"`

	Durability string `json:"durability"`
	Turns      string `json:"turns"`
	Recursion  string `json:"recursion"`
	Priority   string `json:"priority,omitzero"` // of clients' messages that name none; "" is normal
	// Transcript is the part of the conversation that a turn is given: see
	// actor.ParseTranscriptPolicy.
	Transcript string `json:"transcript"`
	// DefaultSession is the session of clients' messages that name none: actor.DefaultKey.
	// If it is empty, each such message begins a session.
	DefaultSession string     `json:"default_session,omitzero"`
	MaxActive      int        `json:"max_active,omitzero"` // running turns on a node; 0 means the limit of the node
	Limits         SpecLimits `json:"limits,omitzero"`
	Budget         SpecBudget `json:"budget,omitzero"`
}

// CallParts switches the parts of the detached calls that an agent makes.
type CallParts struct {
	Correlation *bool `json:"correlation,omitzero"` // the callee gets the correlation
	ReturnTo    *bool `json:"return_to,omitzero"`   // and the return address and the time
	Responses   *bool `json:"responses,omitzero"`   // outcomes are delivered
	Timeouts    *bool `json:"timeouts,omitzero"`    // also when the time is over
	Channel     *bool `json:"channel,omitzero"`     // clients of the channel see the runs of the callees
}

// routing returns the parts for the definition.
func (p *CallParts) routing() actor.Routing {
	of := func(b *bool) actor.Switch {
		switch {
		case b == nil:
			return 0
		case *b:
			return actor.On
		}
		return actor.Off
	}
	return actor.Routing{Correlation: of(p.Correlation), ReturnTo: of(p.ReturnTo), Responses: of(p.Responses), Timeouts: of(p.Timeouts), Channel: of(p.Channel)}
}

// Parameters are the model settings of a spec.
type Parameters struct {
	Temperature *float64 `json:"temperature,omitzero"`
	MaxTokens   int      `json:"max_tokens,omitzero"`
	Seed        *int64   `json:"seed,omitzero"`
}

// SpecLimits are the limits of a turn. The limits of the runtime apply too. A
// timeout of 0 means the runtime's default.
type SpecLimits struct {
	Steps           int   `json:"steps,omitzero"` // maximum number of prompts to the model
	ModelTimeoutMS  int64 `json:"model_timeout_ms,omitzero"`
	ToolTimeoutMS   int64 `json:"tool_timeout_ms,omitzero"`
	CallTimeoutMS   int64 `json:"call_timeout_ms,omitzero"` // timeout of call_agent if the model sets none
	InvokeTimeoutMS int64 `json:"invoke_timeout_ms,omitzero"`
	// Retries of a failed invocation, as in upstream.RetryPolicy.
	RetryAttempts   int   `json:"retry_attempts,omitzero"`
	RetryDelayMS    int64 `json:"retry_delay_ms,omitzero"`
	RetryDelayMaxMS int64 `json:"retry_delay_max_ms,omitzero"`
	RetryTimeMS     int64 `json:"retry_time_ms,omitzero"`
	RetryJitter     *bool `json:"retry_jitter,omitzero"`
}

// RetryPolicy returns the retry policy of an external agent.
func (s *Spec) RetryPolicy() upstream.RetryPolicy {
	l := &s.Limits
	return upstream.RetryPolicy{Tries: l.RetryAttempts, Delay: millis(l.RetryDelayMS), DelayMax: millis(l.RetryDelayMaxMS), Time: millis(l.RetryTimeMS),
		Exact: l.RetryJitter != nil && !*l.RetryJitter}
}

// Auth configures how the server authenticates to an external agent.
type Auth struct {
	// Env is the name of the server's environment variable with the secret.
	// It begins with upstream.AuthEnvPrefix.
	Env string `json:"env,omitzero"`
	// Sealed is a credential that the agent was registered with, sealed by upstream.SealAuth. It is never shown.
	Sealed string `json:"sealed,omitzero"`
	// Stored reports that there is one, in what is shown.
	Stored bool `json:"stored,omitzero"`
}

// SealRegistration replaces the credential in the registration of an external agent by its sealed form. No credential
// is stored in another one.
func SealRegistration(secret, body []byte) ([]byte, *actor.Refusal) {
	return upstream.SealAuth(secret, body)
}

// shown returns the encoded spec without its credential.
func (s Spec) shown() []byte {
	s.Auth = Auth{Env: s.Auth.Env, Stored: s.Auth.Sealed != ""}
	return s.Encode()
}

// The kinds of Spec.
const (
	KindDeclared     = "declared"
	KindOrchestrator = "orchestrator" // a declared agent whose turns are plans
	KindExternal     = "external"
)

// HasModel reports whether the agent prompts the model of its spec.
func (s *Spec) HasModel() bool { return s.Kind != KindExternal }

// thresholdDefault is the threshold of an orchestrator that names none.
const thresholdDefault = 0.7

// The actions when a tool of a run fails.
const (
	ReturnError = "return_error" // the model receives the error
	FailRun     = "fail_run"     // the run fails with the error
)

// Whether an external agent may receive the same message twice. After a crash of the server
// one with RetryMatched is invoked again for the same run, and its requests are matched with
// those that it made before. One with RetrySafe is, too, when its connection breaks.
const (
	RetryNever   = "never"
	RetryMatched = "matched"
	RetrySafe    = "safe"
)

// Limits of a spec.
const (
	SpecBytesMax        = 48 << 10 // length of the result of Encode
	SourceBytesMax      = 128 << 10
	PromptTextMax       = 32 << 10
	DescriptionMax      = 1 << 10
	EndpointMax         = 2 << 10
	SpecToolsMax        = upstream.ToolsMax
	SpecTargetsMax      = 256
	CapabilitiesMax     = 64
	SkillsMax           = 64
	modelStepsMax       = StepsMax
	timeoutMSMax        = 3_600_000
	callTimeoutMSMax    = 300_000
	reservedToolsPrefix = "troupe." // prefix of Troupe's internal tools
)

// The defaults of Spec.Transcript.
const (
	declaredTranscript = "last:100"
	externalTranscript = "last:50"
)

// defaultPrompt returns the prompt of an agent whose author has set none.
func defaultPrompt(name string) string {
	return "You are " + name + ", one of several agents that work together. Do what you are asked. " +
		"To involve another agent, call it and answer with its reply."
}

// setDefaults sets the fields that the author left empty.
func (s *Spec) setDefaults() {
	or := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	or(&s.ID, s.Name)
	or(&s.Name, s.ID)
	or(&s.Durability, "journaled")
	s.setSessions()
	or(&s.Turns, "serial")
	or(&s.Recursion, "by_agent")
	if s.Durability == "none" {
		or(&s.Transcript, actor.TranscriptNone.String()) // it keeps no transcript
	}
	s.Memory.SetDefaults()
	if s.Kind == KindExternal {
		or(&s.Transcript, externalTranscript)
		or(&s.Retry, RetryMatched)
		if s.Concurrency == 0 {
			s.Concurrency = upstream.ConcurrencyDefault
		}
		return
	}
	or(&s.Transcript, declaredTranscript)
	or(&s.Model, upstream.ScriptName)
	if s.Kind == KindOrchestrator {
		or(&s.Prompt, "You are "+s.Name+", and you talk with the user.")
		or(&s.UserText, contract.RedactCodes.String())
		if s.Threshold == nil {
			threshold := thresholdDefault
			s.Threshold = &threshold
		}
		return
	}
	or(&s.Prompt, defaultPrompt(s.Name))
	or(&s.OnFailure, ReturnError)
	if s.Tools == nil {
		s.Tools = []string{tools.CallAgent}
	}
	if s.Limits.Steps == 0 {
		s.Limits.Steps = modelStepsMax
	}
}

// Encode returns the JSON that ReadJSON parses: deterministic order, no whitespace.
func (s *Spec) Encode() []byte { return invariant.Must(json.Marshal(s, json.Deterministic(true))) }

// loopVersion is part of the hash of declared and external agents. It MUST change
// when the same spec and answers lead to other asks than before.
const loopVersion = "2"

// Hash returns the identity of the spec's agent.
func (s *Spec) Hash() actor.Hash {
	return actor.HashOf([]byte("spec:" + loopVersion + ":" + string(s.Encode())))
}

// MayCall reports whether the spec allows its agent to call the target, given as
// agent or agent/key.
func (s *Spec) MayCall(target string) bool {
	if s.Agents == nil {
		return true
	}
	agent, _, _ := strings.Cut(target, "/")
	for _, a := range s.Agents {
		if a == agent {
			return true
		}
	}
	return false
}

// canCall reports whether the agent can call any agent.
func (s *Spec) canCall() bool {
	return slices.Contains(s.Tools, tools.CallAgent) && (s.Agents == nil || len(s.Agents) > 0)
}

// requests returns the agents whose capabilities the agent may ask for; nil: any.
func (s *Spec) requests() []string {
	if s.Kind != KindOrchestrator && !slices.Contains(s.Tools, tools.RequestCapability) {
		return []string{}
	}
	return s.Agents
}

// sends returns the agents to which the agent may make detached calls; nil: any.
func (s *Spec) sends() []string {
	if !slices.Contains(s.Tools, tools.AgentCall) && !slices.Contains(s.Tools, tools.DebateCall) {
		return []string{}
	}
	return s.Agents
}

// MissingTools returns the tools that the registry does not have. The agent runs
// without them.
func (s *Spec) MissingTools(registry *tools.Registry) []string {
	var missing []string
	for _, name := range s.offered() {
		if _, ok := registry.Tool(name); !ok {
			missing = append(missing, name)
		}
	}
	return missing
}

// String returns a short description of the spec.
func (s *Spec) String() string {
	if s.Kind == KindExternal {
		return fmt.Sprintf("%s external at %s", s.ID, s.Endpoint)
	}
	if s.Kind == KindOrchestrator {
		return fmt.Sprintf("%s orchestrator, model %s, workflows %s", s.ID, s.Model, strings.Join(slices.Sorted(maps.Keys(s.Workflows)), " "))
	}
	return fmt.Sprintf("%s declared, model %s, tools %s", s.ID, s.Model, strings.Join(s.Tools, " "))
}
