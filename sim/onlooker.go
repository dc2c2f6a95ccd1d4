// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// onlooker is somebody who looks at runs now and then, as a client does who does
// not want their stream: the newest of them, a page at a time, each with what it
// called. What was once told of a run stays so.
type onlooker struct {
	w     *World
	known map[actor.CallID]runs.Record
	next  actor.CallID // behind which the next page begins; zero: with the newest
}

// looks is about how often it does, and lookAt how many runs are on a page.
const (
	looks  = 10
	lookAt = 4
)

// watchRuns has somebody look at a world's runs.
func (w *World) watchRuns() {
	if w.plan.Plain {
		return
	}
	o := &onlooker{w: w, known: map[actor.CallID]runs.Record{}}
	defer w.turn(w.turn(aboutReader | aboutMask>>8))
	w.after(o.between(), o.look)
}

// between is how long it is until it looks once more.
func (o *onlooker) between() time.Duration {
	every := max(o.w.plan.Span/looks, time.Second)
	return o.w.between(every/2, every*3/2)
}

func (o *onlooker) look() {
	w := o.w
	if w.over || w.broken != nil {
		return
	}
	if !w.calm {
		w.after(o.between(), o.look)
	}
	all := w.choose.Int(2) == 0
	newest, err := store.RunsBefore(w.kv, actor.DefaultTenant, o.next, lookAt, all)
	if err != nil {
		w.violate(StoreReads, "the newest runs: "+err.Error())
		return
	}
	o.next = actor.CallID{}
	for _, owner := range newest {
		if o.next = owner.Run; all && owner.Root != owner.Run {
			o.wrong(owner.Run, "is listed among the roots, and its root is %s", owner.Root)
		}
		o.at(owner.Run, 0)
	}
	if len(newest) < lookAt {
		o.next = actor.CallID{}
	}
}

func (o *onlooker) wrong(run actor.CallID, format string, args ...any) {
	o.w.violate(StreamsFold, fmt.Sprintf("run %s ", run)+fmt.Sprintf(format, args...))
}

// at looks at a run, from where it was looked at last, and at what it called.
func (o *onlooker) at(run actor.CallID, depth int) {
	r := o.known[run]
	stored, err := store.Events(o.w.kv, actor.DefaultTenant, run, r.Seq, streamMax)
	if err != nil {
		o.wrong(run, "cannot be read behind event %d: %v", r.Seq, err)
		return
	}
	for i := range stored {
		e, err := runs.Decode(stored[i].Body)
		if err == nil {
			err = r.Apply(&e)
		}
		if err != nil {
			o.wrong(run, "does not go on as it began: %v", err)
			return
		}
	}
	o.known[run] = r
	if r.Seq == 0 { // it has its turn yet to come, and has told nothing
		return
	}
	o.w.Stats.Sometimes[RunLookedAt]++
	var shown struct {
		Run      string `json:"run_id"`
		Status   string `json:"status"`
		Call     string `json:"call_state"`
		Agent    string `json:"agent_state"`
		Ended    string `json:"ended_at"`
		Children []struct {
			Run   string `json:"child_run_id"`
			State string `json:"call_state"`
		} `json:"children"`
	}
	body := r.AppendJSON(nil)
	if err := json.Unmarshal(body, &shown); err != nil {
		o.wrong(run, "is shown as what is no JSON: %v: %s", err, body)
		return
	}
	status, err := runs.ParseStatus(shown.Status)
	if err != nil || status != r.Status || shown.Run != run.String() || (shown.Ended != "") != status.Ended() || (shown.Agent == "") != status.Ended() || status.Ended() == (shown.Call == runs.CallPending) {
		o.wrong(run, "is shown as %s", body)
		return
	}
	if status.Paused() {
		o.w.Stats.Sometimes[PausedLookedAt]++
	}
	for _, c := range r.Children {
		if !c.Run.IsZero() && depth < actor.ChainMax && len(r.Children) < 8 {
			o.at(c.Run, depth+1)
		}
	}
}
