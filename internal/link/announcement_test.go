// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"

	"github.com/troupe-run/troupe/internal/command"
)

// Announcement is what a member of a test announces to the others: the node that performs their commands answers
// a command.MemberQuery with it.
type Announcement struct{ state awaited[command.MemberState] }

// Set replaces the logs that this member serves, and the version of the registry that it has applied. The
// logs MUST NOT be changed afterwards.
func (a *Announcement) Set(logs []command.OwnedLog, registry uint64) {
	a.state.set(command.MemberState{Logs: logs, Registry: registry})
}

// Answer answers a query.
func (a *Announcement) Answer(ctx context.Context, q command.MemberQuery) (command.MemberState, error) {
	version, state, err := a.state.await(ctx, q.After, command.MemberBeat)
	state.Version = version
	return state, err
}
