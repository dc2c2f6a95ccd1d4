// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
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

// shownParameters are the parameters of a URL that are never secret.
var shownParameters = []string{"sslmode", "host", "port", "target_session_attrs"}

// Shown returns a database URL without what may be secret.
func Shown(s string) string {
	u, err := url.Parse(s)
	if err != nil || !IsURL(s) {
		return "postgres://…" // what cannot be parsed may hold a password anywhere
	}
	q := u.Query()
	for name := range q {
		if !slices.Contains(shownParameters, name) {
			q.Del(name)
		}
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawQuery: q.Encode()}
	if u.User != nil {
		shown.User = url.User(u.User.Username())
	}
	return shown.String()
}

// settings make the server notice within seconds that a client is gone, whose row locks would stop its
// successor.
var settings = []struct{ name, value string }{
	{"tcp_keepalives_idle", "5"}, {"tcp_keepalives_interval", "2"}, {"tcp_keepalives_count", "3"}, {"idle_in_transaction_session_timeout", "30000"},
	{"idle_session_timeout", "0"}, {"statement_timeout", "0"}, // the connection holds the lock of the store
}

// parse returns the configuration of connections.
func parse(text, name string) (*pgx.ConnConfig, error) {
	c, err := pgx.ParseConfig(text)
	if err != nil || !IsURL(text) {
		// The error of pgx repeats the URL; its password is masked there, but not in each form.
		return nil, errors.New("is not a database URL: write postgres://USER@HOST:PORT/DATABASE, and the password in PGPASSWORD or ~/.pgpass")
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	c.RuntimeParams["application_name"] = name
	// Not at the start of a connection: poolers refuse parameters there that they do not know.
	var set strings.Builder
	for _, p := range settings {
		if _, given := c.RuntimeParams[p.name]; !given {
			fmt.Fprintf(&set, "SET %s = %s;", p.name, p.value)
		}
	}
	c.AfterConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		_, err := c.Exec(ctx, set.String()).ReadAll()
		return err
	}
	return c, nil
}

// The statements of check and checkPooler are not prepared, because a pooler would fail them.

// check refuses a server on which a store would not be safe, and says what to change. It returns the
// process of the server that this connection has.
func check(ctx context.Context, c *pgx.Conn) (pid int32, err error) {
	var version, sync, readOnly string
	var recovering bool
	err = c.QueryRow(ctx, `SELECT current_setting('server_version_num'), current_setting('synchronous_commit'),
		current_setting('default_transaction_read_only'), pg_is_in_recovery(), pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&version, &sync, &readOnly, &recovering, &pid)
	if err != nil {
		return pid, err
	}
	n, err := strconv.Atoi(version)
	switch {
	case err != nil:
		return pid, fmt.Errorf("server version %q is not understood", version)
	case n < versionMin:
		return pid, fmt.Errorf("PostgreSQL %d is too old: use version %d or later", n/10000, versionMin/10000)
	case recovering:
		return pid, errors.New("the server is a standby, which accepts no writes: connect to the primary server")
	case readOnly == "on":
		return pid, errors.New("transactions are read-only: set default_transaction_read_only = off for this role and database")
	case sync == "off":
		return pid, errors.New("synchronous_commit is off, so a crash of the server would lose acknowledged work: set synchronous_commit = on for this role and database")
	}
	return pid, nil
}

// checkPooler refuses a pooler that gives a connection of a client away after each transaction: of two
// open connections both would have the same process of the server.
func checkPooler(ctx context.Context, c *pgx.ConnConfig, pid int32) error {
	second, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return err
	}
	defer second.Close(ctx) //nolint:errcheck // it only asked
	var other int32
	if err := second.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&other); err != nil {
		return err
	}
	if other == pid {
		return errors.New("the connection goes through a pooler in transaction mode: connect to PostgreSQL itself, or use a pool in session mode")
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
