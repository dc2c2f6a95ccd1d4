// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/host/logs"
)

const (
	// positionConnections is the maximum number of connections for positions.
	positionConnections = 2
	// positionTimeout bounds one statement about positions, the wait for a connection included. The work of a reader
	// waits for it.
	positionTimeout = 2 * time.Second
)

// Positions keep the positions of readers of one log in the database, while this process writes the log.
type Positions struct {
	store *Store
	kind  string
	log   int16
	owner string
	epoch int64
	last  atomic.Int64 // number of the last write
}

var _ logs.Positions = (*Positions)(nil)

// Positions returns the positions of a kind of readers of a log. They accept no writes once the process has lost
// the log that it writes now, also not after it got the log back.
func (s *Store) Positions(kind string, log int) *Positions {
	s.writing.Lock()
	defer s.writing.Unlock()
	return &Positions{store: s, kind: kind, log: int16(log), owner: s.owner, epoch: s.logs[log].epoch}
}

// Place implements logs.Positions.
func (p *Positions) Place(name string) string {
	return fmt.Sprintf("the row of troupe.positions with kind '%s', name '%s' and log %d", p.kind, name, p.log)
}

// query performs one or more statements.
func (p *Positions) query(what string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), positionTimeout)
	defer cancel()
	err := f(ctx)
	if err == nil || errors.Is(err, logs.ErrNotOwner) {
		return err
	}
	return fmt.Errorf("%s of %s: %w", what, p.kind, explain(err))
}

// owned is true while the process has the log $1 under the epoch $2, as the owner $3.
const owned = "EXISTS (SELECT 1 FROM troupe.logs l WHERE l.log = $1 AND l.epoch = $2 AND l.owner = $3)"

// Read implements logs.Positions. What a former owner of the log writes later is refused.
func (p *Positions) Read(name string) (value []byte, ok bool, err error) {
	err = p.query("position "+name, func(ctx context.Context) error {
		// The row is locked, so a write that is under way is waited for, and one that comes later finds the epoch.
		err := p.store.positions.QueryRow(ctx, "UPDATE troupe.positions SET epoch = $2, write = 0 WHERE log = $1 AND kind = $4 AND name = $5 AND epoch <= $2 AND "+owned+" RETURNING value",
			p.log, p.epoch, p.owner, p.kind, name).Scan(&value)
		if ok = err == nil; !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		var mine bool
		err = p.store.positions.QueryRow(ctx, "SELECT "+owned, p.log, p.epoch, p.owner).Scan(&mine)
		if err == nil && !mine {
			return logs.ErrNotOwner
		}
		return err
	})
	return value, ok, err
}

// Write implements logs.Positions.
func (p *Positions) Write(name string, value []byte) error {
	write := p.last.Add(1)
	return p.query("position "+name, func(ctx context.Context) error {
		done, err := p.store.positions.Exec(ctx, `INSERT INTO troupe.positions AS p (log, epoch, kind, name, write, value)
			SELECT $1::int2, $2::int8, $4::text, $5::text, $6::int8, $7::bytea WHERE `+owned+`
			ON CONFLICT (kind, name, log) DO UPDATE SET epoch = excluded.epoch, write = excluded.write, value = excluded.value
			WHERE (p.epoch, p.write) <= (excluded.epoch, excluded.write)`,
			p.log, p.epoch, p.owner, p.kind, name, write, value)
		if err == nil && done.RowsAffected() == 0 {
			return logs.ErrNotOwner
		}
		return err
	})
}

// Remove implements logs.Positions.
func (p *Positions) Remove(name string) error {
	return p.query("removal of the position "+name, func(ctx context.Context) error {
		_, err := p.store.positions.Exec(ctx, "DELETE FROM troupe.positions WHERE log = $1 AND kind = $4 AND name = $5 AND epoch <= $2 AND "+owned, p.log, p.epoch, p.owner, p.kind, name)
		return err
	})
}

// Names implements logs.Positions.
func (p *Positions) Names() (all []string, err error) {
	err = p.query("names", func(ctx context.Context) error {
		rows, err := p.store.positions.Query(ctx, `SELECT name FROM troupe.positions WHERE log = $1 AND kind = $2 ORDER BY name COLLATE "C"`, p.log, p.kind)
		if err == nil {
			all, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return err
	})
	return all, err
}
