// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"sync"

	"github.com/troupe-run/troupe/actor"
)

// shares divides a bounded resource, places or bytes, among keys such as client addresses
// and principals: no key can take all of it. The numbers are in docs/limits.md.
type shares[K comparable] struct {
	max      int64 // bound in all
	each     int64 // bound of one key
	reserved int64 // part of max that only privileged takers use; each does not bound them

	mu    sync.Mutex
	taken int64
	by    map[K]int64 // of the keys that have taken something
}

func newShares[K comparable](max, each, reserved int64) *shares[K] {
	return &shares[K]{max: max, each: each, reserved: reserved, by: map[K]int64{}}
}

// take takes n for a key, until give. If it exceeds a bound, take takes nothing and returns
// the owner of the bound: ScopeCaller or ScopeNode. Otherwise it returns NoScope.
func (s *shares[K]) take(key K, n int64, privileged bool) actor.Scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch limit := s.max - s.reserved; {
	case privileged && s.taken+n > s.max:
		return actor.ScopeNode
	case privileged:
	case s.by[key]+n > s.each:
		return actor.ScopeCaller
	case s.taken+n > limit:
		return actor.ScopeNode
	}
	s.taken += n
	s.by[key] += n
	return actor.NoScope
}

// give returns n that a key has taken.
func (s *shares[K]) give(key K, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken -= n
	if s.by[key] -= n; s.by[key] == 0 {
		delete(s.by, key)
	}
}
