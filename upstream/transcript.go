// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
)

// roles are the roles of a transcript in a prompt. A result of a tool belongs to a tool
// call in its prompt, which a transcript does not have, so it is shown as a user's message.
var roles = [...]Role{actor.RoleUser: User, actor.RoleAssistant: Assistant, actor.RoleSystem: System, actor.RoleTool: User}

// TranscriptMessages returns the messages of a transcript as those of a prompt. The
// callback text returns the text of the parts of a message.
func TranscriptMessages(transcript []actor.ChatMessage, text func([]actor.Part) string) []Message {
	if len(transcript) == 0 {
		return nil
	}
	all := make([]Message, 0, len(transcript)+2)
	for i := range transcript {
		all = append(all, Message{Role: roles[transcript[i].Role], Text: text(transcript[i].Parts)})
	}
	return all
}

type transcriptJSON struct {
	Role Role   `json:"r"`
	Text string `json:"t"`
}

// EncodeTranscript returns the encoding that DecodeTranscript reads, of the roles and texts
// of messages.
func EncodeTranscript(messages []Message) []byte {
	if len(messages) == 0 {
		return nil
	}
	all := make([]transcriptJSON, len(messages))
	for i, m := range messages {
		all[i] = transcriptJSON{m.Role, m.Text}
	}
	return marshal(all)
}

// DecodeTranscript reads what EncodeTranscript wrote.
func DecodeTranscript(b []byte) ([]Message, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var all []transcriptJSON
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	messages := make([]Message, len(all))
	for i, m := range all {
		messages[i] = Message{Role: m.Role, Text: m.Text}
	}
	return messages, nil
}
