// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// OpDescribe is the operation that sets the title and the metadata of a session. Its actor
// is that of actor.SessionAgent with the session as key.
const OpDescribe = "session.describe"

// State items of an actor of actor.SessionAgent. An actor of actor.ContextAgent has SessionCreated
// only.
const (
	SessionTitle    = "title"
	SessionMetadata = "metadata" // JSON object
	SessionCreated  = "created"  // time of the first change, as a decimal number
)

// appendCreated appends the time of the first change of an actor.
func appendCreated(updates []actor.StateItem, state *State) []actor.StateItem {
	if _, found := stateValue(state.Request.ActorState, SessionCreated); found {
		return updates
	}
	return append(updates, actor.StateItem{Name: SessionCreated, Value: strconv.AppendInt(nil, int64(state.Request.At), 10)})
}

// ReadCreated returns the time of the first change of an actor; 0 if there is none.
func ReadCreated(items []actor.StateItem) actor.Time {
	value, _ := stateValue(items, SessionCreated)
	at, _ := strconv.ParseInt(string(value), 10, 64)
	return actor.Time(at)
}

// Session returns the system agent whose actors describe sessions.
func Session() actor.Definition {
	def := Define(actor.SessionAgent, "1", "Keeps the title and the metadata of a session.", Pure(Config{Name: actor.SessionAgent, Version: "1"}, sessionStep))
	def.System = true
	return def
}

func sessionStep(_ Config, state State) (Action, error) {
	var in struct { // an absent field keeps its value; an empty one deletes it
		Title    *string        `json:"title"`
		Metadata jsontext.Value `json:"metadata"`
	}
	if op := state.Request.Call.Operation; op != OpDescribe {
		return EndRefused(actor.Refuse(actor.Invalid, "want the operation %s, got %.40q", OpDescribe, op)), nil
	}
	if err := json.Unmarshal([]byte(contentOf(state.Request.Call.Parts)), &in, json.RejectUnknownMembers(true)); err != nil {
		return EndRefused(actor.Refuse(actor.Invalid, "description of a session: %v", err)), nil
	}
	updates := appendCreated(nil, &state)
	if in.Title != nil {
		updates = append(updates, actor.StateItem{Name: SessionTitle, Value: []byte(*in.Title)})
	}
	if in.Metadata != nil {
		value := []byte(in.Metadata)
		if in.Metadata.Kind() == 'n' || string(value) == "{}" {
			value = nil
		}
		updates = append(updates, actor.StateItem{Name: SessionMetadata, Value: value})
	}
	action := Complete("")
	action.StateUpdates = updates
	return action, nil
}
