// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/placement"
)

// ClusterConfig is the configuration of a process of a cluster.
type ClusterConfig struct {
	URL     string
	Name    string       // of the cluster, the same in all of its processes
	Node    actor.NodeID // of the store, the same in all of its processes
	Address string       // at which ingress processes reach this one; shown to people
	Timing  placement.Timing
	Logs    int          // number of logs of a new store, at most logsMax; 0 means NewLogs. A member owns all or none
	Logger  *slog.Logger // nil discards
	// Lost is told why the process must end at once: another serves the log, or may. nil prints the line
	// and ends the process with LostCode.
	Lost func(line string)
}

// LostCode is the exit code of a process that has lost its lease. A supervisor starts it again, to stand by.
const LostCode = 3

// Cluster is a process in a cluster: it stands by until it owns the logs, and then serves while its lease
// is valid.
type Cluster struct {
	config ClusterConfig
	url    string
	name   string // of the member
	logger *slog.Logger
	table  members

	until  atomic.Int64          // end of the lease on the clock of readClock; 0: none
	writer atomic.Pointer[Store] // nil before Open

	mu      sync.Mutex // protects what follows
	member  *placement.Member
	owner   placement.Owner // of the logs
	changed chan struct{}   // closed when owner changes
	beaten  chan struct{}   // closed by the next beat
	closed  bool
	members int // with a lease, at the last beat
	asked   bool

	leaving chan struct{} // closed once asked is true

	stop chan struct{}
	done sync.WaitGroup
}

// memberName returns a name that no process has had.
func memberName() string {
	host, _ := os.Hostname()
	host = strings.Map(func(r rune) rune {
		if r < '!' || r > '~' || r == '\'' || r == '\\' {
			return '-'
		}
		return r
	}, host)
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	// application_name has 63 bytes, and names the connections of a member.
	return fmt.Sprintf("%s/%d-%s", host[:min(len(host), 30)], os.Getpid(), hex.EncodeToString(random[:]))
}

// Join makes this process a member of a cluster. It makes the tables in a database that has none. The
// caller MUST close the cluster after the store.
func Join(c ClusterConfig) (_ *Cluster, err error) {
	if c.Name == "" {
		return nil, errors.New("a cluster needs a name")
	}
	if err := c.Timing.Check(); err != nil {
		return nil, err
	}
	x := &Cluster{config: c, url: Shown(c.URL), name: memberName(), logger: c.Logger, beaten: make(chan struct{}), changed: make(chan struct{}), leaving: make(chan struct{}), stop: make(chan struct{})}
	if x.logger == nil {
		x.logger = slog.New(slog.DiscardHandler)
	}
	x.member = placement.NewMember(x.name, c.Address, c.Timing)
	x.member.TakeAll()
	defer func() {
		if err != nil {
			x.table.close()
			err = fmt.Errorf("store %s: %w", x.url, explain(err))
		}
	}()
	x.table.timeout = c.Timing.TTL
	if x.table.config, err = parse(c.URL, applicationName+" beat "+x.name); err != nil {
		return nil, err
	}
	if err := x.prepare(); err != nil {
		return nil, err
	}
	if _, err := x.beat(); err != nil {
		return nil, err
	}
	x.done.Go(x.beats)
	return x, nil
}

// prepare checks the server, brings the schema up to date and marks the store as that of the cluster.
func (x *Cluster) prepare() error {
	ctx := context.Background()
	s := &Store{url: x.url, node: x.config.Node, options: Options{logs: x.config.Logs}}
	var err error
	if s.config, err = parse(x.config.URL, applicationName+" join "+x.name); err != nil {
		return err
	}
	if s.conn, err = pgx.ConnectConfig(ctx, s.config); err != nil {
		return err
	}
	defer s.conn.Close(ctx) //nolint:errcheck // everything was committed
	pid, err := check(ctx, s.conn)
	if err != nil {
		return err
	}
	if err := checkPooler(ctx, s.config, pid); err != nil {
		return err
	}
	if err := migrate(ctx, s.conn); err != nil {
		return err
	}
	if err := s.identify(ctx); err != nil {
		return err
	}
	var cluster string
	if err := s.conn.QueryRow(ctx, "SELECT cluster FROM troupe.store").Scan(&cluster); err != nil {
		return err
	}
	if cluster == "" { // of one process until now, which must have ended
		s.owner = x.name
		if err := s.lock(ctx); err != nil {
			return err
		}
		if err := s.conn.QueryRow(ctx, "UPDATE troupe.store SET cluster = CASE cluster WHEN '' THEN $1 ELSE cluster END RETURNING cluster", x.config.Name).Scan(&cluster); err != nil {
			return err
		}
	}
	if cluster == x.config.Name {
		return nil
	}
	return fmt.Errorf("belongs to the cluster %q, not to %q", cluster, x.config.Name)
}

// beats renews the lease until Close.
func (x *Cluster) beats() {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-x.stop:
			return
		case <-next.C:
		}
		// A lease says that this process can write. One whose connection to the log fails leaves it to others.
		if s := x.writer.Load(); s != nil && s.Full() != nil { // which looks, too, whether the database is back
			x.failed()
			next.Reset(x.config.Timing.Beat)
			continue
		}
		again, err := x.beat()
		switch {
		case err != nil:
			x.logger.Warn("the lease could not be renewed: will try again", "store", x.url, "error", explain(err).Error())
			x.failed()
			next.Reset(x.config.Timing.Beat)
		case again:
			next.Reset(0)
		default:
			next.Reset(x.config.Timing.Beat)
		}
	}
}

func (x *Cluster) failed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.member.Failed(readClock())
}

// beat sends one request. It reports whether another should follow at once.
func (x *Cluster) beat() (again bool, err error) {
	x.mu.Lock()
	request := x.member.Beat(readClock())
	x.mu.Unlock()
	answer, err := x.table.Beat(request)
	if err != nil {
		return false, err
	}
	x.mu.Lock()
	change := x.member.Answered(request, answer)
	why := x.member.Ended()
	if x.members = answer.Members; answer.Leaving && !x.asked {
		x.asked = true
		close(x.leaving)
	}
	x.until.Store(int64(x.member.Until()))
	if change.Owners {
		x.owner = placement.Owner{}
		for _, o := range x.member.Owners() { // they have one owner
			if x.owner = o; o.Member != x.name {
				break
			}
		}
		close(x.changed)
		x.changed = make(chan struct{})
	}
	closed := x.closed
	close(x.beaten)
	x.beaten = make(chan struct{})
	x.mu.Unlock()
	if why != "" && !closed {
		x.lose(why)
	}
	return change.Again, nil
}

// lose ends the process.
func (x *Cluster) lose(why string) {
	line := fmt.Sprintf("store %s: this process no longer serves the cluster %s: %s; stopping, nothing acknowledged is lost", x.url, x.config.Name, why)
	x.until.Store(0)
	if x.config.Lost == nil {
		fmt.Fprintln(os.Stderr, "troupe: "+line)
		os.Exit(LostCode)
	}
	x.config.Lost(line)
}

// Name returns the name of this member.
func (x *Cluster) Name() string { return x.name }

// ErrLeaving is the error of a member that was asked to leave while it stood by.
var ErrLeaving = errors.New("this member was asked to leave the cluster")

// Leaving returns a channel that is closed once somebody has asked this member to leave; see Drain.
func (x *Cluster) Leaving() <-chan struct{} { return x.leaving }

// Stats returns the state of the cluster at the last beat.
func (x *Cluster) Stats() (members int, epoch uint64, lease time.Duration) {
	x.mu.Lock()
	members = x.members
	x.mu.Unlock()
	return members, x.Epoch(), max(0, time.Duration(x.until.Load()-int64(readClock())))
}

// Own waits until this process owns the logs, or until ctx ends or the member is asked to leave. It calls standby with the owner each time
// that another process is the owner.
func (x *Cluster) Own(ctx context.Context, standby func(owner placement.Owner)) error {
	for {
		x.mu.Lock()
		owner, changed, ended := x.owner, x.changed, x.member.Ended()
		x.mu.Unlock()
		switch {
		case ended != "":
			return errors.New(ended)
		case owner.Member == x.name:
			return nil
		case owner.Member != "":
			standby(owner)
		}
		select {
		case <-changed:
		case <-x.leaving:
			return ErrLeaving
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// epochOf returns the epoch under which this process owns a log, or 0.
func (x *Cluster) epochOf(log int16) int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, h := range x.member.Held() {
		if int16(h.Log) == log {
			return int64(h.Epoch)
		}
	}
	return 0
}

// Epoch returns the epoch under which this process owns the first log, or 0. A later owner has a greater one.
func (x *Cluster) Epoch() uint64 { return uint64(x.epochOf(0)) }

// Serves reports whether the lease is valid.
func (x *Cluster) Serves() bool { return int64(readClock()) < x.until.Load() }

// Await waits until the lease is valid, or until stop is closed.
func (x *Cluster) Await(stop <-chan struct{}) {
	for !x.Serves() {
		x.mu.Lock()
		beaten := x.beaten
		x.mu.Unlock()
		if x.Serves() {
			return
		}
		select {
		case <-beaten:
		case <-stop:
			return
		}
	}
}

// Close leaves the cluster. The log MUST be closed: the next owner begins at once, with all logs.
func (x *Cluster) Close() error {
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	close(x.stop)
	x.done.Wait()
	defer x.table.close()
	x.until.Store(0)
	return x.table.leave(x.name)
}
