// SPDX-License-Identifier: Apache-2.0

package gateway

// The tables of this file are written by hand from docs/api.md. They MUST NOT
// use the table or the constants of the product: an oracle made of them would
// accept every mistake in them.

// rights maps each right to the scope that grants it, as the section
// Authentication of docs/api.md states. The scope admin grants all of them.
var rights = map[string]string{
	"send messages":   callOrRun,
	"invoke skills":   "call",
	"send signals":    "call",
	"cancel":          "call",
	"retry":           "call",
	"change sessions": "call",
	"see sessions":    "read",
	"see messages":    readOrRun,
	"append messages": "operator",
	"store contexts":  callOrRun,
	"see contexts":    readOrRun,
	"see memory":      "read",
	"change memory":   "call",
	"use models":      agentsOrRun,
	"chat":            "call",
	"see tools":       "read",
	"change tools":    "operator",
	"see tool calls":  readOrRun,
	"see approvals":   "read",
	"decide":          callNoRun,
	"give results":    callNoRun,
	"see agents":      "read",
	"see runs":        "read",
	"see events":      "read",
	"see metrics":     "operator",
	"see prompts":     "operator",
	"see steps":       "operator",
	"create agents":   "agents",
	"register agents": "agents",
	"delete agents":   "agents",
	"send heartbeats": "agents",
	"manage keys":     "admin",
	"make backups":    "admin",
	"issue tokens":    "operator",

	"see health":    anyone,
	"see pages":     anyone, // no data: the requests of a page are authorized
	"open a socket": anyone, // the hello or the handshake is authorized
	"act for a run": runToken,
}

const (
	anyone    = "anyone"            // no credential needed
	runToken  = "run token"         // the token of a run, which no key replaces
	callOrRun = "call or run token" // a presented token is used, and must be that of a run; without one the scope call is needed
	readOrRun = "read or run token" // likewise with the scope read
	callNoRun = "call, no run"      // the scope call, and a code of its own for the token of a run

	agentsOrRun = "agents or run token" // likewise with the scope agents
)

// promisedRights are lines of docs/api.md from which rights is written. If one
// changes, rights and routeRights need the same change.
var promisedRights = []string{
	"| `call` | messages, signals, cancellation and retries of runs; creation and deletion of sessions; decisions about tool calls |",
	"| `read` | agents, runs, events, sessions, tools and their calls, approvals |",
	"| `agents` | creation, registration and deletion of agents; heartbeats of own agents, with `operator` of all; [models](#models) |",
	"| `operator` | [tokens](#tokens-for-browsers), metrics, [prompts](#what-models-saw), [steps](#runs), `served_runs` of agents, changes of tools, with `agents` also names of [built-in agents](guide-agents.md#agents-in-go), appended messages; with `read` and `call` also what belongs to other users |",
	"| `admin` | everything, including keys and backups |",
	"Such a request has all scopes but `admin`; a bearer that does not begin with `troupe_` is ignored there.",
	"A request with `x-run-token`, or with a bearer that begins with `troupe-run.`, needs no key but the valid token of an open run. It acts in",
	"The Unix socket `SOCKET` in that folder admits its owner only, without a key and with all scopes.",
}

// refusedRunToken is the code of the refusal of a run token where a person must ask.
const refusedRunToken = `"code":"forbidden"`

// routeRight is a route, the right that it needs, and a request that succeeds
// and has an effect.
type routeRight struct {
	route, right string
	path, body   string // {run}, {session}, {context}, {doomed}, {capability}, {beats}, {tool}, {approval}, {call} and {key} are replaced by a run that waits, its session, a context, an agent, its capability, an external agent, a tool, an approval, a tool call and a key
	status       int
	ownership    ownership
}

// ownership is the answer to a request of a user who has all scopes and to whom the run
// or the session of the request does not belong.
type ownership string

const (
	shared    ownership = ""                       // no user owns what the request reads or changes
	own       ownership = "own"                    // the request acts in the namespace of its user, whatever it names
	noRun     ownership = `"code":"run_not_found"` // as if it did not exist
	noSession ownership = `"code":"session_not_found"`
	noContext ownership = `"code":"context_not_found"`

	noApproval ownership = `"code":"approval_not_found"`
	noToolCall ownership = `"code":"tool_call_not_found"`
)

var routeRights = []routeRight{
	{"GET /v1/agents", "see agents", "/v1/agents", "", 200, shared},
	{"GET /v1/agents/{id}", "see agents", "/v1/agents/helper", "", 200, shared},
	{"GET /v1/capabilities", "see agents", "/v1/capabilities", "", 200, shared},
	{"GET /v1/capabilities/{id}", "see agents", "/v1/capabilities/DOC_GENERATE", "", 200, shared},
	{"PUT /v1/capabilities/{id}", "create agents", "/v1/capabilities/{capability}", `{"description":"other"}`, 200, shared},
	{"DELETE /v1/capabilities/{id}", "delete agents", "/v1/capabilities/{capability}", "", 200, shared},
	{"GET /v1/schemas/{id}", "see agents", "/v1/schemas/request", "", 200, shared},
	{"POST /v1/agents", "create agents", "/v1/agents", `{"name":"made"}`, 201, shared},
	{"POST /v1/agents/register", "register agents", "/v1/agents/register", `{"agent_id":"registered","endpoint":"http://127.0.0.1:1"}`, 201, shared},
	{"POST /v1/agents/{id}:heartbeat", "send heartbeats", "/v1/agents/{beats}:heartbeat", "", 200, shared},
	{"DELETE /v1/agents/{id}", "delete agents", "/v1/agents/{doomed}", "", 200, shared},
	{"POST /v1/agents/{id}/messages", "send messages", "/v1/agents/helper/messages", `{"content":"x","session_id":"{session}"}`, 200, own},
	{"POST " + skillRoute, "invoke skills", "/v1/agents/helper/skills/look:invoke", `{"session_id":"{session}"}`, 202, own},
	{"POST /v1/agents/{id}:invoke", "act for a run", "/v1/agents/helper:invoke", `{"message":"x"}`, 200, own},
	{"GET /v1/runs", "see runs", "/v1/runs", "", 200, own},
	{"GET /v1/runs/{id}", "see runs", "/v1/runs/{run}", "", 200, noRun},
	{"GET /v1/runs/{id}/events", "see events", "/v1/runs/{run}/events", "", 200, noRun},
	{"GET /v1/runs/{id}/prompts", "see prompts", "/v1/runs/{run}/prompts", "", 200, noRun},
	{"GET /v1/runs/{id}/steps", "see steps", "/v1/runs/{run}/steps", "", 200, noRun},
	{"POST /v1/runs/{id}:signal", "send signals", "/v1/runs/{run}:signal", `{"name":"go"}`, 200, noRun},
	{"POST /v1/runs/{id}:cancel", "cancel", "/v1/runs/{run}:cancel", "", 200, noRun},
	{"POST /v1/runs/{id}:retry", "retry", "/v1/runs/{run}:retry", "", 200, noRun},
	{"GET /v1/usage", "see runs", "/v1/usage", "", 200, own},
	{"GET /v1/sessions", "see sessions", "/v1/sessions", "", 200, own},
	{"POST /v1/sessions", "change sessions", "/v1/sessions", `{"title":"x","session_id":"{session}"}`, 201, own},
	{"GET /v1/sessions/{id}", "see sessions", "/v1/sessions/{session}", "", 200, noSession},
	{"DELETE /v1/sessions/{id}", "change sessions", "/v1/sessions/{session}?cancel=1", "", 204, noSession},
	{"GET /v1/sessions/{id}/messages", "see messages", "/v1/sessions/{session}/messages", "", 200, noSession},
	{"GET /v1/sessions/{id}/events", "see events", "/v1/sessions/{session}/events", "", 200, noSession},
	{"GET /v1/sessions/{id}/state", "see sessions", "/v1/sessions/{session}/state", "", 200, noSession},
	{"GET /v1/schedules", "see runs", "/v1/schedules", "", 200, own},
	{"GET /v1/tasks", "see runs", "/v1/tasks", "", 200, own},
	{"GET /v1/tasks/{id}", "see runs", "/v1/tasks/{run}", "", 200, noRun},
	{"POST /v1/tasks/{id}:cancel", "cancel", "/v1/tasks/{run}:cancel", "", 200, noRun},
	{"GET /v1/memory", "see memory", "/v1/memory", "", 200, own},
	{"POST /v1/memory", "change memory", "/v1/memory", `{"entity":"a","content":"b"}`, 200, own},
	{"POST /v1/memory/forget", "change memory", "/v1/memory/forget", `{"entity":"kept","reason":"b"}`, 200, own},
	{"POST /v1/memory/entity", "see memory", "/v1/memory/entity", `{"entity":"kept"}`, 200, own},
	{"POST /v1/memory/search", "see memory", "/v1/memory/search", `{"query":"a"}`, 200, own},
	{"POST /v1/memory/traverse", "see memory", "/v1/memory/traverse", `{"from":"kept"}`, 200, own},
	{"GET /v1/ws", "open a socket", "/v1/ws", "", 426, shared},
	{"POST /v1/context", "store contexts", "/v1/context", `{"data":1,"session_id":"{session}"}`, 201, own},
	{"GET /v1/context/{id}", "see contexts", "/v1/context/{context}", "", 200, noContext},
	{"PUT /v1/context/{id}", "store contexts", "/v1/context/{context}", `{"data":2}`, 200, noContext},
	{"DELETE /v1/context/{id}", "store contexts", "/v1/context/{context}", "", 204, noContext},
	{"POST /v1/sessions/{id}/messages", "append messages", "/v1/sessions/{session}/messages", `{"role":"user","content":"x","agent_id":"helper"}`, 201, own},
	{"POST /v1/chat/completions", "use models", "/v1/chat/completions", `{"model":"scripted","messages":[{"role":"user","content":"x"}]}`, 200, own},
	{"GET /v1/models", "use models", "/v1/models", "", 200, shared},
	{"GET /v1/models/{id}", "use models", "/v1/models/scripted", "", 200, shared},
	{"POST /v1/openai/chat/completions", "chat", "/v1/openai/chat/completions", `{"model":"helper","messages":[{"role":"user","content":"x"}]}`, 200, own},
	{"GET /v1/openai/models", "chat", "/v1/openai/models", "", 200, shared},
	{"GET /v1/openai/models/{id}", "chat", "/v1/openai/models/helper", "", 200, shared},
	{"GET /v1/tools", "see tools", "/v1/tools", "", 200, shared},
	{"POST /v1/tools", "change tools", "/v1/tools", `{"tool_name":"made","url":"http://127.0.0.1:1/"}`, 201, shared},
	{"GET /v1/tools/{id}", "see tools", "/v1/tools/asked", "", 200, shared},
	{"PUT /v1/tools/{id}", "change tools", "/v1/tools/replaced", `{"tool_name":"replaced","url":"http://127.0.0.1:1/"}`, 201, shared},
	{"DELETE /v1/tools/{id}", "change tools", "/v1/tools/{tool}", "", 200, shared},
	{"POST /v1/tools/{id}:invoke", "act for a run", "/v1/tools/blocked:invoke", `{"args":{}}`, 200, own},
	{"GET /v1/tool_calls", "see approvals", "/v1/tool_calls", "", 200, own},
	{"GET /v1/tool_calls/{id}", "see tool calls", "/v1/tool_calls/{call}", "", 200, noToolCall},
	{"POST /v1/tool_calls/{id}:wait", "see tool calls", "/v1/tool_calls/{call}:wait?timeout_ms=0", "", 200, noToolCall},
	{"POST /v1/tool_calls/{id}:result", "give results", "/v1/tool_calls/{call}:result", `{"ok":true}`, 409, noToolCall}, // no device performs it
	{"GET /v1/approvals", "see approvals", "/v1/approvals", "", 200, own},
	{"GET /v1/approvals/{id}", "see approvals", "/v1/approvals/{approval}", "", 200, noApproval},
	{"POST /v1/approvals/{id}:decide", "decide", "/v1/approvals/{approval}:decide", `{"decision":"reject"}`, 200, noApproval},
	{"GET /v1/keys", "manage keys", "/v1/keys", "", 200, shared},
	{"POST /v1/keys", "manage keys", "/v1/keys", `{"scopes":["admin"]}`, 201, shared},
	{"DELETE /v1/keys/{id}", "manage keys", "/v1/keys/{key}", "", 200, shared},
	{"POST /v1/tokens", "issue tokens", "/v1/tokens", `{"user":"carol","agents":["helper"]}`, 201, shared}, // see TestTokens
	{"POST /v1/backups", "make backups", "/v1/backups", `{"name":"backup"}`, 201, shared},
	{"GET /metrics", "see metrics", "/metrics", "", 200, shared},
	{"GET /", "see pages", "/", "", 200, shared},
	{"GET /docs", "see pages", "/docs", "", 200, shared},
	{"GET /docs/{id}", "see pages", "/docs/api.md", "", 200, shared},
	{"GET /chat", "see pages", "/chat", "", 200, shared},
	{"GET /console", "see pages", "/console", "", 200, shared},
	{"GET /assets/{id}", "see pages", "/assets/chat.js", "", 200, shared},
	{"GET /.well-known/jwks.json", "see pages", "/.well-known/jwks.json", "", 200, shared},
	{"GET /healthz", "see health", "/healthz", "", 200, shared},
	{"GET /readyz", "see health", "/readyz", "", 200, shared},
}
