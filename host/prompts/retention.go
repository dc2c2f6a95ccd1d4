// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"context"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// bound removes what is beyond the bounds once a session has grown. s.files is held.
func (s *Store) bound(of *sessionFiles) {
	if s.held > basesBytesMax {
		for _, f := range s.each(func(f *file) bool { return f.held > 0 }) {
			f.drop()
		}
		s.held = 0
	}
	for len(of.all) > 1 && of.size() > s.session {
		if !s.remove(of.all[0]) {
			break
		}
	}
	if s.sum.Load() > s.evict || s.runs > s.most {
		s.makeRoom()
	}
}

// makeRoom removes the files that were written to longest ago. s.files is held.
func (s *Store) makeRoom() {
	all := s.each(func(*file) bool { return true })
	slices.SortStableFunc(all, func(a, b *file) int { return a.changed.Compare(b.changed) })
	for _, f := range all {
		if s.sum.Load() <= s.evict-s.evict/evictedPart && s.runs <= s.most-s.most/evictedPart {
			return
		}
		s.remove(f)
	}
}

// settle removes the records of runs that the log does not have, and with Failed those of runs that have succeeded.
func (s *Store) settle(ctx context.Context) {
	s.files.Lock()
	open := s.each(func(f *file) bool { return !f.settled() })
	s.files.Unlock()
	if len(open) == 0 {
		return
	}
	tenants, err := s.Source.Tenants()
	if err != nil {
		return
	}
	names := map[string]string{}
	for _, tenant := range tenants {
		names[folderName(tenant)] = tenant
	}
	for _, f := range open {
		if ctx.Err() != nil {
			return
		}
		s.settleFile(f, names[f.of.tenant])
	}
}

// settleFile is settle for a file. The tenant is "" if the log does not have it.
func (s *Store) settleFile(f *file, tenant string) {
	s.files.Lock()
	s.load(f)
	states := map[actor.CallID]State{}
	for run, r := range f.runs {
		if !r.settled {
			states[run] = Unknown
		}
	}
	s.files.Unlock()
	for run := range states {
		if tenant == "" {
			break
		}
		state, err := s.state(tenant, run)
		if err != nil {
			delete(states, run)
			continue
		}
		states[run] = state
	}
	s.files.Lock()
	defer s.files.Unlock()
	if f.runs == nil {
		return
	}
	gone, deleted := map[string]bool{}, true
	for run, state := range states {
		switch r := f.runs[run]; {
		case r == nil:
		case state == Unknown && s.now().Sub(r.changed) < settleEvery: // its entries may not be written yet
		case state == Unknown, state == Succeeded && s.Prompts == Failed:
			gone[run.String()] = true
			deleted = deleted && state == Unknown
		case state != Running || s.Prompts != Failed:
			r.settled = true
		}
	}
	switch {
	case len(gone) == len(f.runs):
		if f.torn && len(f.runs) == 0 {
			s.Logger.Error("recorded prompts cannot be read, and are removed", "file", f.path)
		}
		if deleted && len(gone) > 0 && !f.gone { // the process was killed before Forget
			s.noteDeleted(f.of.prefix, f.changed)
		}
		s.remove(f)
	case len(gone) > 0 || f.torn:
		s.rewrite(f, func(f *framed) bool { return !gone[f.Run] })
	}
}

// state returns the state of a run. Only Failed depends on how it has ended.
func (s *Store) state(tenant string, run actor.CallID) (State, error) {
	if s.Prompts == Failed {
		return s.Source.State(tenant, run)
	}
	known, err := s.Source.Known(tenant, run)
	if known {
		return Running, err
	}
	return Unknown, err
}

// age removes records older than Keep.
func (s *Store) age() {
	before := s.now().Add(-s.Keep)
	s.files.Lock()
	old := s.each(func(f *file) bool { return f.began.Before(before) })
	s.files.Unlock()
	for _, f := range old {
		s.files.Lock()
		if f.changed.Before(before) {
			s.remove(f)
		} else {
			s.rewrite(f, func(f *framed) bool { return !parseTime(f.At).Before(before) })
		}
		s.files.Unlock()
	}
	if s.Deletions != nil {
		if err := s.Deletions.Expired(before); err != nil {
			s.Logger.Error("cannot shorten the list of deleted sessions", "error", err.Error())
		}
	}
}
