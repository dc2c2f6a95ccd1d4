// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/sha256"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// The OpenAI API of agents: each agent is a model. Clients of that API hold the conversation and
// send all of it with each request. Its last message is the message to the agent.

// ChatRequest is a request in the form of OpenAI's chat completions to an agent.
type ChatRequest struct {
	Agent       string
	Earlier     []ChatText // the messages before Text, the oldest first; none is empty
	Text        string     // the message to the agent; not empty
	Stream      bool
	StreamUsage bool // the stream ends with the usage
}

// ChatText is a message of a conversation. Its Role is actor.RoleUser or actor.RoleAssistant.
type ChatText struct {
	Role actor.Role
	Text string
}

// ChatEarlierMax is the maximum number of messages before the last one that an agent is given.
const ChatEarlierMax = 1000

// ChatTextMax is the maximum length of a message in bytes.
const ChatTextMax = 1 << 20

// DecodeChat decodes a request. It ignores members that tune a model, because agents set those
// themselves, and refuses those that would change the form of the answer.
func DecodeChat(body []byte) (out ChatRequest, r *actor.Refusal) {
	var in struct {
		Model    *string `json:"model"`
		Messages []struct {
			Role    string         `json:"role"`
			Content jsontext.Value `json:"content"`
		} `json:"messages"`
		Stream  *bool `json:"stream"`
		Options struct {
			Usage *bool `json:"include_usage"`
		} `json:"stream_options"`
		N      *int64         `json:"n"`
		Tools  jsontext.Value `json:"tools"`
		Format struct {
			Type string `json:"type"`
		} `json:"response_format"`
	}
	if r := decode(body, &in); r != nil {
		return out, r
	}
	switch {
	case in.Model == nil || *in.Model == "":
		return out, invalid("model", "is missing: want the name of an agent; GET /v1/openai/models lists them")
	case len(in.Messages) == 0:
		return out, invalid("messages", `is missing or empty: want [{"role": "user", "content": "text for the agent"}]`)
	case in.N != nil && *in.N != 1:
		return out, invalid("n", "want 1: an agent has one answer")
	case len(in.Tools) > 0 && in.Tools.Kind() != 'n' && string(in.Tools) != "[]":
		return out, invalid("tools", "an agent uses the tools of this server: omit tools")
	case in.Format.Type != "" && in.Format.Type != "text":
		return out, invalid("response_format", `want {"type": "text"}: the agent sets the form of its answer`)
	}
	for i, m := range in.Messages {
		text, r := contentText("messages", m.Content)
		if r != nil {
			return out, invalid("messages", "message %d: %s", i, strings.TrimPrefix(r.Detail, "messages: "))
		}
		if text != nil && len(*text) > ChatTextMax {
			return out, invalid("messages", "message %d has %d bytes: want at most %d", i, len(*text), ChatTextMax)
		}
		role := actor.RoleUser // no client writes the prompt of an agent, or the results of its tools
		switch m.Role {
		case "assistant":
			role = actor.RoleAssistant
		case "user", "system", "developer", "tool", "function":
		default:
			return out, invalid("messages", `message %d has the role %.40q: want "user" or "assistant"`, i, m.Role)
		}
		switch last := i == len(in.Messages)-1; {
		case last && m.Role != "user":
			return out, invalid("messages", `the last message has the role %s: want "user", whose message the agent answers`, m.Role)
		case last && (text == nil || *text == ""):
			return out, invalid("messages", "the last message is empty: want text for the agent")
		case last:
			out.Text = *text
		case text != nil && *text != "":
			out.Earlier = append(out.Earlier, ChatText{role, *text})
		}
	}
	out.Agent, out.Stream = *in.Model, in.Stream != nil && *in.Stream
	out.StreamUsage = in.Options.Usage != nil && *in.Options.Usage
	return out, nil
}

// ChatKey identifies a conversation of a user with an agent by its messages.
type ChatKey [sha256.Size]byte

// NewChatKey returns the key of a conversation that has these messages.
func NewChatKey(owner actor.ID, messages []ChatText) ChatKey {
	k := ChatKey(sha256.Sum256([]byte(owner.Tenant + "/" + owner.Agent))) // names have no slash
	for _, m := range messages {
		k = k.With(m)
	}
	return k
}

// With returns the key of the conversation that a message continues. It ignores blanks around
// the text, which clients remove from answers.
func (k ChatKey) With(m ChatText) ChatKey {
	return sha256.Sum256(append(append(k[:], byte(m.Role)), strings.TrimSpace(m.Text)...))
}

// ChatAnswer follows the events of a run and returns the text for its client. Text that was sent
// cannot be taken back. A run discards text if an attempt failed, or if it calls a tool first. Such text
// stays, and the text that replaces it follows after an empty line. A replacement that begins with
// the same text continues it.
type ChatAnswer struct {
	text  runs.AnswerText
	shown []byte // of the present answer, what the client has
	same  int    // length of the prefix of shown that is valid
}

// Apply adds the next event and returns the text to send.
func (a *ChatAnswer) Apply(e *runs.Event) string {
	extends := a.text.Apply(e)
	switch {
	case e.Type == runs.RunDone:
		return a.finish(e.Text)
	case !extends:
		a.same = 0
		text, _ := a.text.Streamed()
		return a.show(text)
	case e.Type == runs.AgentStreamDelta:
		return a.show(e.Text)
	}
	return ""
}

// show appends text to the valid prefix.
func (a *ChatAnswer) show(text string) string {
	rest := string(a.shown[a.same:])
	switch {
	case strings.HasPrefix(rest, text): // the client has it already
		a.same += len(text)
		return ""
	case strings.HasPrefix(text, rest):
		a.shown, a.same = append(a.shown, text[len(rest):]...), a.same+len(text)
		return text[len(rest):]
	}
	a.shown = append(a.shown[:a.same], text...)
	a.same = len(a.shown)
	return "\n\n" + string(a.shown)
}

// finish replaces the text by that of the answer.
func (a *ChatAnswer) finish(text string) string {
	shorter := len(text) < len(a.shown) && strings.HasPrefix(string(a.shown), text)
	if a.same = 0; shorter {
		a.shown = nil
		return "\n\n" + text
	}
	return a.show(text)
}

// ChatHead are the members that a completion and its chunks share.
type ChatHead struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"` // Unix time in s
	Model   string `json:"model"`
}

// NewChatHead returns the head of the completion that a run makes.
func NewChatHead(run actor.CallID, created int64, agent string) ChatHead {
	return ChatHead{"chatcmpl-" + run.String(), "chat.completion", created, agent}
}

type chatUsage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
}

func newChatUsage(u actor.Usage) *chatUsage {
	return &chatUsage{u.Input, u.Output, u.Total}
}

// ChatFinish returns the reason for which an answer has ended, as the API names it.
func ChatFinish(s actor.Status) string {
	if s == actor.Partial {
		return "length"
	}
	return "stop"
}

// Completion returns the answer to a request without stream.
func (h ChatHead) Completion(text, finish string, usage actor.Usage) []byte {
	type message struct {
		Role    string  `json:"role"`
		Content string  `json:"content"`
		Refusal *string `json:"refusal"`
	}
	type choice struct {
		Index   int     `json:"index"`
		Message message `json:"message"`
		Logs    *string `json:"logprobs"`
		Finish  string  `json:"finish_reason"`
	}
	return invariant.Must(json.Marshal(struct {
		ChatHead
		Choices []choice   `json:"choices"`
		Usage   *chatUsage `json:"usage"`
	}{h, []choice{{Message: message{Role: "assistant", Content: text}, Finish: finish}}, newChatUsage(usage)}))
}

// ChatChunk is a part of a streamed answer.
type ChatChunk struct {
	Role   string // of the first chunk
	Text   string
	Finish string // of the last chunk
}

// Chunk returns the frame of a part of an answer. If the client has asked for the usage, each chunk
// has the member usage, which is null in all but UsageChunk.
func (h ChatHead) Chunk(c ChatChunk, withUsage bool) []byte {
	type delta struct {
		Role    string `json:"role,omitzero"`
		Content string `json:"content,omitzero"`
	}
	type choice struct {
		Index  int     `json:"index"`
		Delta  delta   `json:"delta"`
		Finish *string `json:"finish_reason"`
	}
	one := choice{Delta: delta{c.Role, c.Text}}
	if c.Finish != "" {
		one.Finish = &c.Finish
	}
	h.Object = "chat.completion.chunk"
	out := struct {
		ChatHead
		Choices []choice       `json:"choices"`
		Usage   jsontext.Value `json:"usage,omitzero"`
	}{ChatHead: h, Choices: []choice{one}}
	if withUsage {
		out.Usage = jsontext.Value("null")
	}
	return runs.Frame{Data: string(invariant.Must(json.Marshal(out)))}.Append(nil)
}

// UsageChunk returns the frame of the usage, which follows the last chunk.
func (h ChatHead) UsageChunk(usage actor.Usage) []byte {
	h.Object = "chat.completion.chunk"
	return runs.Frame{Data: string(invariant.Must(json.Marshal(struct {
		ChatHead
		Choices []struct{} `json:"choices"`
		Usage   *chatUsage `json:"usage"`
	}{h, []struct{}{}, newChatUsage(usage)})))}.Append(nil)
}

// ChatEnd is the frame that ends each stream of the OpenAI API without an error.
var ChatEnd = runs.Frame{Data: "[DONE]"}.Append(nil)
