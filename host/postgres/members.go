// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/placement"
)

// members is the placement.Table of a database, over one connection that it opens again after a failure.
type members struct {
	config  *pgx.ConnConfig
	conn    *pgx.Conn // nil: none
	timeout time.Duration
	last    []Reached // with a lease, in the last answer
}

// Reached is a member with a lease, and where it is reached.
type Reached struct{ Member, Address string }

var _ placement.Table = (*members)(nil)

// do runs a statement on the connection, which is closed if that fails.
func (m *members) do(f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), m.timeout)
	defer cancel()
	if m.conn == nil {
		c, err := pgx.ConnectConfig(ctx, m.config)
		if err != nil {
			return err
		}
		m.conn = c
	}
	err := f(ctx, m.conn)
	if err != nil {
		m.close()
	}
	return err
}

func (m *members) close() {
	if m.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), m.timeout)
		defer cancel()
		_ = m.conn.Close(ctx)
		m.conn = nil
	}
}

// Beat implements placement.Table.
func (m *members) Beat(r placement.Request) (a placement.Answer, err error) {
	err = m.do(func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `SELECT log, owner, address, epoch, live, coalesce((SELECT m.leaving FROM troupe.members m WHERE m.member = $1), false)
			FROM troupe.beat($1, $2, $3, $4, $5)`, r.Member, r.Address, r.TTL, r.Joined, r.Want)
		if err != nil {
			return err
		}
		a.Owners, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (o placement.Owner, err error) {
			var epoch int64
			err = row.Scan(&o.Log, &o.Member, &o.Address, &epoch, &a.Members, &a.Leaving)
			if o.Member != "" { // an epoch without an owner says nothing
				o.Epoch = actor.Epoch(epoch)
			}
			return o, err
		})
		a.Renewed = len(a.Owners) > 0
		if err != nil || !a.Renewed {
			return err
		}
		if rows, err = c.Query(ctx, "SELECT member, address FROM troupe.members WHERE lease_until > clock_timestamp() ORDER BY member"); err == nil {
			m.last, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Reached])
		}
		return err
	})
	return a, err
}

// Release implements placement.Table.
func (m *members) Release(member string, log uint16, epoch actor.Epoch) error {
	return m.do(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "UPDATE troupe.logs SET owner = '' WHERE log = $1 AND owner = $2 AND epoch = $3", log, member, int64(epoch))
		return err
	})
}

// leave removes a member and releases its logs, in one statement: no other member gets a part of them.
func (m *members) leave(member string) error {
	return m.do(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "WITH left_logs AS (UPDATE troupe.logs SET owner = '' WHERE owner = $1) DELETE FROM troupe.members WHERE member = $1", member)
		return err
	})
}

// MemberInfo is a process of a cluster for people.
type MemberInfo struct {
	Member  string    `json:"member"`
	Address string    `json:"address"`
	Logs    int       `json:"logs"`     // that it owns
	Leaving bool      `json:"leaving"`  // asked to leave; see Drain
	LeaseMS int64     `json:"lease_ms"` // left; negative: it is over
	Since   time.Time `json:"since"`
}

// ClusterInfo is a cluster for people.
type ClusterInfo struct {
	Name    string // empty: the store belongs to none
	Logs    int
	Members []MemberInfo // the longest first
}

// Placed reports whether each log has an owner.
func (c *ClusterInfo) Placed() bool {
	owned := 0
	for _, m := range c.Members {
		owned += m.Logs
	}
	return owned == c.Logs
}

// Members returns the cluster that a store belongs to.
func Members(url string) (x ClusterInfo, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("store %s: %w", Shown(url), explain(err))
		}
	}()
	config, err := parse(url, applicationName+" list")
	if err != nil {
		return x, err
	}
	m := members{config: config, timeout: connectTimeout}
	defer m.close()
	err = m.do(func(ctx context.Context, c *pgx.Conn) error {
		if err := checkSchema(ctx, c); err != nil {
			return err
		}
		if err := c.QueryRow(ctx, "SELECT cluster, logs FROM troupe.store").Scan(&x.Name, &x.Logs); err != nil {
			return err
		}
		rows, err := c.Query(ctx, `SELECT m.member, m.address, (SELECT count(*) FROM troupe.logs l WHERE l.owner = m.member AND m.lease_until > clock_timestamp()), m.leaving,
			(extract(epoch FROM m.lease_until - clock_timestamp()) * 1000)::bigint, m.since FROM troupe.members m ORDER BY m.since, m.member`)
		if err != nil {
			return err
		}
		x.Members, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (i MemberInfo, err error) {
			err = row.Scan(&i.Member, &i.Address, &i.Logs, &i.Leaving, &i.LeaseMS, &i.Since)
			return i, err
		})
		return err
	})
	return x, err
}

// ErrLast is the error of Drain for a member that no other one could follow.
var ErrLast = errors.New("no other orchestrator could take over: start one first")

// Times of Drain.
const (
	drainPoll     = 100 * time.Millisecond
	drainPatience = 3 * time.Second // for a beat of a member that could follow
)

// Drain asks a member to leave: it hands its log over, as it does when it is stopped, and ends. It returns an error if
// there is no such member, or no other one that could follow. Members shows when it has left.
func Drain(url, member string) error {
	config, err := parse(url, applicationName+" drain")
	if err != nil {
		return fmt.Errorf("store %s: %w", Shown(url), err)
	}
	m := members{config: config, timeout: connectTimeout}
	defer m.close()
	err = m.do(func(ctx context.Context, c *pgx.Conn) error {
		if err := checkSchema(ctx, c); err != nil {
			return err
		}
		var past time.Time
		if err := c.QueryRow(ctx, "SELECT greatest(max(lease_until), clock_timestamp()) FROM troupe.members WHERE member <> $1 AND NOT leaving", member).Scan(&past); err != nil {
			return err
		}
		for began := time.Now(); ; {
			var answer string
			if err := c.QueryRow(ctx, "SELECT troupe.drain($1, $2)", member, past).Scan(&answer); err != nil {
				return err
			}
			switch {
			case answer == "unknown":
				return fmt.Errorf("no member is named %q", member)
			case answer == "asked":
				return nil
			case time.Since(began) > drainPatience:
				return ErrLast
			}
			<-time.After(drainPoll)
		}
	})
	if err != nil {
		return fmt.Errorf("store %s: %w", Shown(url), explain(err))
	}
	return nil
}

// checkSchema returns an error if the database has another schema than that of this program.
func checkSchema(ctx context.Context, c *pgx.Conn) error {
	version, err := schemaVersion(ctx, c)
	if err != nil {
		return err
	}
	if known, err := migrations(); err == nil && version != len(known) {
		return errors.New("the database holds no store of this version: start an orchestrator once")
	}
	return nil
}
