// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"strconv"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// The items of an account's state.
const (
	accountItem  = "drawn"
	messagesItem = "messages" // only if their number is limited
)

// Account returns the system agent whose actors are the accounts of users. The arguments are what a user may spend on a day,
// and how many messages the user may send; 0 is any number.
func Account(day actor.Purse, messages int64) actor.Definition {
	def := Define(actor.AccountAgent, "1", "Keeps what the runs of a user have drawn from the budget of a day.",
		Pure(Config{Name: actor.AccountAgent, Version: "1"}, func(_ Config, state State) (Action, error) {
			return accountStep(&state, &day, messages), nil
		}))
	def.System = true
	return def
}

func accountStep(state *State, day *actor.Purse, messages int64) Action {
	call := &state.Request.Call
	if call.Purse == nil || call.Purse.Day == 0 {
		return EndRefused(actor.Refuse(actor.Invalid, "want an amount of a day"))
	}
	account, counted, err := readAccount(state.Request.ActorState)
	if err != nil {
		return EndRefused(actor.Refuse(actor.Unavailable, "the account cannot be read: %v", err))
	}
	var answer *actor.Purse
	switch call.Operation {
	case actor.OpDraw:
		granted, ok := account.Draw(call.Purse, day, messages)
		if !ok {
			today := account.Drawn.Day
			refusal := actor.Refuse(actor.Budget, "the user has sent %d messages on %s (UTC), which is the limit (user_messages_per_day in [budget])", account.Messages, runs.Day(today-1))
			refusal.RetryAfter = max(actor.EndOfDay(today).Sub(state.Request.At), time.Second)
			return EndRefused(refusal)
		}
		answer = granted
	case actor.OpReturn:
		account.Return(call.Purse)
		answer = &account.Drawn
	default:
		return EndRefused(actor.Refuse(actor.Invalid, "operation %.80q: want draw or return", call.Operation))
	}
	action := Action{Action: actor.Complete([]actor.Part{{Media: actor.MediaPurse, Bytes: actor.EncodePurse(answer)}})}
	action.StateUpdates = []actor.StateItem{{Name: accountItem, Value: actor.EncodePurse(&account.Drawn)}}
	switch {
	case messages > 0:
		action.StateUpdates = append(action.StateUpdates, actor.StateItem{Name: messagesItem, Value: strconv.AppendInt(nil, account.Messages, 10)})
	case counted: // on some day; nothing counts those of later ones
		action.StateUpdates = append(action.StateUpdates, actor.StateItem{Name: messagesItem})
	}
	return action
}

// readAccount decodes the state of an account, and reports whether it has the number of messages.
func readAccount(items []actor.StateItem) (a actor.Account, counted bool, err error) {
	for _, item := range items {
		switch item.Name {
		case accountItem:
			drawn, err := actor.DecodePurse(item.Value)
			if err != nil {
				return a, false, err
			}
			a.Drawn = *drawn
		case messagesItem:
			if a.Messages, err = strconv.ParseInt(string(item.Value), 10, 64); err != nil {
				return a, false, err
			}
			counted = true
		}
	}
	return a, counted, nil
}
