// SPDX-License-Identifier: Apache-2.0

package command

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// The queries about models. The answer to a request is read by one ChatPartQuery after the
// other, until the part that is the last one.
type (
	// ModelsQuery asks for the names of the models.
	ModelsQuery struct{}
	// ChatQuery checks a request to a model, which begins with its first ChatPartQuery.
	ChatQuery struct {
		Body  []byte       // see upstream.ReadChat
		Trace string       // see actor.Call.Trace
		Share string       // key of the principal whose share of the requests it takes
		Agent string       // external agent that sends it for a run; empty if there is none
		Run   actor.CallID // zero if there is none
		Owner actor.ID     // actor of the run
	}
	// ChatPartQuery asks for the next part of an answer, or cancels the request. It returns
	// an empty part after ChatBeat. A request whose parts are not asked for is cancelled.
	ChatPartQuery struct {
		Chat   actor.CallID
		Cancel bool
	}
)

// ChatBeat is the maximum time to the answer of a ChatPartQuery.
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

func (ModelsQuery) query()   {}
func (ChatQuery) query()     {}
func (ChatPartQuery) query() {}

func (ModelsQuery) returns(Models)     {}
func (ChatQuery) returns(Chat)         {}
func (ChatPartQuery) returns(ChatPart) {}

func (Models) result()   {}
func (Chat) result()     {}
func (ChatPart) result() {}
