// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"testing"

	"github.com/troupe-run/troupe/internal/command"
)

// Once the client of a request has gone, no read starts for it, and the read of a long
// run ends before its next page of events.
func TestReadsEndWithTheirClient(t *testing.T) {
	n := openTestNode(t)
	ctx, leave := context.WithCancel(t.Context())
	query := command.EventsQuery{Run: n.NewCallID(), Limit: 1}
	if _, err := read(ctx, n.Commands, &testBy, func(v View) (command.Events, error) {
		if _, err := v.Events(query); err != nil {
			t.Error(err)
		}
		leave()
		return v.Events(query)
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("next page of events: got error %v, want %v", err, context.Canceled)
	}
	if _, err := read(ctx, n.Commands, &testBy, func(View) (command.Events, error) {
		t.Error("a read has started")
		return command.Events{}, nil
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("next read: got error %v, want %v", err, context.Canceled)
	}
}
