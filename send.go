// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"encoding/json"
	"time"

	"github.com/troupe-run/troupe/agents"
)

// Send asks another agent for a skill, and does not wait. It returns the correlation of the call. The outcome is
// the message of a later turn of the same agent and session, also after a restart: see Turn.Correlation. The
// input is encoded as a JSON object; nil is an empty one. The options are Session and Timeout, by default 1 min.
// The agent of the call gets an object with the kind skill_invocation, the skill and the input.
func (t *Turn) Send(agent, skill string, input any, opts ...Option) (correlation string, err error) {
	o, err := collect("Send", opts, optionSession, optionTimeout)
	if err != nil {
		return "", err
	}
	if o.session != "" {
		agent += "/" + o.session
	}
	encoded, err := encodeArgs(input)
	if err != nil {
		return "", invalid("input", "input of %.80s: %v", skill, err)
	}
	args := struct {
		Agent   string          `json:"agent"`
		Skill   string          `json:"skill"`
		Input   json.RawMessage `json:"input"`
		Timeout int64           `json:"timeout,omitempty"`
	}{agent, skill, encoded, max(o.timeout.Milliseconds(), min(int64(o.timeout), 1))}
	return t.correlationOf("agent_call", args)
}

// Remind sends the agent itself a message in the same session after a time, 1 ms to 366 days, once and also after a
// restart. It returns the correlation of the message, whose turn has the text as Turn.Outcome.
func (t *Turn) Remind(text string, after time.Duration) (correlation string, err error) {
	return t.correlationOf("remind", map[string]any{"text": text, "after": max(after.Milliseconds(), min(int64(after), 1))})
}

// correlationOf uses a tool whose outcome comes later, and returns the correlation of that.
func (t *Turn) correlationOf(tool string, args any) (string, error) {
	result, err := t.Tool(tool, args)
	if err != nil {
		return "", err
	}
	var pending struct {
		Correlation string `json:"correlationId"`
	}
	err = json.Unmarshal(result, &pending)
	return pending.Correlation, err
}

// Pending returns the correlations of the calls of this agent and session whose outcomes are not there yet, oldest
// first. The tool agent_poll has more of each.
func (t *Turn) Pending() (correlations []string, err error) {
	result, err := t.Tool("agent_poll", nil)
	if err != nil {
		return nil, err
	}
	var list struct {
		Tasks []struct {
			Task   string `json:"taskId"`
			Status string `json:"status"`
		} `json:"tasks"`
	}
	if err := json.Unmarshal(result, &list); err != nil {
		return nil, err
	}
	for _, p := range list.Tasks {
		if p.Status != "timeout" && p.Status != "cancelled" {
			correlations = append(correlations, p.Task)
		}
	}
	return correlations, nil
}

// newTurn returns a turn of an agent. Only the server sets the provenance of a message, so that of a user cannot pass
// for an outcome.
func newTurn(turn *agents.Turn, agent *Agent, tools *toolbox) *Turn {
	t := &Turn{turn: turn, agent: agent, tools: tools}
	call := turn.Request()
	if of, ok := call.Extensions.Provenance(); ok {
		t.Correlation, t.Outcome = of.Correlation.String(), newOutcome(turn.Message())
	}
	return t
}

// newOutcome returns the outcome of a call from its message.
func newOutcome(message string) Answer {
	var m struct {
		Kind    string          `json:"kind"`
		Text    string          `json:"text"`
		Status  string          `json:"status"`
		Output  json.RawMessage `json:"output"`
		Caveats []string        `json:"caveats"`
		Message string          `json:"message"`
		Error   struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	switch err := json.Unmarshal([]byte(message), &m); {
	case err != nil:
		return Answer{err: err}
	case m.Kind == "reminder":
		return Answer{text: m.Text, bytes: []byte(m.Text)}
	case m.Status == "timeout":
		return Answer{err: Refuse(CodeTimeout, "%s", m.Message)}
	case m.Status == "error":
		return Answer{err: Refuse(Code(m.Error.Code), "%s", m.Error.Message)}
	}
	text := string(m.Output)
	var unquoted string
	if json.Unmarshal(m.Output, &unquoted) == nil {
		text = unquoted
	}
	return Answer{text: text, bytes: m.Output, warnings: m.Caveats}
}
