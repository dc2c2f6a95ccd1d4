// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/prompts"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// PromptsFolder is the folder in a data folder with recorded prompts.
const PromptsFolder = "prompts"

// ErrClusterPrompts is the error of a process of a cluster that would record prompts.
var ErrClusterPrompts = errors.New("record.prompts: a process of a cluster records no prompts: they would stay in its own data folder when another one takes over; remove [record], or serve without --cluster")

// openPrompts opens the recorded prompts of a node; nil if it has none.
func openPrompts(c *Config, s storage, f *forgets, logger *slog.Logger) (*prompts.Store, error) {
	if err := c.Record.Check(); err != nil {
		return nil, err
	}
	if c.Cluster != nil && c.Record.On() {
		return nil, ErrClusterPrompts
	}
	if c.RegistryOnly {
		return nil, nil
	}
	floor := c.FreeFloor
	if floor == 0 {
		floor = disk.FreeFloor
	}
	if c.Record.On() {
		if err := f.create(); err != nil {
			return nil, err
		}
	}
	return prompts.Open(prompts.Options{Config: c.Record, Dir: filepath.Join(c.Data, PromptsFolder), Source: recordedRuns{s}, Deletions: f, Logger: logger,
		Room: func() bool { return disk.FreeSpace(c.Data) > 2*floor }}) // new work is refused below the floor, so records end before
}

// recordedRuns reads the states of runs whose prompts are recorded. It implements prompts.Source.
type recordedRuns struct{ store storage }

// Tenants implements prompts.Source.
func (r recordedRuns) Tenants() ([]string, error) { return r.store.Tenants() }

// Known implements prompts.Source.
func (r recordedRuns) Known(tenant string, run actor.CallID) (bool, error) {
	_, ok, err := r.store.Run(tenant, run)
	return ok, err
}

// State implements prompts.Source.
func (r recordedRuns) State(tenant string, run actor.CallID) (prompts.State, error) {
	owner, ok, err := r.store.Run(tenant, run)
	if err != nil || !ok {
		return prompts.Unknown, err
	}
	state := prompts.Succeeded
	for _, id := range []actor.CallID{run, owner.Root} {
		ended, err := r.store.Ended(tenant, id)
		if err != nil || !ended {
			return prompts.Running, err
		}
		record, err := store.FoldRun(r.store, tenant, id)
		if errors.As(err, new(store.EventsDropped)) {
			return prompts.Kept, nil
		}
		if err != nil {
			return prompts.Running, err
		}
		if record.Status != runs.Done {
			state = prompts.Kept
		}
	}
	return state, nil
}

// recorded returns recorded prompts of a run.
func (c *Commands) recorded(ctx context.Context, by *actor.Principal, q command.PromptsQuery) (command.Result, error) {
	if !ingress.Allows(*by, ingress.ScopeOperator) {
		return nil, actor.Refuse(actor.Rejected, "recorded prompts need the scope %s", ingress.ScopeOperator)
	}
	if err := checkLimit(q.Limit, command.PromptsMax); err != nil {
		return nil, err
	}
	return read(ctx, c, by, func(v View) (command.Prompts, error) {
		owner, err := v.Owner(q.Run)
		if err != nil {
			return command.Prompts{}, err
		}
		page, err := c.prompts.Read(ctx, owner.Actor, q.Run, q.After, q.Limit)
		return Prompts(q.Run, c.prompts.Mode(), &page), err
	})
}

// Prompts returns a page of recorded prompts as the result of a query.
func Prompts(run actor.CallID, mode string, page *prompts.Page) command.Prompts {
	out := command.Prompts{Run: run, Records: mode, More: page.More}
	for _, p := range page.All {
		out.All = append(out.All, command.Prompt(p))
	}
	return out
}
