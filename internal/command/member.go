// SPDX-License-Identifier: Apache-2.0

package command

import "time"

// MemberQuery asks a member of a cluster what it announces to the others, once the version differs from
// After. A node answers it only over a connection between members.
type MemberQuery struct{ After uint64 } // 0: at once

// MemberBeat is the maximum time to the answer of a MemberQuery. If nothing changes until then, the answer
// has the version After. It is short, since a member that answers nothing for a few beats counts as gone.
const MemberBeat = time.Second

type (
	// MemberState is what a member announces.
	MemberState struct {
		Version  uint64     // from 1; each change gets another one
		Logs     []OwnedLog // that it serves
		Registry uint64     // version of the registry of agents that it has applied
	}
	// OwnedLog is a log that a member owns.
	OwnedLog struct {
		Log   uint16
		Epoch uint64 // under which it owns the log
	}
)

func (MemberQuery) query()              {}
func (MemberQuery) returns(MemberState) {}
func (MemberState) result()             {}
