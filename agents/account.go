// SPDX-License-Identifier: Apache-2.0

package agents

import "github.com/troupe-run/troupe/actor"

// accountItem is the item of an account's state.
const accountItem = "drawn"

// Account returns the system agent whose actors are the accounts of users. The argument is what a user may spend on a day.
func Account(day actor.Purse) actor.Definition {
	def := Define(actor.AccountAgent, "1", "Keeps what the runs of a user have drawn from the budget of a day.",
		Pure(Config{Name: actor.AccountAgent, Version: "1"}, func(_ Config, state State) (Action, error) { return accountStep(&state, &day), nil }))
	def.System = true
	return def
}

func accountStep(state *State, day *actor.Purse) Action {
	call := &state.Request.Call
	if call.Purse == nil || call.Purse.Day == 0 {
		return EndRefused(actor.Refuse(actor.Invalid, "want an amount of a day"))
	}
	var account actor.Account
	for _, item := range state.Request.ActorState {
		if item.Name == accountItem {
			drawn, err := actor.DecodePurse(item.Value)
			if err != nil {
				return EndRefused(actor.Refuse(actor.Unavailable, "the account cannot be read: %v", err))
			}
			account.Drawn = *drawn
		}
	}
	var answer *actor.Purse
	switch call.Operation {
	case actor.OpDraw:
		answer = account.Draw(call.Purse, day)
	case actor.OpReturn:
		account.Return(call.Purse)
		answer = &account.Drawn
	default:
		return EndRefused(actor.Refuse(actor.Invalid, "operation %.80q: want draw or return", call.Operation))
	}
	action := Action{Action: actor.Complete([]actor.Part{{Media: actor.MediaPurse, Bytes: actor.EncodePurse(answer)}})}
	action.StateUpdates = []actor.StateItem{{Name: accountItem, Value: actor.EncodePurse(&account.Drawn)}}
	return action
}
