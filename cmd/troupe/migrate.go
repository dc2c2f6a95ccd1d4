// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/internal/node"
)

// MigrateCmd copies a store from a folder into a database, or back.
type MigrateCmd struct {
	From string `required:"" placeholder:"STORE" help:"Data folder, or URL of a PostgreSQL database; no server may be using it. A folder gets a note of where its store is now."`
	To   string `required:"" placeholder:"STORE" help:"Likewise, to create: an absent folder, or a database without a store."`
}

// Help returns the text shown below the flags.
func (MigrateCmd) Help() string {
	return `Copies all sessions, runs, agents, tools, keys, and the secret of run tokens, and the whole log, whose chain it verifies and makes anew: a database has 16 logs, a folder one. Runs that are open continue at the new place, and so do the webhooks and traces of a folder whose store goes to a database. Clients that follow the events of a session begin there anew. Files beside a store stay in their folder: the configuration, backups, and the socket.

Examples:
  troupe migrate --from data --to postgres://troupe@db.example/troupe
  troupe migrate --from postgres://troupe@db.example/troupe --to restored`
}

// Run executes the command.
func (c *MigrateCmd) Run(s streams) error {
	from, to := postgres.IsURL(c.From), postgres.IsURL(c.To)
	switch {
	case from == to:
		return errors.New("want a data folder and the URL of a PostgreSQL database, such as: troupe migrate --from data --to postgres://troupe@db.example/troupe")
	case to:
		return c.intoDatabase(s)
	}
	return c.intoFolder(s)
}

func (c *MigrateCmd) intoDatabase(s streams) error {
	batches, err := node.Positions(c.From)
	if err != nil {
		return err
	}
	end, moved, err := postgres.FromFolder(c.To, c.From, batches, warnings(s.err), scanProgress(s.err))
	if err != nil {
		return storeError(c.From, err, "stop it first")
	}
	if err := node.MovePositions(c.From, c.To, moved); err != nil {
		return err
	}
	if err := node.MarkPlace(c.From, c.To); err != nil {
		return err
	}
	to := postgres.Shown(c.To)
	fmt.Fprintf(s.out, "%s holds the store of %s: %d batches, %d entries. Serve it with: troupe serve --data %s --store %s\n", to, c.From, end.Batch, end.Pos, shellQuote(c.From), shellQuote(to))
	return nil
}

func (c *MigrateCmd) intoFolder(s streams) error {
	end, err := postgres.IntoFolder(c.To, c.From, warnings(s.err), scanProgress(s.err))
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "%s holds the store: %d batches, %d entries. Serve it with: troupe serve --data %s\n", c.To, end.Batch, end.Pos, shellQuote(c.To))
	return nil
}
