// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/internal/postgrestest"
	"github.com/troupe-run/troupe/placement"
	"github.com/troupe-run/troupe/placement/placementtest"
)

// The table of members in a database conforms to the rules that the simulator's table follows too.
func TestMembersConform(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s, err := Open(url, "n1", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	placementtest.Run(t, func(logs int) placementtest.World {
		server.Exec(url, "DELETE FROM troupe.members")
		server.Exec(url, "DELETE FROM troupe.logs")
		server.Exec(url, "INSERT INTO troupe.logs (log) SELECT generate_series(0, $1::int)", logs-1)
		config, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		table := &members{config: config, timeout: time.Minute}
		return placementtest.World{
			Table: table,
			// A lease runs out when its time is moved into the past: the clock of the server cannot be.
			Expire: func(member string) {
				server.Exec(url, "UPDATE troupe.members SET lease_until = clock_timestamp() - interval '1 s' WHERE member = $1", member)
			},
			Close: table.close,
		}
	})
}

// A member that is gone may have left many connections, one of them with locks. The claim of its logs takes no longer than
// its successor waits for a beat.
func TestClaimEndsManyConnections(t *testing.T) {
	server := postgrestest.Start(t)
	url := server.Database()
	s, err := Open(url, "n1", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	table := &members{config: config, timeout: quick.TTL}
	defer table.close()
	if _, err := table.Beat(placement.Request{Member: "gone", TTL: quick.TTL, Want: 16}); err != nil {
		t.Fatal(err)
	}
	name, err := parse(url, applicationName+" gone")
	if err != nil {
		t.Fatal(err)
	}
	var left []*pgx.Conn
	for range 40 {
		c, err := pgx.ConnectConfig(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, c)
	}
	if _, err := left[0].Exec(t.Context(), "BEGIN; SELECT 1 FROM troupe.logs FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	server.Exec(url, "UPDATE troupe.members SET lease_until = clock_timestamp() - interval '1 s'")
	a, err := table.Beat(placement.Request{Member: "next", TTL: quick.TTL, Want: 16})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range a.Owners {
		if o.Member != "next" {
			t.Errorf("log %d belongs to %q", o.Log, o.Member)
		}
	}
	for n, c := range left {
		if err := c.Ping(t.Context()); err == nil {
			t.Errorf("connection %d of the removed member is open", n)
		}
		c.Close(context.Background()) //nolint:errcheck // the server has closed it
	}
}

var _ placement.Table = (*members)(nil)
