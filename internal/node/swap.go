// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Swap replaces the result of a tool in a replay.
type Swap struct {
	Tool   string
	N      int    // the N-th call of the tool in the tree, from 1; 0: each of them
	Result []byte // JSON
}

// Divergence is the first action of a replayed tree that differs from the recorded one.
type Divergence struct {
	Run      string               `json:"run_id"`
	Agent    string               `json:"agent"`
	Step     int                  `json:"step"`
	Recorded []command.StepAction `json:"recorded"`
	Replayed []command.StepAction `json:"replayed"`
}

// Replay replays a run and those that it called with other results of tools, from the store alone: it calls nothing. It
// returns the first divergence, or nil, and the number of results that were replaced.
func (v View) Replay(id actor.CallID, swaps []Swap) (*Divergence, int, error) {
	r := treeReplay{view: v.replayer(), swaps: swaps, calls: map[string]int{}}
	found, err := r.run(id)
	return found, r.replaced, err
}

// treeReplay replays the runs of a tree in the order of their asks.
type treeReplay struct {
	view     replayer
	swaps    []Swap
	calls    map[string]int // of each tool so far
	replaced int
}

// run replays one run beside the recorded one: two turns of the definition, of which one gets the recorded answers.
func (r *treeReplay) run(id actor.CallID) (*Divergence, error) {
	run, owner, err := r.view.recorded(id)
	if err != nil {
		return nil, err
	}
	recorded, err := r.view.turnOf(&run)
	if err != nil {
		return nil, fmt.Errorf("run %s cannot be replayed: %w", id, err)
	}
	defer recorded.Stop()
	swapped := invariant.Must(r.view.turnOf(&run))
	defer swapped.Stop()
	var was, now []actor.Answer
	for i := 0; ; i++ {
		a, err := recorded.Next(was)
		if err == nil && i < len(run.Steps) {
			err = actor.SameAsks(asksOf(run.Steps[i]), a.Asks)
		}
		if err != nil {
			return nil, fmt.Errorf("run %s cannot be replayed: step %d: the agent asks for something else now: %w", id, i+1, err)
		}
		b, err := swapped.Next(now)
		if err != nil {
			b = actor.EndRefused(actor.Refuse(actor.Unavailable, "%v", err))
		}
		if actor.SameAsks(a.Asks, b.Asks) != nil || !reflect.DeepEqual(a.Done, b.Done) {
			return &Divergence{Run: id.String(), Agent: owner.Actor.String(), Step: i + 1, Recorded: actionsOf(a), Replayed: actionsOf(b)}, nil
		}
		if i == len(run.Steps) || a.Done != nil {
			return nil, nil
		}
		if was = answersOf(run.Steps[i]); was == nil && run.ended == nil {
			return nil, nil // the run waits here
		}
		now = append([]actor.Answer(nil), was...)
		if found, err := r.replace(run.Steps[i], now); found != nil || err != nil {
			return found, err
		}
	}
}

// replace replaces answers of a step, and replays the runs that it called.
func (r *treeReplay) replace(step store.Step, answers []actor.Answer) (*Divergence, error) {
	n := -1
	for i := range step.Asks {
		a := &step.Asks[i]
		if a.Added {
			continue
		}
		n++
		if !a.Call.IsZero() {
			if found, err := r.run(a.Call); found != nil || err != nil {
				return found, err
			}
		}
		if a.Ask.Kind != actor.AskTool || n >= len(answers) {
			continue
		}
		r.calls[a.Ask.Name]++
		for _, s := range r.swaps {
			if s.Tool == a.Ask.Name && (s.N == 0 || s.N == r.calls[s.Tool]) {
				answers[n] = tools.JSON(s.Result)
				r.replaced++
			}
		}
	}
	return nil, nil
}

// actionsOf returns what an agent asks for, or its end.
func actionsOf(a actor.Action) (all []command.StepAction) {
	for i := range a.Asks {
		one := actionOf(&store.Asked{Ask: a.Asks[i]})
		one.Prompt = promptOf(&a.Asks[i])
		all = append(all, one)
	}
	if a.Done != nil {
		all = append(all, endOf(actor.TextOf(a.Done.Parts), a.Done.Refusal))
	}
	return all
}

// endOf returns the action that ends a turn.
func endOf(response string, refusal *actor.Refusal) command.StepAction {
	end := command.StepAction{Action: "Complete", Parameters: invariant.Must(json.Marshal(map[string]string{"response": strings.ToValidUTF8(response, "\uFFFD")}))}
	if refusal != nil {
		end = command.StepAction{Action: "Fail", Parameters: []byte("{}"), Error: strings.ToValidUTF8(refusal.Error(), "\uFFFD")}
	}
	return end
}

// noRecords is the refusal of a run whose steps are not there any more.
func noRecords(id actor.CallID, at actor.ID) *actor.Refusal {
	return actor.Refuse(actor.Rejected, "the records of run %s are part of a snapshot of %s, which has no steps of ended runs; its events are there", id, at)
}
