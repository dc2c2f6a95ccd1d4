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
	"slices"
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
	Address string       // at which ingress processes and other members reach this one
	Timing  placement.Timing
	Logs    int          // number of logs of a new store, at most logsMax; 0 means NewLogs
	Logger  *slog.Logger // nil discards
	// Lost is told why the process must end at once: others serve its logs, or may. nil prints the line
	// and ends the process with LostCode.
	Lost func(line string)
}

// LostCode is the exit code of a process that has lost its lease. A supervisor starts it again.
const LostCode = 3

// Cluster is a process in a cluster: a member that owns some of the logs, and serves while its lease is valid.
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
	view    View
	changed chan struct{} // closed when view changes
	beaten  chan struct{} // closed by the next beat
	closed  bool
	members int // with a lease, at the last beat
	asked   bool

	leaving chan struct{} // closed once asked is true

	releases chan release
	stop     chan struct{}
	done     sync.WaitGroup
}

// View is the cluster as a member sees it.
type View struct {
	Owners  []placement.Owner // by log
	Held    []placement.Held  // logs of this member, by number
	Surplus []placement.Held  // those of them that it should release
	Members []Reached         // with a lease, this one included
}

// release is a log that is to be released between two beats.
type release struct {
	log    uint16
	result chan error
}

// memberName returns a name that no process has had. It is the name of a node, too.
func memberName() string {
	host, _ := os.Hostname()
	host = strings.Map(func(r rune) rune {
		if actor.CheckName(string(r)+"x") != nil {
			return '-'
		}
		return r
	}, host)
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	// application_name has 63 bytes, and names the connections of a member.
	return fmt.Sprintf("%s.%d-%s", host[:min(len(host), 30)], os.Getpid(), hex.EncodeToString(random[:]))
}

// Join prepares this process as a member of a cluster. It makes the tables in a database that has none. The
// caller MUST close the cluster after the store.
func Join(c ClusterConfig) (_ *Cluster, err error) {
	if c.Name == "" {
		return nil, errors.New("a cluster needs a name")
	}
	if err := c.Timing.Check(); err != nil {
		return nil, err
	}
	x := &Cluster{config: c, url: Shown(c.URL), name: memberName(), logger: c.Logger, beaten: make(chan struct{}), changed: make(chan struct{}), leaving: make(chan struct{}), releases: make(chan release), stop: make(chan struct{})}
	if x.logger == nil {
		x.logger = slog.New(slog.DiscardHandler)
	}
	x.member = placement.NewMember(x.name, c.Address, c.Timing)
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
	return x, nil
}

// Begin takes this process into the cluster: from now on it gets logs, which it MUST adopt.
func (x *Cluster) Begin() error {
	wait, err := x.beat()
	if err != nil {
		return fmt.Errorf("store %s: %w", x.url, explain(err))
	}
	x.done.Go(func() { x.beats(wait) })
	return nil
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

// beats renews the lease until Close, and releases logs between two renewals.
func (x *Cluster) beats(wait time.Duration) {
	next := time.NewTimer(wait)
	defer next.Stop()
	for {
		select {
		case <-x.stop:
			return
		case r := <-x.releases:
			r.result <- x.release(r.log)
			continue
		case <-next.C:
		}
		// A lease says that this process can write. One whose connection to the log fails leaves it to others.
		if s := x.writer.Load(); s != nil && s.Full() != nil { // which looks, too, whether the database is back
			x.failed()
			next.Reset(x.config.Timing.Beat)
			continue
		}
		wait, err := x.beat()
		if err != nil {
			x.logger.Warn("the lease could not be renewed: will try again", "store", x.url, "error", explain(err).Error())
			x.failed()
			wait = x.config.Timing.Beat
		}
		next.Reset(wait)
	}
}

// release gives a log up.
func (x *Cluster) release(log uint16) error {
	epoch := x.epochOf(int16(log))
	if epoch == 0 {
		return nil
	}
	is := func(h placement.Held) bool { return h.Log == log }
	x.mu.Lock()
	x.member.Dropped(log) // if its row is not released, the next answer gives it back
	v := View{Owners: slices.Clone(x.view.Owners), Held: slices.Clone(x.member.Held()), Surplus: slices.DeleteFunc(slices.Clone(x.view.Surplus), is), Members: x.view.Members}
	v.Owners[log] = placement.Owner{Log: log}
	x.show(v)
	x.mu.Unlock()
	return x.table.Release(x.name, log, actor.Epoch(epoch))
}

// show changes the view. The caller holds mu.
func (x *Cluster) show(v View) {
	x.view = v
	close(x.changed)
	x.changed = make(chan struct{})
}

// Leave makes this process get no further logs.
func (x *Cluster) Leave() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.member.Leave()
}

// Release gives a log up, for another member. All that this process wrote to it MUST be durable, and it MUST write
// nothing more until it adopts it again.
func (x *Cluster) Release(log uint16) error {
	r := release{log, make(chan error, 1)}
	select {
	case x.releases <- r:
		return <-r.result
	case <-x.stop:
		return errors.New("the process leaves the cluster")
	}
}

func (x *Cluster) failed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.member.Failed(readClock())
}

// beat sends one request. It returns the time until the next one.
func (x *Cluster) beat() (wait time.Duration, err error) {
	x.mu.Lock()
	request := x.member.Beat(readClock())
	x.mu.Unlock()
	answer, err := x.table.Beat(request)
	if err != nil {
		return 0, err
	}
	x.mu.Lock()
	change := x.member.Answered(request, answer)
	why := x.member.Ended()
	if x.members = answer.Members; answer.Leaving && !x.asked {
		x.asked = true
		close(x.leaving)
	}
	x.until.Store(int64(x.member.Until()))
	if change.Owners || len(change.Adopted) > 0 || !slices.Equal(x.view.Surplus, change.Surplus) || !slices.Equal(x.view.Members, x.table.last) {
		x.show(View{Owners: slices.Clone(x.member.Owners()), Held: slices.Clone(x.member.Held()), Surplus: change.Surplus, Members: x.table.last})
	}
	closed := x.closed
	close(x.beaten)
	x.beaten = make(chan struct{})
	x.mu.Unlock()
	if why != "" && !closed {
		x.lose(why)
	}
	switch {
	case change.Again:
		return 0, nil
	case change.Soon:
		return x.config.Timing.Beat / 4, nil
	}
	return x.config.Timing.Beat, nil
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

// Stats returns the state of the cluster at the last beat. The epoch rises whenever a log gets another owner.
func (x *Cluster) Stats() (members, logs int, epoch uint64, lease time.Duration) {
	x.mu.Lock()
	members, logs = x.members, len(x.member.Held())
	for _, o := range x.view.Owners {
		epoch += uint64(o.Epoch)
	}
	x.mu.Unlock()
	return members, logs, epoch, max(0, time.Duration(x.until.Load()-int64(readClock())))
}

// View returns the cluster at the last beat, and a channel that is closed once it changes.
func (x *Cluster) View() (v View, changed <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.view, x.changed
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
