// SPDX-License-Identifier: Apache-2.0

package command

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// ModelsQuery asks for the names of the models.
type ModelsQuery struct{}

// The actions of a request to a model. Its answer is read by one ReadChat after the other, until the
// part that is the last one.
type (
	// StartChat checks a request to a model, which begins with its first ReadChat.
	StartChat struct {
		Body  []byte       // see upstream.ReadChat
		Trace string       // see actor.Call.Trace
		Share string       // key of the principal whose share of the requests it takes
		Agent string       // external agent that sends it for a run; empty if there is none
		Run   actor.CallID // zero if there is none
		Owner actor.ID     // actor of the run
	}
	// ReadChat waits for the next part of an answer. It returns an empty part after ChatBeat. A request
	// whose parts are not read is cancelled.
	ReadChat struct{ Chat actor.CallID }
	// CancelChat cancels a request. Its result is an empty part.
	CancelChat struct{ Chat actor.CallID }
)

// ChatBeat is the maximum time to the answer of a ReadChat.
const ChatBeat = 5 * time.Second

type (
	// Models lists the models of a node in the order of their names.
	Models struct{ All []string }
	// Chat is a valid request to a model.
	Chat struct {
		ID    actor.CallID
		Model string
		// The most tokens that the prompt and the answer can have; 0 is unknown.
		PromptTokens, AnswerTokens int64
	}
	// ChatPart is a part of an answer. The fields behind Last are set if it is the last one.
	ChatPart struct {
		Bytes      []byte
		Last       bool
		Streams    bool           // the answer is a stream of events
		Completion []byte         // of package upstream; without text
		Refusal    *actor.Refusal // for the record of the run
		Detail     string         // of the refusal, for the client; empty: the same
		Status     uint64         // of the last response of the model; 0 if there was none
		Code       string         // of the error in it; may be empty
		Error      []byte         // JSON object with the error as the model's server sent it; may be empty
		Tokens     uint64         // of the whole request; 0 if unknown
	}
)

func (ModelsQuery) query() {}
func (StartChat) action()  {}
func (ReadChat) action()   {}
func (CancelChat) action() {}

func (ModelsQuery) returns(Models)  {}
func (StartChat) returns(Chat)      {}
func (ReadChat) returns(ChatPart)   {}
func (CancelChat) returns(ChatPart) {}

func (Models) result()   {}
func (Chat) result()     {}
func (ChatPart) result() {}
