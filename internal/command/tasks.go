// SPDX-License-Identifier: Apache-2.0

package command

import "github.com/troupe-run/troupe/actor"

// TasksMax is the maximum number of detached calls of a list.
const TasksMax = 1000

type (
	// TasksQuery asks for detached calls that are pending or whose answers are late: those of the agents of a
	// session, or, if Session is empty, of all sessions in the namespace of the principal. If Call is not zero, it
	// asks for this call only. It is refused while the node is loading its open runs.
	TasksQuery struct {
		Session string
		Call    actor.CallID
	}
	// Tasks lists them in the order in which they were made.
	Tasks struct {
		All  []Task
		More bool // there are others
	}
	// Task is a detached call.
	Task struct {
		Call      actor.CallID // the correlation, and the run of the callee
		Asker     actor.ID
		Callee    actor.ID
		Skill     string
		Client    string         // correlation that the asker has given as its own
		At        actor.Time     // when it was made
		Left      actor.Duration // for which the asker waits, from then on
		Late      bool           // the asker no longer waits, or never did
		Silent    bool           // it never did: the outcome is not delivered
		Cancelled bool           // it is a reminder that a client has cancelled
		Waits     string         // what the callee waits for, such as approval; "": nothing
		Until     string         // ID of the approval, or name of the signal, for which it waits
	}
)

// IsReminder reports whether the task is a message of an agent to itself.
func (t *Task) IsReminder() bool { return t.Callee == t.Asker }

func (TasksQuery) query()        {}
func (TasksQuery) returns(Tasks) {}
func (Tasks) result()            {}
