// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// Options are the options of a store. The zero value is for production.
type Options struct {
	// Logger receives outages and their ends; nil discards them.
	Logger *slog.Logger
	// Fatal receives the reason why the log can no longer be written. It MUST NOT return. nil prints the
	// line and ends the process.
	Fatal func(line string)
	// ReadOnly opens the store beside the process that writes it. It accepts no batches.
	ReadOnly bool
	// Idle refuses a read-only open beside a process that writes.
	Idle bool
	// logs is the number of logs of a new store; 0 means NewLogs.
	logs int
	// Cluster is the cluster of the process, which adopts logs; nil: the store is of one process, which writes all.
	Cluster *Cluster
}

// Store is an open store. It is a store.KV and a store.Reader, safe for concurrent use, and the
// store.Logs of its node.
type Store struct {
	keys
	store.Rows
	url     string
	node    actor.NodeID
	options Options
	logger  *slog.Logger
	config  *pgx.ConnConfig
	secret  []byte
	cluster string         // that the store belongs to; empty: none
	ends    []store.LogEnd // of the logs, by number, at the time the store was opened

	down   atomic.Pointer[outage] // nil while the database accepts writes
	probed atomic.Int64           // when the last probe began, in ns
	probes sync.WaitGroup

	synchronous atomic.Bool               // commits waited for a standby at the last probe
	closing     atomic.Pointer[time.Time] // when the node began to stop

	positions *pgxpool.Pool // for positions of readers; nil before Open

	forgotten sync.Mutex // protects Rows.Index, which has the deleted sessions whose rows are left

	writing sync.Mutex // protects what follows
	conn    *pgx.Conn  // may be closed
	pid     int32      // process of the server that the last connection had
	owner   string
	logs    []ownedLog
	index   *store.Index // empty between two batches
	pending *transaction // whose AppendAll has not returned nil; nil if there is none
}

// ownedLog is a log as this process writes it.
type ownedLog struct {
	node  actor.NodeID // its name
	epoch int64        // 0: it is not written by this process
	head  store.Mark
}

var (
	_ store.ManyGetter = (*Store)(nil)
	_ store.Logs       = (*Store)(nil)
	_ store.Forgetter  = (*Store)(nil)
	_ store.Reader     = (*Store)(nil)
)

// InUseError reports that another process writes the store.
type InUseError struct{ Owner string }

// Error implements error.
func (e InUseError) Error() string { return "is in use by " + e.Owner + ": end that process first" }

// writerLock is the advisory lock that the connection of the writing process holds. It tells a second
// process at its start; the row of the log is what keeps it from writing.
const writerLock = schemaLock + 1

// claimPatience is the time for which a start waits for the connection of a killed process to end.
const claimPatience = 12 * time.Second

// endPatience is the time for which a read-only open waits for the connection of a process that has just ended.
const endPatience = time.Second

// Open opens the store of a node in a database. It makes the tables in a database that has none. In a
// read-only open, node may be empty: then the store of any node is accepted.
func Open(url string, node actor.NodeID, o Options) (_ *Store, err error) {
	s := &Store{url: Shown(url), node: node, options: o, logger: o.Logger}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			s.release()
			err = fmt.Errorf("store %s: %w", s.url, explain(err))
		}
	}()
	host, _ := os.Hostname()
	s.owner = fmt.Sprintf("process %d at %s", os.Getpid(), host)
	of := string(node)
	if o.Cluster != nil {
		of, s.owner = o.Cluster.name, o.Cluster.name
	}
	if s.config, err = parse(url, applicationName+" "+of); err != nil {
		return nil, err
	}
	ctx := context.Background()
	if s.conn, err = pgx.ConnectConfig(ctx, s.config); err != nil {
		return nil, err
	}
	if s.pid, err = check(ctx, s.conn); err != nil {
		return nil, err
	}
	if err := checkPooler(ctx, s.config, s.pid); err != nil {
		return nil, err
	}
	if o.ReadOnly {
		version, err := schemaVersion(ctx, s.conn)
		if all, failed := migrations(); err == nil && failed == nil && version > len(all) {
			err = newerSchema(version, len(all))
		} else if err == nil && version < len(all) {
			err = errors.New("the database holds no store of this version: start the server once")
		}
		if err != nil {
			return nil, err
		}
	}
	if (!o.ReadOnly || o.Idle) && o.Cluster == nil {
		if err := s.lock(ctx); err != nil {
			return nil, err
		}
	}
	if !o.ReadOnly && o.Cluster == nil {
		if err := migrate(ctx, s.conn); err != nil {
			return nil, err
		}
	}
	if err := s.identify(ctx); err != nil {
		return nil, err
	}
	if err := s.checkCluster(ctx); err != nil {
		return nil, err
	}
	if s.keys, err = openKeys(ctx, s.config); err != nil {
		return nil, err
	}
	s.keys.away = s.note
	if s.positions, err = openPool(ctx, s.config, positionConnections); err != nil {
		return nil, err
	}
	s.Rows = store.Rows{KV: s, Index: store.NewIndex(store.IndexConfig{}), Logs: len(s.logs), With: s.withIndex}
	if err := s.claim(ctx); err != nil {
		return nil, err
	}
	if err := store.CheckFormat(s); err != nil {
		return nil, err
	}
	for i := range s.logs {
		l := &s.logs[i]
		end := store.LogEnd{Node: l.node, Anchor: store.Anchor{End: l.head}}
		if o.Cluster == nil {
			if end.End, err = store.Verify(s, l.node, l.head); err != nil {
				return nil, err
			}
			if end.Origin, err = store.Origin(s, l.node); err != nil {
				return nil, err
			}
		}
		s.ends = append(s.ends, end)
	}
	if o.Cluster != nil { // other processes may write until Adopt
		for i := range s.logs {
			s.logs[i].epoch = 0
		}
		s.index = store.NewIndex(store.IndexConfig{})
		o.Cluster.writer.Store(s)
		return s, nil
	}
	if s.index, err = store.RecoverIndex(s, store.IndexConfig{}, nil); err != nil {
		return nil, err
	}
	s.index.Clear()
	s.Rows.Index = s.index.TakeForgotten()
	return s, nil
}

// checkCluster refuses a store that a cluster may write at any time.
func (s *Store) checkCluster(ctx context.Context) error {
	switch {
	case s.cluster == "" || s.options.Cluster != nil:
		return nil
	case !s.options.ReadOnly:
		return fmt.Errorf("belongs to the cluster %q: give --cluster %[1]s, or ask a process of the cluster", s.cluster)
	case !s.options.Idle:
		return nil
	}
	var owner string
	err := s.conn.QueryRow(ctx, "SELECT member FROM troupe.members WHERE lease_until > clock_timestamp() LIMIT 1").Scan(&owner)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	} else if err != nil {
		return err
	}
	return InUseError{fmt.Sprintf("%s of the cluster %q", owner, s.cluster)}
}

// withIndex runs a function that reads the index for readers.
func (s *Store) withIndex(read func()) {
	s.forgotten.Lock()
	defer s.forgotten.Unlock()
	read()
}

// stored notes that a transaction is stored.
func (s *Store) stored(all *store.Transaction) {
	s.pending = nil
	for i := range all.Batches {
		b := &all.Batches[i]
		s.logs[b.Log].head = b.Mark()
		s.withIndex(func() { s.Rows.Index.AddForgotten(b) })
	}
}

// lock waits until no other process writes the store.
func (s *Store) lock(ctx context.Context) error {
	patience := claimPatience
	if s.options.ReadOnly {
		patience = endPatience
	}
	for end := time.Now().Add(patience); ; time.Sleep(readAgain) {
		var locked bool
		if err := s.conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(writerLock)).Scan(&locked); err != nil || locked {
			return err
		}
		if time.Now().Before(end) {
			continue
		}
		owner := "another process"
		if err := s.conn.QueryRow(ctx, "SELECT owner FROM troupe.logs WHERE log = 0").Scan(&owner); err != nil {
			owner = "another process"
		}
		return InUseError{owner}
	}
}

// identify reads the row of the store, or writes it into a new store.
func (s *Store) identify(ctx context.Context) error {
	var node, format string
	var logCount int
	query := func() error {
		return s.conn.QueryRow(ctx, "SELECT node, logs, format, secret, cluster FROM troupe.store").Scan(&node, &logCount, &format, &s.secret, &s.cluster)
	}
	err := query()
	if errors.Is(err, pgx.ErrNoRows) && !s.options.ReadOnly {
		if err := s.makeStore(ctx); err != nil {
			return err
		}
		err = query()
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return errors.New("the database holds no store: start the server once")
	case err != nil:
		return err
	case s.node == "":
		s.node = actor.NodeID(node)
	case node != string(s.node):
		return fmt.Errorf("belongs to node %q, not to %q: start with --node %s, or use another database", node, s.node, node)
	}
	if s.logs, err = logsOf(s.node, logCount); err != nil {
		return err
	}
	if format != string(store.FormatRow().Value) {
		return fmt.Errorf("has format %s, this program reads format %s", format, store.FormatRow().Value)
	}
	return nil
}

// makeStore writes the row of a new store, unless another process that starts at the same time has done so.
func (s *Store) makeStore(ctx context.Context) error {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after the commit it does nothing
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", schemaLock); err != nil {
		return err
	}
	var made, rows bool
	if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM troupe.store), EXISTS (SELECT 1 FROM troupe.kv)").Scan(&made, &rows); err != nil || made {
		return err
	}
	if rows {
		return errIncomplete
	}
	logs := cmp.Or(s.options.logs, NewLogs)
	if _, err := logsOf(s.node, logs); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO troupe.logs (log) SELECT generate_series(1, $1::int)", logs-1); err != nil {
		return err
	}
	if err := insertStore(ctx, tx, s.node, logs, secret); err != nil {
		return err
	}
	row := store.FormatRow()
	if _, err := tx.Exec(ctx, "INSERT INTO troupe.kv VALUES ($1, $2)", row.Key, row.Value); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// NewLogs is the number of logs of a new store. A log has one owner, so it is the number of processes that could ever
// share the work, and each transaction writes a row for each log that it has entries of.
const NewLogs = 16

// logsMax is the maximum number of logs.
const logsMax = 64

// logsOf returns the logs of a store. The first has the name of the node.
func logsOf(node actor.NodeID, count int) (all []ownedLog, err error) {
	if count < 1 || count > logsMax {
		return nil, fmt.Errorf("has %d logs, this program reads stores with 1 to %d: use the newer program", count, logsMax)
	}
	for log := range count {
		name := node
		if log > 0 {
			name = actor.NodeID(fmt.Sprintf("%s.%02d", node, log))
		}
		if err := actor.CheckName(string(name)); err != nil {
			return nil, fmt.Errorf("the name of the node is too long for the names of its logs: %w", err)
		}
		all = append(all, ownedLog{node: name})
	}
	return all, nil
}

// head is the row of a log.
type head struct {
	log   int16
	owner string
	epoch int64
	mark  store.Mark
}

func (h *head) scan(row pgx.Row) error {
	var batch, pos int64
	var hash []byte
	if err := row.Scan(&h.log, &h.owner, &h.epoch, &batch, &pos, &hash); err != nil {
		return err
	}
	h.mark = store.Mark{Batch: uint64(batch), Pos: store.Pos(pos)}
	if len(hash) != 0 && copy(h.mark.Hash[:], hash) != len(h.mark.Hash) {
		return fmt.Errorf("troupe.logs: hash of %d bytes", len(hash))
	}
	return nil
}

// claim makes this process the one that writes the logs. In a cluster, its table decides that.
func (s *Store) claim(ctx context.Context) error {
	query := "SELECT log, owner, epoch, batch, pos, hash FROM troupe.logs"
	args := []any{}
	if !s.options.ReadOnly && s.options.Cluster == nil {
		query = "UPDATE troupe.logs SET owner = $1, epoch = epoch + 1, since = now() RETURNING log, owner, epoch, batch, pos, hash"
		args = append(args, s.owner)
	}
	rows, err := s.conn.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	heads, err := pgx.CollectRows(rows, collectHead)
	if err != nil {
		return err
	}
	if len(heads) != len(s.logs) {
		return fmt.Errorf("troupe.logs has %d rows, want one for each of the %d logs", len(heads), len(s.logs))
	}
	for i := range heads {
		h := &heads[i]
		if h.log < 0 || int(h.log) >= len(s.logs) {
			return fmt.Errorf("troupe.logs: there is no log %d", h.log)
		}
		s.logs[h.log].epoch, s.logs[h.log].head = h.epoch, h.mark
	}
	return nil
}

func collectHead(row pgx.CollectableRow) (h head, err error) {
	err = h.scan(row)
	return h, err
}

// readHeads reads the rows of the logs that a transaction moves, in its order, which is that of their numbers.
// It waits for a transaction that still holds a row, at most for lockPatience.
func (s *Store) readHeads(ctx context.Context, moves []move) (heads []head, err error) {
	var logs []int16
	for i := range moves {
		logs = append(logs, moves[i].log)
	}
	var b pgx.Batch
	b.Queue("BEGIN")
	b.Queue("SET LOCAL lock_timeout = '" + lockPatience + "'")
	b.Queue("SELECT log, owner, epoch, batch, pos, hash FROM troupe.logs WHERE log = ANY($1::int2[]) ORDER BY log FOR UPDATE", logs).Query(func(rows pgx.Rows) error {
		heads, err = pgx.CollectRows(rows, collectHead)
		return err
	})
	b.Queue("COMMIT")
	if err = s.conn.SendBatch(ctx, &b).Close(); err != nil {
		_ = s.conn.Close(ctx)
		return nil, err
	}
	if len(heads) != len(moves) {
		return nil, fmt.Errorf("troupe.logs has %d of %d rows", len(heads), len(moves))
	}
	return heads, nil
}

// reconnect connects again if the connection is lost. The backend of the old one is ended first: it may
// still hold the locks of a transaction whose client is gone, which no time-out of PostgreSQL ends.
func (s *Store) reconnect() error {
	if !s.conn.IsClosed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, s.config)
	if err != nil {
		return err
	}
	pid, err := check(ctx, conn)
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND application_name = $2 AND pid <> pg_backend_pid()",
			s.pid, s.config.RuntimeParams["application_name"])
	}
	locked := s.options.Cluster != nil // leases take the place of the lock
	if err == nil && !locked {
		err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(writerLock)).Scan(&locked)
	}
	if err == nil && !locked {
		// The old backend is ending, or another process has the store. The row of the log decides.
		var h head
		err = h.scan(conn.QueryRow(ctx, "SELECT log, owner, epoch, batch, pos, hash FROM troupe.logs WHERE log = 0"))
		if err == nil && h.owner == s.owner && h.epoch == s.logs[0].epoch {
			err = errors.New("the earlier connection has not ended yet")
		}
	}
	if err != nil {
		_ = conn.Close(ctx)
		return err
	}
	s.conn, s.pid = conn, pid
	return nil
}

// NewLog returns a Log that continues at the ends of the store's logs. A store MUST have only one Log.
func NewLog(s *Store) *logs.Log {
	return logs.New(logs.Config{
		Store: s, Logs: s.ends, Adopted: s.options.Cluster != nil,
		Full: s.Full, Exhausted: s.Full,
		FlushIndex: func() error { return nil }, // each batch does
		// The row of the log is its anchor.
		Closing: func() { now := time.Now(); s.closing.CompareAndSwap(nil, &now) },
		Fatal:   s.fatal,
	})
}

// Erase implements store.Forgetter. It may run at the same time as Append.
func (s *Store) Erase(node actor.NodeID, durable uint64) (more bool, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !slices.ContainsFunc(s.logs, func(l ownedLog) bool { return l.node == node && l.epoch != 0 }) {
		return false, nil // its owner erases
	}
	r := s.Rows
	r.KV = eraser{s, node}
	return r.Erase(node, durable)
}

// eraser is the store.KV of a step of Erase of a log, during which Store.writing is held.
type eraser struct {
	*Store
	of actor.NodeID
}

// Apply implements store.KV.
func (e eraser) Apply(rows []store.Row) error {
	return e.apply(rows, func(l *ownedLog) bool { return l.node == e.of })
}

// Node returns the node that the store belongs to.
func (s *Store) Node() actor.NodeID { return s.node }

// End returns the end of the first log at the time the store was opened.
func (s *Store) End() store.Mark { return s.ends[0].End }

// Ends returns the logs, by number, with their ends at the time the store was opened.
func (s *Store) Ends() []store.LogEnd { return s.ends }

// VerifyAll verifies the chains from their beginnings, and returns the end of the first log. Open verifies only
// the recent parts.
func (s *Store) VerifyAll() (store.Mark, error) {
	for _, l := range s.ends {
		if _, err := store.VerifyAll(s, l.Node, l.End); err != nil {
			return store.Mark{}, fmt.Errorf("store %s: %w", s.url, err)
		}
	}
	return s.End(), nil
}

// Queries returns a reader that waits only a moment for a database that is away.
func (s *Store) Queries() store.Reader {
	k := s.keys
	k.patience = queryPatience
	return store.Rows{KV: queries{k}, Index: s.Rows.Index, Logs: len(s.logs), With: s.withIndex}
}

// Examine checks all of a store that no process writes. It changes nothing.
func Examine(url string, progress func(keys uint64)) (x store.Examination, err error) {
	s, err := Open(url, "", Options{ReadOnly: true, Idle: true})
	if err != nil {
		return x, err
	}
	defer s.Close() //nolint:errcheck // it was only read
	return store.Examine(s, s.ends, func(body []byte) error {
		_, err := runs.Decode(body)
		return err
	}, progress)
}

// Secret returns the 32 secret bytes of the store.
func (s *Store) Secret() ([]byte, error) { return bytes.Clone(s.secret), nil }

// Usage returns the space that the store takes and has left. The database does not tell how much is
// left, so it is unlimited.
func (s *Store) Usage() (store.Usage, error) {
	var stored int64
	err := s.keys.read(func(ctx context.Context) error {
		return s.gets.QueryRow(ctx, "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE relnamespace = 'troupe'::regnamespace AND relkind = 'r'").Scan(&stored)
	})
	return store.Usage{Free: math.MaxUint64, Stored: uint64(stored), Of: map[string]uint64{}}, err
}

// PurgeOwed reports whether deleted content is left that Purge would remove. Vacuum removes it here.
func (s *Store) PurgeOwed() bool { return false }

// Purge does nothing: vacuum removes deleted content.
func (s *Store) Purge(context.Context) error { return nil }

// Close closes the store. A Log over it MUST be closed first.
func (s *Store) Close() error {
	now := time.Now()
	s.closing.CompareAndSwap(nil, &now)
	s.probes.Wait()
	s.writing.Lock()
	defer s.writing.Unlock()
	s.release()
	return nil
}

func (s *Store) release() {
	s.keys.close()
	if s.positions != nil {
		s.positions.Close()
	}
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
		defer cancel()
		_ = s.conn.Close(ctx) // everything that was acknowledged is committed
	}
}

// fatal reports an error that the node cannot survive. It does not return.
func (s *Store) fatal(format string, args ...any) {
	line := fmt.Sprintf("store %s: %s; stopping, nothing acknowledged is lost", s.url, fmt.Sprintf(format, args...))
	if s.options.Fatal == nil {
		fmt.Fprintln(os.Stderr, "troupe: "+line)
		os.Exit(1)
	}
	s.options.Fatal(line)
	panic("postgres: Fatal returned")
}
