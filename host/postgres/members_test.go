// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package postgres

import (
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

var _ placement.Table = (*members)(nil)
