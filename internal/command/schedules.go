// SPDX-License-Identifier: Apache-2.0

package command

import "github.com/troupe-run/troupe/actor"

// SchedulesMax is the maximum number of schedules of a list.
const SchedulesMax = 1000

type (
	// SchedulesQuery asks for the schedules that act for the principal's namespace, by agent and name.
	SchedulesQuery struct {
		EveryUser bool // of all namespaces, which needs the scope operator
	}
	// Schedules lists them, at most SchedulesMax.
	Schedules struct {
		All  []Schedule
		More bool // there are others
	}
	// Schedule sends an agent a message at its times.
	Schedule struct {
		Agent, Name, Cron, Zone, Text, User string

		Session string     // the present one
		Paused  string     // why it sends nothing; "": it does
		Next    actor.Time // 0: being computed, or it is paused
		Last    Fired      // since the start of the node
	}
	// Fired is a message of a schedule.
	Fired struct {
		At      actor.Time   // for which it was sent; 0: none was
		Run     actor.CallID // zero: it was not taken
		Failure string       // why it was not taken, or why its run has failed; "": neither
	}
)

func (SchedulesQuery) query()            {}
func (SchedulesQuery) returns(Schedules) {}
func (Schedules) result()                {}
