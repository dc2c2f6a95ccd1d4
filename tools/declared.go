// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// Kinds of tools: a server tool is performed by this server, a client tool by a device of
// the user.
const (
	KindServer = "server_tool"
	KindClient = "client_tool"
)

// Ways in which a server tool that users declare is performed: by a request to a URL, and by a module of
// WebAssembly. See also ViaGo and ViaMCP.
const (
	ViaHTTP = "http"
	ViaWasm = "wasm"
)

// Grants of a module: what it sees beyond its arguments. Without them its clock and its randomness are the
// same in each repetition of a call.
const (
	GrantClock  = "clock"
	GrantRandom = "random"
)

// SHA256Digits is the length of Declared.SHA256.
const SHA256Digits = 64

// Values of OnFailure. If it is absent, agents of this server get the error, and the run of
// an external agent fails.
const (
	ReturnError = "return_error" // the agent gets the error
	FailRun     = "fail_run"     // the run fails with the error
)

// Bounds of declared tools, and the values of fields that are absent.
const (
	DeclaredBytesMax    = 60 << 10 // length of the result of Encode; with its owner it fits one state item
	DescriptionBytesMax = 4 << 10
	MetadataBytesMax    = 16 << 10
	ResultBytesDefault  = 64 << 10
	ConcurrencyDefault  = 64
	ConcurrencyMax      = 10_000
	TimeoutMax          = time.Hour
	CacheMax            = 24 * time.Hour
	ApprovalTimeoutMax  = actor.WaitTimeoutMax
	HeadersMax          = 16
	HeaderBytesMax      = 4 << 10 // length of a header's value
	SummaryBytesMax     = 512     // length of args_summary, and of the text that it makes
	urlBytesMax         = 2 << 10
	defaultInputSchema  = `{"type":"object"}`
)

// Methods are the HTTP methods of declared tools. The first is the default.
var Methods = []string{"POST", "GET", "PUT", "PATCH", "DELETE"}

// HeaderEnvPrefix is the required prefix of the environment variables that a header may
// name, as for the secrets of external agents. Which of them may be sent to which host is
// part of the server's configuration.
const HeaderEnvPrefix = "TROUPE_AUTH_"

// Declared is the definition of a tool that a user declares in a file or over HTTP. Its
// JSON form is also the stored one. ReadDeclared returns a complete definition, which holds
// every default explicitly; other code may leave a field zero, which means its default.
type Declared struct {
	Name        string            `json:"tool_name"`
	Kind        string            `json:"kind"`
	Via         string            `json:"via,omitzero"` // of a server tool
	Description string            `json:"description,omitzero"`
	URL         string            `json:"url,omitzero"`     // {name} is replaced by the escaped argument of that name
	Method      string            `json:"method,omitzero"`  // POST if absent
	Headers     map[string]Header `json:"headers,omitzero"` // further headers of the request
	// Identity is the form in which the server gets the user of a call, one of Identities. With one, {{user}},
	// {{session}}, {{agent}} and {{run}} in URL, headers and body are replaced.
	Identity string `json:"identity,omitzero"`
	// Body is the JSON body of the request, in which a string "{name}" is replaced by the
	// argument of that name. If absent, the arguments are the body, or the query of a GET.
	Body jsontext.Value `json:"body,omitzero"`
	// File is the path of a module, and SHA256 the sum of its bytes in lower-case hexadecimal digits. A server
	// keeps modules by their sums; only files of tools are read with the paths in them.
	File              string         `json:"file,omitzero"`
	SHA256            string         `json:"sha256,omitzero"`
	Grant             []string       `json:"grant,omitzero"` // of GrantClock and GrantRandom
	InputSchema       jsontext.Value `json:"input_schema,omitzero"`
	TimeoutMS         int64          `json:"timeout_ms,omitzero"`  // 0: the limit tool_timeout_ms of the server
	Idempotent        bool           `json:"idempotent,omitzero"`  // may be performed twice
	Batch             bool           `json:"batch,omitzero"`       // calls of one step are one request, with a list
	CacheMS           int64          `json:"cache_ms,omitzero"`    // time in ms for which a result is given again; 0: none
	Concurrency       int            `json:"concurrency,omitzero"` // calls at once on a node
	MaxResultBytes    int            `json:"max_result_bytes,omitzero"`
	Policy            string         `json:"policy,omitzero"`   // a decision by name; "" means the default of the deployment
	Approver          string         `json:"approver,omitzero"` // one of runs.Approvers, for a rule that names none; "": see there
	ApprovalTimeoutMS int64          `json:"approval_timeout_ms,omitzero"`
	ArgsSummary       string         `json:"args_summary,omitzero"` // text for the person who decides, with {{name}} for arguments
	OnFailure         string         `json:"on_failure,omitzero"`
	Steps             []PipelineStep `json:"steps,omitzero"`    // of a pipeline
	Fallback          string         `json:"fallback,omitzero"` // tool that is called if this one is not available
	Metadata          jsontext.Value `json:"metadata,omitzero"` // an object of the user

	lenient bool    // a server checks the input as well
	schema  *schema // of InputSchema, compiled by ReadDeclared; nil: With compiles it
}

// Header is the value of a header: a text, or the environment variable that holds it.
type Header struct {
	Value string `json:"value,omitzero"`
	Env   string `json:"env,omitzero"`
}

// Encode returns the JSON form of the definition. It is deterministic.
func (d *Declared) Encode() []byte {
	return invariant.Must(json.Marshal(d, json.Deterministic(true)))
}

// Hash returns the identity of the definition.
func (d *Declared) Hash() actor.Hash { return actor.HashOf(d.Encode()) }

// String returns a short description of the tool. It omits the headers.
func (d *Declared) String() string {
	if d.Kind == KindClient {
		return d.Name + " " + d.Kind
	}
	if d.Via == ViaMCP {
		return d.Name + " " + KindServer + " of an MCP server"
	}
	if d.Via == ViaWasm {
		return fmt.Sprintf("%s %s, module %.12s", d.Name, KindServer, d.SHA256)
	}
	if d.Via == ViaPipeline {
		return fmt.Sprintf("%s %s, a pipeline of %d steps", d.Name, KindServer, len(d.Steps))
	}
	if d.IsLocal() {
		return d.Name + " " + KindServer + ", a function of this program"
	}
	return fmt.Sprintf("%s %s, %s %s", d.Name, KindServer, cmp.Or(d.Method, Methods[0]), d.URL)
}

// Timeout returns the time limit of a call, without the time that it waits for approval; 0 means the limit
// tool_timeout_ms of the server.
func (d *Declared) Timeout() actor.Duration { return actor.Duration(d.TimeoutMS) * time.Millisecond }

// ResultBytesMax returns the size of a result that an agent gets as a whole.
func (d *Declared) ResultBytesMax() int {
	if d.MaxResultBytes == 0 {
		return ResultBytesDefault
	}
	return d.MaxResultBytes
}

// Verdict is the decision of a policy about a call, and the rule that led to it.
type Verdict struct {
	Decision runs.Decision
	Rule     string // for people, such as `rule 2 (payments.*)` or `default of server_tool`
	Approver string // one of runs.Approvers, or ""
}
