// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"strconv"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// appendPlace adds to the JSON of a queued run its place in the mailbox of its actor, from 1
// on: behind the earlier runs of its priority and all of a higher one. It adds nothing if the
// actor has more open runs than a page of a list.
func appendPlace(s *Server, by caller, body []byte, run *runs.Record) []byte {
	found, err := lookup(s, by, command.RunsQuery{Limit: RunsMax,
		Filter: runs.Filter{Agent: run.Actor.Agent, Session: run.Actor.Key, Status: runs.Running, Calls: true}})
	page := &found.Page
	if err != nil || !page.Next.IsZero() {
		return body
	}
	place, queued, own := 1, false, laneOf(run.Priority)
	for i := range page.All {
		r := &page.All[i]
		switch lane := laneOf(r.Priority); {
		case r.Run == run.Run:
			queued = r.Started == 0
		case r.Started == 0 && (lane < own || lane == own && r.Run.Compare(run.Run) < 0):
			place++
		}
	}
	if !queued { // its turn has begun in the meantime
		return body
	}
	return append(strconv.AppendInt(append(body[:len(body)-1], `,"queue_place":`...), int64(place), 10), '}')
}

// laneOf returns the lane of a priority as runs show it.
func laneOf(priority string) actor.Lane {
	lane, _ := actor.ParseLane(cmp.Or(priority, actor.Normal.Priority()))
	return lane
}
