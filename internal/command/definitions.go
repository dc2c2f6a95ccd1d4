// SPDX-License-Identifier: Apache-2.0

package command

import "github.com/troupe-run/troupe/actor"

type (
	// DefinitionsQuery asks a member of a cluster with which of some definitions open runs began. A node answers it only
	// over a connection between members.
	DefinitionsQuery struct{ Of []actor.Hash }
	// Definitions are those.
	Definitions struct{ Open []actor.Hash }
)

func (DefinitionsQuery) query()              {}
func (DefinitionsQuery) returns(Definitions) {}
func (Definitions) result()                  {}
