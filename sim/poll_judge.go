// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// pollJudge checks by the stored events of all runs what agents have read of their detached calls with agent_poll.
//
//  1. All polls of a call return the same outcome, and this outcome was delivered.
//  2. After a poll of a turn has returned an outcome, each later poll of this call in that turn returns it again.
//  3. A poll in the turn of an outcome returns an outcome.
//
// A time-out does not count as an outcome, because polls return a later answer in place of it.
type pollJudge struct {
	*Simulation
	polled    map[string]string // by task
	delivered map[string]string
}

// outcomeText is the part of an outcome, or of the state of a task, that the judge reads.
type outcomeText struct {
	Kind, Task, Status string
}

func readOutcome(text string) (o outcomeText) {
	var m struct {
		Kind   string `json:"kind"`
		Task   string `json:"taskId"`
		Status string `json:"status"`
	}
	if json.Unmarshal([]byte(text), &m) != nil {
		return o
	}
	return outcomeText{m.Kind, m.Task, m.Status}
}

// final reports whether no other outcome may follow.
func (o outcomeText) final() bool { return o.Kind == "skill_response" || o.Kind == "reminder" }

// check reads the events of all runs.
func (j pollJudge) check() {
	if !j.detached.on || j.retention != nil || j.isCorrupt() {
		return
	}
	for i := range j.plan.Namespaces {
		var last actor.CallID
		for next := true; next; next = !last.IsZero() {
			page, err := j.store.Runs(namespaceName(i), runs.Filter{Calls: true}, last, 100)
			if err != nil {
				j.fail(StoreReads, fmt.Sprintf("list of runs: %v", err))
				return
			}
			for k := range page.All {
				j.read(namespaceName(i), page.All[k].Run)
			}
			last = page.Next
		}
	}
}

// read checks the events of a run.
func (j pollJudge) read(tenant string, run actor.CallID) {
	stored, err := j.store.Events(tenant, run, 0, streamEventsMax)
	if err != nil {
		j.fail(StoreReads, fmt.Sprintf("events of run %s: %v", run, err))
		return
	}
	asked, found, own := map[[2]uint32]string{}, map[string]bool{}, "" // found: the tasks of which the turn has read an outcome
	for i := range stored {
		e, err := runs.Decode(stored[i].Body)
		if err != nil {
			j.fail(StoreReads, fmt.Sprintf("event %d of run %s: %v", stored[i].Seq, run, err))
			return
		}
		at := [2]uint32{e.Step, uint32(e.Index)}
		switch {
		case e.Type == runs.UserInput && e.Origin == actor.Agent.String():
			if o := readOutcome(e.Text); o.final() {
				own = o.Task
				j.same(run, own, e.Text, j.delivered, j.polled)
			}
		case e.Type == runs.ToolCallCreated && e.Name == tools.AgentPoll:
			asked[at] = readOutcome(e.Text).Task
		case e.Type == runs.ToolResult && e.Name == tools.AgentPoll && e.Refusal == nil && asked[at] != "":
			task := asked[at]
			switch o := readOutcome(e.Text); {
			case o.final():
				found[task] = true
				j.same(run, task, e.Text, j.polled, j.delivered)
				j.Stats.Audit.OutcomesStay++
			case found[task] || task == own:
				j.fail(OutcomesStay, fmt.Sprintf("run %s polls %s, which had an outcome, and reads %.300s", run, task, e.Text))
			}
		}
	}
}

// same checks an outcome against those that are known of the task, and adds it to the first ones.
func (j pollJudge) same(run actor.CallID, task, text string, to, other map[string]string) {
	for _, known := range []map[string]string{to, other} {
		if was, ok := known[task]; ok && was != text {
			j.fail(OutcomesStay, fmt.Sprintf("run %s has the outcome %.300s of task %s, elsewhere it is %.300s", run, text, task, was))
		}
	}
	to[task] = text
}
