// SPDX-License-Identifier: Apache-2.0

// Package troupe runs AI agents written in Go in the process of a program. An agent is a
// virtual actor: it exists by name, is activated by its first message, processes one message
// at a time and survives a kill -9.
//
// A [Server] is one node in a data folder. [Open] opens it, and [Server.Call] sends a message:
//
//	server, err := troupe.Open(troupe.Config{Data: "data", Agents: []troupe.Agent{
//		{Name: "helper", Func: func(t *troupe.Turn) (string, error) { return "echo: " + t.Message(), nil }},
//	}})
//	if err != nil {
//		return err
//	}
//	defer server.Close()
//	reply, err := server.Call(ctx, "helper", "hello")
//
// The server can serve the HTTP API too ([Server.Serve], [Server.Handler]), with the same agents
// and sessions. A folder is used by one process at a time, which may also be the command
// troupe serve; both show the same runs.
//
// # Agents
//
// An [Agent] is a function, or a value with a method Turn. It processes one message and returns
// the answer. It calls other agents, waits for signals and does slow work through its [Turn].
// These asks are persisted. After a crash the function runs again from its start, and each ask
// returns the answer that it had. So between two asks an agent MUST depend only on its message,
// state and answers: no clock, no randomness, no goroutine, no variable that another turn
// writes. Such code belongs in [Turn.Do]. If a repeated function makes other asks, its run is parked
// for inspection.
//
// # Tools and models
//
// [NewTool] makes a [Tool] of a function; the schema of its arguments comes from their type. Tools are listed
// in Config.Tools. [Turn.Tool] calls one. [Turn.Model] prompts a model, which is offered the tools in
// Agent.Tools, and runs those that it calls. Declared agents list them by name. A call may need the approval
// of a person, by the option [Policy] or by Config.Policy: [Server.Approvals] lists such calls, and
// [Server.Decide] decides. [Server.Begin] and [Server.Stream] show a run while it works, with the pieces of
// answers. [Emit] adds pieces of work in Do. [Server.Inspect] shows each step of a run, and what models were sent.
//
// Package troupetest tests agents: one turn, ask by ask, and a team under faults.
//
// # Sessions and users
//
// A session is a conversation, with an actor of its own for each agent in it. Messages of a
// session are processed one by one, those of different sessions concurrently. A call that names
// no [Session] begins one, and [Reply] names it. [Turn.Transcript] returns the earlier messages,
// and [State] a value that the agent keeps between the turns of the session. [Server.Sessions]
// lists, reads and deletes sessions.
//
// Each [User] has a namespace. Sessions and runs of another user are not found. A program that
// names no user acts as the clients of the HTTP API that need no key.
//
// # Errors
//
// A foreseen failure is a [*Refusal], found by [errors.As]: no such agent, no capacity, a deadline,
// an error of the agent. A run that waits for a person is a [*Waiting]. If a context ends, its
// error is returned and the run continues; [Server.Await] waits for it again. [ErrClosed] means that
// the server has stopped. Open runs resume when its folder is opened again.
//
// A failed write to the data folder ends the process with exit code 1, because the server could acknowledge nothing
// from then on. A panic of an agent, of work or of a tool fails its run alone and is logged with its stack; one in
// a goroutine that they start ends the process, as in any program. If less than 256 MiB are free, new calls are refused with [CodeUnavailable].
//
// # Limits
//
// Sizes are in bytes. All limits have an error, and none loses an acknowledged message.
//
//	message, answer, payload of a signal    1 MiB (message_bytes_max)
//	state of an agent in a session          1 MiB
//	answers to the asks of a turn           4 MiB together
//	asks of a turn                          50 steps of 64 asks; a prompt or its tool calls are a step
//	result of a tool                        1 MiB; the agent gets the first 64 KiB (MaxResult)
//	time of a tool call, without Timeout    60 s
//	time of a call, without Timeout         10 min (run_timeout_ms)
//	time of a call between agents           30 s (agent_call_timeout_ms_default)
//	depth of calls                          5 (agent_call_depth_max)
//	calls below one call                    100 (calls_per_tree_max)
//	messages that wait in a session         128 (max_pending_per_actor)
//	running turns of an agent and a user    256 (max_active_per_agent)
//	calls that wait at a server             16,384
//
// [Config.Limits] changes the limits with a name.
package troupe
