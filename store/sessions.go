// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// compareSessions compares names of sessions in the order of their keys.
func compareSessions(a, b string) int { return strings.Compare(a+"/", b+"/") }

// Tenants implements Reader.
func (r Rows) Tenants() ([]string, error) {
	names, err := namesAfter(r.KV, "t/")
	r.with(func(x *Index) {
		for _, id := range x.ids {
			names = append(names, id.Tenant)
		}
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// Sessions implements Reader.
func (r Rows) Sessions(tenant, before string, limit int) (names []string, next string, err error) {
	prefix := string(tenantKey(tenant, 's'))
	newer := map[string]bool{}
	r.with(func(x *Index) {
		for _, id := range x.ids {
			if of, ok := sessionOf(id); ok && of.tenant == tenant {
				newer[of.session] = true
			}
		}
	})
	candidates := slices.SortedFunc(maps.Keys(newer), compareSessions) // in the Index; the last one comes first
	for to := prefixEnd([]byte(prefix)); ; {
		if before != "" {
			to = []byte(prefix + before + "/")
		}
		found := ""
		err := r.KV.ScanBack([]byte(prefix), to, func(key, _ []byte) bool {
			found, _, _ = strings.Cut(string(key[len(prefix):]), "/")
			return false
		})
		if err != nil {
			return nil, "", err
		}
		for len(candidates) > 0 && before != "" && compareSessions(candidates[len(candidates)-1], before) >= 0 {
			candidates = candidates[:len(candidates)-1]
		}
		if n := len(candidates); n > 0 && (found == "" || compareSessions(candidates[n-1], found) > 0) {
			found = candidates[n-1]
		}
		if found == "" {
			return names, "", nil
		}
		if len(names) == limit {
			return names, names[limit-1], nil
		}
		before = found
		switch gone, err := r.isGone(tenantSession{tenant, found}); {
		case err != nil:
			return nil, "", err
		case !gone:
			names = append(names, found)
		}
	}
}

// SessionActors implements Reader.
func (r Rows) SessionActors(tenant, session string) (ids []actor.ID, err error) {
	of := tenantSession{tenant, session}
	if gone, err := r.isGone(of); err != nil || gone {
		return nil, cmp.Or[error](err, Gone{tenant, session})
	}
	err = r.eachOfSession(of, func(id actor.ID) error { ids = append(ids, id); return nil })
	slices.SortFunc(ids, actor.ID.Compare)
	return ids, err
}

// Blob implements Reader.
func (r Rows) Blob(id actor.ID, name actor.Hash) ([]byte, error) {
	b, err := loadBlob(r.KV, id, name)
	if gone := r.gone(id); gone != nil {
		return nil, gone
	}
	return b, err
}

// ReadPage returns the messages of a page of an actor's transcript.
func ReadPage(r Reader, id actor.ID, page actor.Hash) ([]actor.ChatMessage, error) {
	content, err := r.Blob(id, page)
	if err != nil {
		return nil, err
	}
	return readPage(content, func(name actor.Hash) ([]byte, error) { return r.Blob(id, name) })
}

// ReadTranscript returns the messages of a journal numbered from, up to and without to.
func ReadTranscript(r Reader, id actor.ID, t *Transcript, from, to uint64) ([]actor.ChatMessage, error) {
	var failure error
	all, missing := t.Range(from, to, func(name actor.Hash) ([]actor.ChatMessage, bool) {
		messages, err := ReadPage(r, id, name)
		failure = cmp.Or(failure, err)
		return messages, err == nil
	})
	if len(missing) > 0 {
		return nil, failure
	}
	return all, nil
}

// Tenants implements Reader.
func (m *Memory) Tenants() ([]string, error) {
	var names []string
	for _, id := range m.actorIDs() {
		names = append(names, id.Tenant)
	}
	return slices.Compact(names), nil
}

// Sessions implements Reader.
func (m *Memory) Sessions(tenant, before string, limit int) (names []string, next string, err error) {
	all := map[string]bool{}
	for _, id := range m.actorIDs() {
		if of, ok := sessionOf(id); ok && of.tenant == tenant && m.dead[of] == nil && (before == "" || compareSessions(of.session, before) < 0) {
			all[of.session] = true
		}
	}
	names = slices.SortedFunc(maps.Keys(all), compareSessions)
	slices.Reverse(names)
	if len(names) > limit {
		return names[:limit], names[limit-1], nil
	}
	return names, "", nil
}

// SessionActors implements Reader.
func (m *Memory) SessionActors(tenant, session string) (ids []actor.ID, err error) {
	of := tenantSession{tenant, session}
	if m.dead[of] != nil {
		return nil, Gone{tenant, session}
	}
	for _, id := range m.actorIDs() {
		if s, ok := sessionOf(id); ok && s == of {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, actor.ID.Compare)
	return ids, nil
}
