// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// versionMin is the lowest version of PostgreSQL, as in server_version_num.
const versionMin = 150000

// connectTimeout bounds one attempt to connect.
const connectTimeout = 5 * time.Second

// applicationName prefixes the name under which PostgreSQL shows the connections.
const applicationName = "troupe"

// IsURL reports whether a text names a database, not a folder.
func IsURL(s string) bool {
	return strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://")
}

// Shown returns a database URL without its password.
func Shown(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "postgres://…" // what cannot be parsed may hold a password anywhere
	}
	q := u.Query()
	if q.Has("password") {
		q.Set("password", "xxxxx")
		u.RawQuery = q.Encode()
	}
	return u.Redacted()
}

// parse returns the configuration of connections.
func parse(text, name string) (*pgx.ConnConfig, error) {
	c, err := pgx.ParseConfig(text)
	if err != nil {
		// The error of pgx repeats the URL; its password is masked there, but not in each form.
		return nil, errors.New("is not a database URL: write postgres://USER@HOST:PORT/DATABASE, and the password in PGPASSWORD or ~/.pgpass")
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	set := func(key, value string) {
		if _, ok := c.RuntimeParams[key]; !ok {
			c.RuntimeParams[key] = value
		}
	}
	c.RuntimeParams["application_name"] = name
	// The server notices within seconds that a client is gone, whose row locks would stop its successor.
	set("tcp_keepalives_idle", "5")
	set("tcp_keepalives_interval", "2")
	set("tcp_keepalives_count", "3")
	set("idle_in_transaction_session_timeout", "30000")
	return c, nil
}

// check refuses a server on which a store would not be safe, and says what to change.
func check(ctx context.Context, c *pgx.Conn) error {
	var version, sync, readOnly string
	var recovering bool
	var pid uint32
	err := c.QueryRow(ctx, `SELECT current_setting('server_version_num'), current_setting('synchronous_commit'),
		current_setting('default_transaction_read_only'), pg_is_in_recovery(), pg_backend_pid()`).Scan(&version, &sync, &readOnly, &recovering, &pid)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(version)
	switch {
	case err != nil:
		return fmt.Errorf("server version %q is not understood", version)
	case n < versionMin:
		return fmt.Errorf("PostgreSQL %d is too old: use version %d or later", n/10000, versionMin/10000)
	case recovering:
		return errors.New("the server is a standby, which accepts no writes: connect to the primary server")
	case readOnly == "on":
		return errors.New("transactions are read-only: set default_transaction_read_only = off for this role and database")
	case sync == "off":
		return errors.New("synchronous_commit is off, so a crash of the server would lose acknowledged work: set synchronous_commit = on for this role and database")
	}
	var again uint32
	if err := c.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&again); err != nil {
		return err
	}
	if again != pid || c.PgConn().PID() != 0 && again != c.PgConn().PID() {
		return errors.New("the connection goes through a pooler that changes servers between transactions: connect to PostgreSQL itself, or use a pool in session mode")
	}
	return nil
}

// explain returns a connection error as a sentence that says what to change.
func explain(err error) error {
	var p *pgconn.PgError
	if errors.As(err, &p) {
		switch p.Code {
		case "28P01", "28000":
			return fmt.Errorf("the database refuses the user: %s: check the user, and its password in PGPASSWORD or ~/.pgpass", p.Message)
		case "3D000":
			return fmt.Errorf("%s: create it with: createdb NAME", p.Message)
		case "42501":
			return fmt.Errorf("the user may not do this: %s: the first start needs CREATE on the database", p.Message)
		case "53300":
			return fmt.Errorf("%s: raise max_connections", p.Message)
		}
		return fmt.Errorf("%s (SQLSTATE %s)", p.Message, p.Code)
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return fmt.Errorf("no database answers at %s: %w", dial.Addr, dial.Err)
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return fmt.Errorf("the name %q of the database server is not known", dns.Name)
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return errors.Unwrap(connect)
	}
	return err
}

// passes reports whether an error goes away by itself: the server is away, starts, has no space or
// ended the transaction for another.
func passes(err error) bool {
	var p *pgconn.PgError
	if errors.As(err, &p) {
		switch p.Code[:2] {
		case "08", "53", "57", "58", "40", "55":
			return true // connection, resources, operator, system, rollback, not in the needed state
		}
		return p.Code == "25006" || p.Code == "72000" // the server became a standby; snapshot too old
	}
	return err != nil // of the connection
}

// lost reports whether an answer was lost with the connection.
func lost(err error) bool {
	var p *pgconn.PgError
	return err != nil && (!errors.As(err, &p) || p.Severity == "FATAL" || p.Severity == "PANIC")
}
