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

// runPoller is somebody who looks at runs now and then, as a client does who does
// not want their stream: the newest of them, a page at a time, each with what it
// called. What was once told of a run stays so.
type runPoller struct {
	w       *Simulation
	records map[actor.CallID]runs.Record
	cursor  actor.CallID // behind which the next page begins; zero: with the newest
}

// looks is about how often it does, and lookAt how many runs are on a page.
const (
	pollsPerSpan = 10
	pollPageSize = 4
)

// startRunPoller has somebody look at a world's runs.
func (w *Simulation) startRunPoller() {
	if w.plan.Plain {
		return
	}
	o := &runPoller{w: w, records: map[actor.CallID]runs.Record{}}
	defer w.setStream(w.setStream(topicReader | topicMask>>8))
	w.after(o.interval(), o.poll)
}

// interval is how long it is until it looks once more.
func (o *runPoller) interval() time.Duration {
	every := max(o.w.plan.Span/pollsPerSpan, time.Second)
	return o.w.between(every/2, every*3/2)
}

func (o *runPoller) poll() {
	w := o.w
	if w.done || w.violation != nil {
		return
	}
	if !w.recovering {
		w.after(o.interval(), o.poll)
	}
	all := w.entropy.Int(2) == 0
	newest, err := store.RunsBefore(w.kv, actor.DefaultTenant, o.cursor, pollPageSize, all)
	if err != nil {
		w.fail(StoreReads, "the newest runs: "+err.Error())
		return
	}
	o.cursor = actor.CallID{}
	for _, owner := range newest {
		if o.cursor = owner.Run; all && owner.Root != owner.Run {
			o.fail(owner.Run, "is listed among the roots, and its root is %s", owner.Root)
		}
		o.checkRun(owner.Run, 0)
	}
	if len(newest) < pollPageSize {
		o.cursor = actor.CallID{}
	}
}

func (o *runPoller) fail(run actor.CallID, format string, args ...any) {
	o.w.fail(StreamsFold, fmt.Sprintf("run %s ", run)+fmt.Sprintf(format, args...))
}

// checkRun looks at a run, from where it was looked at last, and at what it called.
func (o *runPoller) checkRun(run actor.CallID, depth int) {
	r := o.records[run]
	stored, err := store.Events(o.w.kv, actor.DefaultTenant, run, r.Seq, streamEventsMax)
	if err != nil {
		o.fail(run, "cannot be read behind event %d: %v", r.Seq, err)
		return
	}
	for i := range stored {
		e, err := runs.Decode(stored[i].Body)
		if err == nil {
			err = r.Apply(&e)
		}
		if err != nil {
			o.fail(run, "does not go on as it began: %v", err)
			return
		}
	}
	o.records[run] = r
	if r.Seq == 0 { // it has its turn yet to come, and has told nothing
		return
	}
	o.w.Stats.Points[RunPolled]++
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
		o.fail(run, "is shown as what is no JSON: %v: %s", err, body)
		return
	}
	status, err := runs.ParseStatus(shown.Status)
	if err != nil || status != r.Status || shown.Run != run.String() || (shown.Ended != "") != status.Ended() || (shown.Agent == "") != status.Ended() || status.Ended() == (shown.Call == runs.CallPending) {
		o.fail(run, "is shown as %s", body)
		return
	}
	if status.Paused() {
		o.w.Stats.Points[PausedRunPolled]++
	}
	for _, c := range r.Children {
		if !c.Run.IsZero() && depth < actor.ChainMax && len(r.Children) < 8 {
			o.checkRun(c.Run, depth+1)
		}
	}
}
