// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"errors"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// A refusal has the code that the HTTP API shows for it.
func TestCodesOfRefusals(t *testing.T) {
	for want, r := range map[Code]actor.Refusal{
		CodeAgentNotFound:   {Reason: actor.NotFound},
		CodeSessionNotFound: {Reason: actor.NotFound, What: actor.WhatSession},
		CodeSessionDeleted:  {Reason: actor.NotFound, What: actor.WhatDeleted},
		CodeToolNotFound:    {Reason: actor.NotFound, What: actor.WhatTool},
		"context_not_found": {Reason: actor.NotFound, What: actor.WhatContext},
		CodeRejected:        {Reason: actor.Rejected},
		CodeSessionBusy:     {Reason: actor.Rejected, Field: actor.BusyField},
		"tool_call_ended":   {Reason: actor.Rejected, Field: "tool_call_id"},
		"context_version":   {Reason: actor.Rejected, Field: "version"},
		CodeInvalid:         {Reason: actor.Invalid, Field: "session_id"},
	} {
		if got := newRefusal(&r).Code; got != want {
			t.Errorf("%+v: got %s, want %s", r, got, want)
		}
	}
	var dropped *Refusal
	if err := errorOf(command.EventsDropped{First: 7}); !errors.As(err, &dropped) || dropped.Code != CodeEventsDropped {
		t.Errorf("got %v, want the code %s", err, CodeEventsDropped)
	}
}
