// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/troupe-run/troupe/store"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// The shares of users in the space of the disk.
const (
	// Space is scarce while less than one part in scarcePart of what the store may take is free, or less
	// than scarceBytesMax. On a small disk it is scarce while a burst of the store leaves none, but not
	// while half is free.
	scarcePart     = 8
	scarceBytesMax = 4 << 30
	// usageEvery is the minimum time between two estimates of the space that users have, usageSoon if
	// twice as much as is scarce is free, and usageNow if a quarter of what is free was written since the
	// last one: it may have taken more than writtenPerByte.
	usageEvery, usageSoon, usageNow = time.Minute, 10 * time.Second, time.Second
	// writtenPerByte is the number of bytes that a byte of a message may take: in the log, and in the
	// transcript or a context.
	writtenPerByte = 2
	// messageOverhead is the size of the entries and events of a run without content.
	messageOverhead = 4 << 10
)

// storageShares keeps one user from filling the disk for all: while space is scarce, a user who has more than
// half of what is stored starts no new work. While there is space, nobody is limited.
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
	sum     uint64            // of written
}

func newStorageShares(read func() (store.Usage, error), logger *slog.Logger) *storageShares {
	return &storageShares{read: read, now: time.Now, logger: logger, written: map[string]uint64{}}
}

// admit counts a message of a tenant with a number of bytes, or returns its refusal.
func (s *storageShares) admit(tenant string, bytes int) *actor.Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	has, stored, free := s.usage.Of[tenant]+s.written[tenant], s.usage.Stored+s.sum, s.usage.Free-min(s.usage.Free, s.sum)
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
	if s.usage.Stored > 0 && free < scarce && has > stored/2 {
		return &actor.Refusal{Reason: actor.Rejected, Field: actor.StorageField, Detail: "storage is scarce: this user has " + mebibytes(has) + " of the " + mebibytes(stored) +
			" that are stored, which is more than half, and " + mebibytes(free) + " are left: delete sessions first"}
	}
	n := uint64(writtenPerByte*bytes + messageOverhead)
	s.written[tenant] += n
	s.sum += n
	return nil
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
	s.usage, s.written, s.sum = usage, map[string]uint64{}, 0
}

// close waits for the estimate under way. The store MUST NOT be closed before.
func (s *storageShares) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.work.Wait()
}
