// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"fmt"
	"time"
)

// outage is a time in which the database accepts no writes.
type outage struct {
	since time.Time
	err   error
}

// Error implements error.
func (o *outage) Error() string {
	return fmt.Sprintf("the database accepts no writes since %s: %v", o.since.UTC().Format(time.RFC3339), o.err)
}

// note records that the database is away.
func (s *Store) note(err error) {
	if o := (&outage{time.Now(), explain(err)}); s.down.CompareAndSwap(nil, o) {
		s.logger.Error("the database does not accept writes: new work is refused until it does", "error", o.err.Error())
	}
}

// recovered notes that the database accepts writes.
func (s *Store) recovered() {
	if o := s.down.Swap(nil); o != nil {
		s.logger.Info("the database accepts writes again", "away", time.Since(o.since).Round(time.Millisecond).String())
	}
}

// wait waits before the next attempt. It returns false if the store closes and the database was
// away for too long.
func (s *Store) wait(d time.Duration) bool {
	if at := s.closing.Load(); at != nil && time.Since(*at) > closePatience {
		return false
	}
	time.Sleep(d)
	return true
}

// Full returns an error while the database accepts no writes. It asks it now and then, because a server
// without work would not notice an outage, nor its end.
func (s *Store) Full() error {
	now := time.Now().UnixNano()
	if last := s.probed.Load(); now-last > int64(probeEvery) && s.closing.Load() == nil && s.probed.CompareAndSwap(last, now) {
		s.probes.Go(s.probe)
	}
	if o := s.down.Load(); o != nil {
		return o
	}
	return nil
}

// probeEvery is the time between two probes, and the time that one may take.
const probeEvery = time.Second

// probe finds out whether the database is away or back. While a batch waits, its Append finds out.
func (s *Store) probe() {
	ctx, cancel := context.WithTimeout(context.Background(), probeEvery)
	defer cancel()
	var waits bool
	err := s.gets.QueryRow(ctx, waitsForStandby).Scan(&waits)
	s.synchronous.Store(err == nil && waits)
	switch {
	case s.closing.Load() != nil:
	case err != nil:
		s.note(err)
	case s.writing.TryLock():
		defer s.writing.Unlock()
		if s.pending != nil {
			return
		}
		// The connection that writes holds the lock that keeps other processes from starting.
		if _, err := s.conn.Exec(ctx, "SELECT 1"); err != nil {
			_ = s.conn.Close(ctx)
		}
		if err := s.reconnect(); err != nil {
			s.note(err)
		} else {
			s.recovered()
		}
	}
}

// waitsForStandby asks whether a commit waits until a standby has it on its disk.
const waitsForStandby = `SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') IN ('on', 'remote_apply')`

// Synchronous reports whether each commit waits for a standby, as of the last probe: then a failover of the database
// loses nothing that was acknowledged.
func (s *Store) Synchronous() bool { return s.synchronous.Load() }
