// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Spec is an agent in words: what its author writes into a file, or a client
// sends. ReadTOML and ReadJSON read it, Compile makes an agent of it.
//
//  1. What they return is complete: each default stands in it, so that it means
//     the same to a later version of this program.
//  2. The same spec has the same Encode, and the same Hash.
//  3. Encode writes at most SpecBytesMax, and ReadJSON reads it back.
type Spec struct {
	ID          string `json:"agent_id"`
	Name        string `json:"name"` // for people; need not be unique
	Kind        string `json:"kind"` // KindDeclared or KindExternal
	Description string `json:"description,omitzero"`

	// Of a declared agent.
	Model      string     `json:"model,omitzero"`
	Prompt     string     `json:"prompt,omitzero"`
	Tools      []string   `json:"tools,omitzero"`
	Agents     []string   `json:"agents,omitzero"` // whom it may call; nil: any
	OnFailure  string     `json:"on_failure,omitzero"`
	Parameters Parameters `json:"parameters,omitzero"`

	// Of an external one.
	Endpoint    string `json:"endpoint,omitzero"`
	Retry       string `json:"retry,omitzero"`
	Concurrency int    `json:"concurrency,omitzero"`
	Auth        Auth   `json:"auth,omitzero"`

	Capabilities []string   `json:"capabilities,omitzero"`
	Durability   string     `json:"durability"`
	Turns        string     `json:"turns"`
	Recursion    string     `json:"recursion"`
	Limits       SpecLimits `json:"limits,omitzero"`
}

// Parameters are what a model is told besides its prompt.
type Parameters struct {
	Temperature *float64 `json:"temperature,omitzero"`
	MaxTokens   int      `json:"max_tokens,omitzero"`
	Seed        *int64   `json:"seed,omitzero"`
}

// SpecLimits are the bounds of a turn, within those of the runtime. A time of 0
// is the runtime's.
type SpecLimits struct {
	Steps           int   `json:"steps,omitzero"` // how often its model is asked
	ModelTimeoutMS  int64 `json:"model_timeout_ms,omitzero"`
	ToolTimeoutMS   int64 `json:"tool_timeout_ms,omitzero"`
	CallTimeoutMS   int64 `json:"call_timeout_ms,omitzero"` // of call_agent, where the model names none
	InvokeTimeoutMS int64 `json:"invoke_timeout_ms,omitzero"`
}

// Auth says how an external agent knows that it is us.
type Auth struct {
	// Env names the variable in the server's environment that holds the secret.
	// It begins with upstream.AuthEnvPrefix.
	Env string `json:"env,omitzero"`
}

// The kinds of Spec.
const (
	KindDeclared = "declared"
	KindExternal = "external"
)

// What becomes of a run when one of its tools fails.
const (
	ReturnError = "return_error" // the model is told
	FailRun     = "fail_run"     // the run fails with it
)

// Whether an external agent may be handed the same message twice.
const (
	RetryNever = "never"
	RetrySafe  = "safe"
)

// Bounds of a spec.
const (
	SpecBytesMax        = 48 << 10 // as Encode writes it
	SourceBytesMax      = 128 << 10
	PromptTextMax       = 32 << 10
	DescriptionMax      = 1 << 10
	EndpointMax         = 2 << 10
	SpecToolsMax        = upstream.ToolsMax
	SpecTargetsMax      = 256
	CapabilitiesMax     = 64
	modelStepsMax       = StepsMax
	timeoutMSMax        = 3_600_000
	callTimeoutMSMax    = 300_000
	reservedToolsPrefix = "troupe." // tools that are Troupe's own business
)

// defaultPrompt is what an agent is told whose author says nothing.
func defaultPrompt(name string) string {
	return "You are " + name + ", one of several agents that work together. Do what you are asked. " +
		"If another agent is to be asked, ask it, and answer with what it said."
}

// setDefaults fills in what the author left open.
func (s *Spec) setDefaults() {
	or := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	or(&s.ID, s.Name)
	or(&s.Name, s.ID)
	or(&s.Durability, "journaled")
	or(&s.Turns, "serial")
	or(&s.Recursion, "by_agent")
	if s.Kind == KindExternal {
		or(&s.Retry, RetryNever)
		if s.Concurrency == 0 {
			s.Concurrency = upstream.ConcurrencyDefault
		}
		return
	}
	or(&s.Model, upstream.ScriptName)
	or(&s.Prompt, defaultPrompt(s.Name))
	or(&s.OnFailure, ReturnError)
	if s.Tools == nil {
		s.Tools = []string{tools.CallAgent}
	}
	if s.Limits.Steps == 0 {
		s.Limits.Steps = modelStepsMax
	}
}

// Encode writes the spec as ReadJSON reads it: members in one order, no blanks.
func (s *Spec) Encode() []byte { return invariant.Must(json.Marshal(s, json.Deterministic(true))) }

// loopVersion is part of what a declared or external agent is: it changes when
// the same spec and the same answers come to other asks than before.
const loopVersion = "1"

// Hash names what an agent of this spec is.
func (s *Spec) Hash() actor.Hash {
	return actor.HashOf([]byte("spec:" + loopVersion + ":" + string(s.Encode())))
}

// MayCall tells whether the spec lets its agent call the target, as the model
// wrote it: agent, or agent/key.
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

// MissingTools are those that the registry does not have: the agent does without them.
func (s *Spec) MissingTools(registry *tools.Registry) []string {
	var missing []string
	for _, name := range s.Tools {
		if _, ok := registry.Tool(name); !ok {
			missing = append(missing, name)
		}
	}
	return missing
}

// String is the spec in a few words.
func (s *Spec) String() string {
	if s.Kind == KindExternal {
		return fmt.Sprintf("%s external at %s", s.ID, s.Endpoint)
	}
	return fmt.Sprintf("%s declared, model %s, tools %s", s.ID, s.Model, strings.Join(s.Tools, " "))
}
