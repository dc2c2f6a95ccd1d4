// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// runPoller is a client that polls runs instead of streaming them. It pages through
// the newest runs and reads each run with its child runs. It checks that a run never
// takes back an event that the run has reported.
type runPoller struct {
	w       *Simulation
	records map[actor.CallID]runs.Record
	tenant  string       // namespace whose pages it reads
	cursor  actor.CallID // last run of the previous page; zero: start with the newest run
}

// pollsPerSpan is the mean number of polls in a run's span. pollPageSize is the
// number of runs on a page.
const (
	pollsPerSpan = 10
	pollPageSize = 4
)

// startRunPoller starts a client that polls the runs of the simulation.
func (w *Simulation) startRunPoller() {
	if w.plan.Plain || w.plan.Retention { // the events of a polled run may be cut
		return
	}
	p := &runPoller{w: w, records: map[actor.CallID]runs.Record{}}
	defer w.setStream(w.setStream(topicReader | topicMask>>8))
	w.after(p.interval(), p.poll)
}

// interval draws the time until the next poll.
func (p *runPoller) interval() time.Duration {
	mean := max(p.w.plan.Span/pollsPerSpan, time.Second)
	return p.w.between(mean/2, mean*3/2)
}

func (p *runPoller) poll() {
	w := p.w
	if w.done || w.violation != nil {
		return
	}
	if !w.recovering {
		w.after(p.interval(), p.poll)
	}
	if w.isCorrupt() {
		return
	}
	if p.cursor.IsZero() {
		p.tenant = namespaces{w}.drawNamespace()
	}
	rootsOnly := w.entropy.Int(2) == 0
	newest, err := w.store.Runs(p.tenant, runs.Filter{Calls: !rootsOnly, System: true}, p.cursor, pollPageSize)
	if err != nil {
		w.fail(StoreReads, "listing the newest runs: "+err.Error())
		return
	}
	p.cursor = newest.Next
	for i := range newest.All {
		s := &newest.All[i]
		if rootsOnly && s.Root != s.Run {
			p.fail(s.Run, "is listed as a root run, but its root is %s", s.Root)
		}
		p.checkRun(s.Run, 0)
		if r := p.records[s.Run]; r.Seq > 0 {
			if s.Waits != "" {
				w.Stats.Points[WaitListed]++
			}
			if err := w.checkSummary(s, &r); err != nil {
				w.fail(SummariesAgree, fmt.Sprintf("run %s, listed at a poll: %v", s.Run, err))
			}
		}
	}
}

func (p *runPoller) fail(run actor.CallID, format string, args ...any) {
	p.w.fail(StreamsFold, fmt.Sprintf("run %s ", run)+fmt.Sprintf(format, args...))
}

// checkRun reads the events of a run since the last poll, and those of its child runs.
func (p *runPoller) checkRun(run actor.CallID, depth int) {
	r := p.records[run]
	stored, err := p.w.store.Events(p.tenant, run, r.Seq, streamEventsMax)
	if err != nil {
		p.fail(run, "cannot be read after event %d: %v", r.Seq, err)
		return
	}
	for i := range stored {
		e, err := runs.Decode(stored[i].Body)
		if err == nil {
			err = r.Apply(&e)
		}
		if err != nil {
			p.fail(run, "has an event that does not follow the earlier ones: %v", err)
			return
		}
	}
	p.records[run] = r
	if r.Seq == 0 { // the turn of the run has not started, so the run has no events
		return
	}
	p.w.Stats.Points[RunPolled]++
	var rendered struct {
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
	namespaces{p.w}.checkApart(p.tenant, "a client that polls a run", string(body))
	if err := json.Unmarshal(body, &rendered); err != nil {
		p.fail(run, "is rendered as invalid JSON: %v: %s", err, body)
		return
	}
	status, err := runs.ParseStatus(rendered.Status)
	if err != nil || status != r.Status || rendered.Run != run.String() || (rendered.Ended != "") != status.Ended() || (rendered.Agent == "") != status.Ended() || status.Ended() == (rendered.Call == runs.CallPending) {
		p.fail(run, "is rendered with inconsistent fields: %s", body)
		return
	}
	if status.Paused() {
		p.w.Stats.Points[PausedRunPolled]++
	}
	for _, c := range r.Children {
		if !c.Run.IsZero() && depth < actor.ChainMax && len(r.Children) < 8 {
			p.checkRun(c.Run, depth+1)
		}
	}
}
