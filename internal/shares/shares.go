// SPDX-License-Identifier: Apache-2.0

// Package shares divides bounded resources of a server among its clients, so that none can take
// all of one. The page docs/limits.md has the numbers.
package shares

import (
	"sync"

	"github.com/troupe-run/troupe/actor"
)

// Shares divides a bounded resource, places or bytes, among keys such as client addresses
// and principals: no key can take all of it. It is safe for concurrent use.
type Shares[K comparable] struct {
	bounds Bounds

	mu    sync.Mutex
	taken int64
	by    map[K]int64 // of the keys that have taken something
}

// Bounds are the numbers of a resource that is divided.
type Bounds struct {
	Max      int64 // bound in all
	Each     int64 // bound of one key
	Reserved int64 // part of Max that only privileged takers use; Each does not bound them
}

// New returns shares of which nothing is taken.
func New[K comparable](b Bounds) *Shares[K] { return &Shares[K]{bounds: b, by: map[K]int64{}} }

// Bounds returns the numbers of the resource.
func (s *Shares[K]) Bounds() Bounds { return s.bounds }

// Take takes n for a key, until Give. If it exceeds a bound, Take takes nothing and returns
// the owner of the bound: ScopeCaller or ScopeNode. Otherwise it returns NoScope.
func (s *Shares[K]) Take(key K, n int64, privileged bool) actor.Scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch b := s.bounds; {
	case privileged && s.taken+n > b.Max:
		return actor.ScopeNode
	case privileged:
	case s.by[key]+n > b.Each:
		return actor.ScopeCaller
	case s.taken+n > b.Max-b.Reserved:
		return actor.ScopeNode
	}
	s.taken += n
	s.by[key] += n
	return actor.NoScope
}

// Give returns n that a key has taken.
func (s *Shares[K]) Give(key K, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken -= n
	if s.by[key] -= n; s.by[key] == 0 {
		delete(s.by, key)
	}
}

// Taken returns what all keys have taken.
func (s *Shares[K]) Taken() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// Keys returns the number of keys that have taken something.
func (s *Shares[K]) Keys() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.by)
}
