// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// The shares of users in the space of the disk.
const (
	// Space is scarce while less than one part in scarcePart of what the store may take is free, or less
	// than scarceBytesMax. On a small disk it is scarce while a burst of the store leaves none, but not
	// while half is free.
	scarcePart     = 8
	scarceBytesMax = 4 << 30
	// usageEvery is the minimum time between two estimates of the space that users have. It is usageSoon while
	// less than twice the scarce space is free. It is usageNow once a quarter of the free space was written
	// since the last estimate, because writes may take more space than writtenPerByte says.
	usageEvery, usageSoon, usageNow = time.Minute, 10 * time.Second, time.Second
	// writtenPerByte is the number of bytes that a byte of a message may take: in the log, and in the
	// transcript or a context.
	writtenPerByte = 2
	// definitionPerByte is the number of bytes that a byte of a definition takes: each change of the registry has
	// it in the log, and again in rows of its own.
	definitionPerByte = 6
	// definersMax is the maximum number of tenants whose definitions are counted. Another one replaces the one
	// with the least.
	definersMax = 4096
	// messageOverhead is the size of the entries and events of a run without content.
	messageOverhead = 4 << 10
)

// storageShares keeps one user from filling the disk for all: while space is scarce, new work of a user with more than
// half of the stored bytes is refused. Otherwise there is no limit. The registry holds the definitions of all users, so
// the store has no user for them: the definitions that a user has written since the start count instead.
type storageShares struct {
	read   func() (store.Usage, error)
	now    func() time.Time
	logger *slog.Logger

	mu      sync.Mutex
	usage   store.Usage
	readAt  time.Time
	reading bool
	closed  bool
	work    sync.WaitGroup    // of the estimate under way
	written map[string]uint64 // bytes of messages since the estimate, by tenant
	sum     uint64            // of written, and of definitions since the estimate
	defined map[string]uint64 // bytes of definitions since the start, by tenant
	changed uint64            // bytes of definitions since the estimate
}

func newStorageShares(read func() (store.Usage, error), logger *slog.Logger) *storageShares {
	return &storageShares{read: read, now: time.Now, logger: logger, written: map[string]uint64{}, defined: map[string]uint64{}}
}

// admit counts a message of a tenant with a number of bytes, or returns its refusal.
func (s *storageShares) admit(tenant string, bytes int) *actor.Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.check(tenant); r != nil {
		return r
	}
	n := uint64(writtenPerByte*bytes + messageOverhead)
	s.written[tenant] += n
	s.sum += n
	return nil
}

// admitDefinition counts a definition of a tenant with a number of bytes until the node stops, or returns its refusal.
func (s *storageShares) admitDefinition(tenant string, bytes int) *actor.Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.check(tenant); r != nil {
		return r
	}
	if _, counted := s.defined[tenant]; !counted && len(s.defined) == definersMax {
		least := tenant
		for t, n := range s.defined {
			if least == tenant || n < s.defined[least] {
				least = t
			}
		}
		delete(s.defined, least)
	}
	n := uint64(definitionPerByte*bytes + messageOverhead)
	s.defined[tenant] += n
	s.changed += n
	s.sum += n
	return nil
}

// check returns the refusal of new work of a tenant. It begins an estimate if one is due.
func (s *storageShares) check(tenant string) *actor.Refusal {
	defined := min(s.defined[tenant], s.usage.Of[""]+s.changed) // less if the log was cut
	stored, free := s.usage.Stored+s.sum, s.usage.Free-min(s.usage.Free, s.sum)
	has := min(s.usage.Of[tenant]+s.written[tenant]+defined, stored)
	scarce, every := max(min(scarceBytesMax, (stored+free)/scarcePart), min(s.usage.Burst, (stored+free)/2)), usageEvery
	switch {
	case s.sum > free/4:
		every = usageNow
	case free < 2*scarce:
		every = usageSoon
	}
	if now := s.now(); !s.reading && !s.closed && now.Sub(s.readAt) >= every {
		s.reading, s.readAt = true, now
		s.work.Go(s.estimate)
	}
	if s.usage.Stored == 0 || free >= scarce || has <= stored/2 {
		return nil
	}
	of := ""
	if defined > 0 {
		of = " (" + mebibytes(defined) + " of them by changes of agents, tools and capabilities)"
	}
	return &actor.Refusal{Reason: actor.Rejected, Field: actor.StorageField, Detail: "storage is scarce: this user has " + mebibytes(has) + of + " of the " + mebibytes(stored) +
		" that are stored, which is more than half, and " + mebibytes(free) + " are left: delete sessions first"}
}

func mebibytes(n uint64) string { return strconv.FormatUint(n>>20, 10) + " MiB" }

// estimate reads the space that users have.
func (s *storageShares) estimate() {
	usage, err := s.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading = false; err != nil {
		s.logger.Warn("cannot estimate the space that users have on the disk", "error", err.Error())
		return
	}
	s.usage, s.written, s.sum, s.changed = usage, map[string]uint64{}, 0, 0
}

// close waits for the estimate under way. The store MUST NOT be closed before.
func (s *storageShares) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.work.Wait()
}
