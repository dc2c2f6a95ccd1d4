// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// Plan validates an ask. It returns the complete ask to perform, or an empty ask and
// an immediate result. An ask that is neither a call nor a tool is returned
// unchanged if it is valid.
//
// It is a pure function of the registry and its arguments.
func (r *Registry) Plan(ec ExecutionContext, ask actor.Ask) (actor.Ask, *Result) {
	if ask.Timeout < 0 {
		return refuse(invalid(ask.Kind.String(), "timeout", "want a timeout of at least 0"))
	}
	switch ask.Kind {
	case actor.AskCall:
		return checkCall(ask, ec)
	case actor.AskTool:
		return r.planTool(ask, ec)
	case actor.AskWork:
		if ask.Work == nil {
			return refuse(invalid("work", "work", "function is missing"))
		}
		return checkName(ask)
	case actor.AskWait, actor.AskModel, actor.AskInvoke:
		return checkName(ask)
	case actor.AskSleep:
		return ask, nil
	default:
		return refuse(actor.Refuse(actor.Invalid, "unsupported ask of kind %s", ask.Kind))
	}
}

func (r *Registry) planTool(ask actor.Ask, ec ExecutionContext) (actor.Ask, *Result) {
	t, ok := r.Tool(ask.Name)
	if !ok {
		return refuse(unknownTool(ask.Name))
	}
	input, refusal := inputOf(ask)
	if refusal == nil {
		refusal = t.checkRun(input, ec)
	}
	if refusal == nil && t.Declared != nil {
		input, refusal = canonical(t.Name, input)
	}
	if refusal != nil {
		return refuse(refusal)
	}
	if t.ContextHandler != nil {
		return t.runContextHandler(input, ec, ask.Timeout)
	}
	ask.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: input}}
	ask.Idempotent = t.Idempotent
	if ask.Timeout == 0 {
		ask.Timeout = t.Timeout
	}
	return ask, nil
}

// runContextHandler runs the ContextHandler of the tool. The result is a call, a
// detached call, a sleep or an immediate result. Any other kind of ask would be lost when the turn
// is replayed, so it is refused. Panics are recovered, because the handler runs
// within a cell and MUST NOT terminate it.
func (t *Tool) runContextHandler(input []byte, ec ExecutionContext, timeout actor.Duration) (asked actor.Ask, result *Result) {
	defer func() {
		if p := recover(); p != nil {
			asked, result = refuse(actor.Refuse(actor.Unavailable, "%s: panic: %v", t.Name, p))
		}
	}()
	asked, result = t.ContextHandler(input, ec)
	switch {
	case result != nil:
		return asked, result
	case asked.Kind == actor.AskCall:
		asked, result = checkCall(asked, ec)
	case asked.Kind == actor.AskDetach:
		return checkDetached(asked, ec)
	case asked.Kind != actor.AskSleep:
		return refuse(actor.Refuse(actor.Unavailable, "%s: handler returned an ask of kind %s: want a call or a sleep", t.Name, asked.Kind))
	}
	if result == nil && asked.Timeout == 0 {
		asked.Timeout = timeout
	}
	return asked, result
}

// inputOf returns the JSON input of an ask for a tool; no input means an empty
// object.
func inputOf(ask actor.Ask) ([]byte, *actor.Refusal) {
	switch {
	case len(ask.Parts) == 0:
		return []byte("{}"), nil
	case len(ask.Parts) > 1 || !ask.Parts[0].Blob.IsZero():
		return nil, invalid(ask.Name, "", "want the input as one inline JSON value")
	}
	return slices.Clone(ask.Parts[0].Bytes), nil
}

// checkName validates an ask of which only the name needs validation.
func checkName(ask actor.Ask) (actor.Ask, *Result) {
	if err := actor.CheckName(ask.Name); err != nil {
		return refuse(invalid(ask.Kind.String(), "name", err.Error()))
	}
	return ask, nil
}

func refuse(refusal *actor.Refusal) (actor.Ask, *Result) {
	result := Refused(refusal)
	return actor.Ask{}, &result
}
