// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed schema/*.sql
var schema embed.FS

// migrations returns the statements of the schema, the first makes version 1.
func migrations() (all []string, err error) {
	names, err := fs.Glob(schema, "schema/*.sql") // sorted
	for i, name := range names {
		text, readErr := schema.ReadFile(name)
		if readErr != nil {
			return nil, readErr
		}
		if n, err := strconv.Atoi(strings.SplitN(strings.TrimPrefix(name, "schema/"), "_", 2)[0]); err != nil || n != i+1 {
			return nil, fmt.Errorf("%s: has no number or the wrong one", name)
		}
		all = append(all, string(text))
	}
	return all, err
}

// schemaLock is the advisory lock that a process which migrates, or makes a store, holds until its transaction ends.
const schemaLock = 0x74726f757065 // "troupe"

// migrate brings the schema to the version of this program, in one transaction. A newer schema is refused.
func migrate(ctx context.Context, c *pgx.Conn) error {
	all, err := migrations()
	if err != nil {
		return err
	}
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after the commit it does nothing
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", schemaLock); err != nil {
		return err
	}
	version, err := schemaVersion(ctx, tx)
	if err != nil {
		return err
	}
	if version > len(all) {
		return newerSchema(version, len(all))
	}
	if version == len(all) {
		return tx.Commit(ctx)
	}
	if version == 0 {
		if _, err := tx.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS troupe; CREATE TABLE troupe.schema (version int NOT NULL); INSERT INTO troupe.schema VALUES (0)"); err != nil {
			return err
		}
	}
	for i := version; i < len(all); i++ {
		if _, err := tx.Exec(ctx, all[i]); err != nil {
			return fmt.Errorf("schema version %d: %w", i+1, err)
		}
	}
	if _, err := tx.Exec(ctx, "UPDATE troupe.schema SET version = $1", len(all)); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func newerSchema(version, known int) error {
	return fmt.Errorf("the database has schema version %d, this program knows %d: use the newer program", version, known)
}

// schemaVersion returns 0 for a database without the schema.
func schemaVersion(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (version int, err error) {
	var exists bool
	if err = q.QueryRow(ctx, "SELECT to_regclass('troupe.schema') IS NOT NULL").Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = q.QueryRow(ctx, "SELECT max(version) FROM troupe.schema").Scan(&version)
	return version, err
}
