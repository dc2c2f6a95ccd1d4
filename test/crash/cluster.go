// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/internal/servertest"
)

// frozenFor is the time for which an orchestrator is stopped by SIGSTOP: longer than its lease.
const frozenFor = 7 * time.Second

// takeoverMax is the maximum time until another orchestrator serves.
const takeoverMax = 30 * time.Second

// cluster are orchestrators on one database. The harness kills one after the other together with the ingress, or freezes
// it; the others take over its logs.
type cluster struct {
	bin, dir string
	freeze   bool // strike every other time by SIGSTOP, for longer than the lease

	mu      sync.Mutex
	members []*member
	strikes int
	thawing sync.WaitGroup
	problem error // of an owner that was frozen and did not end by itself
}

// member is an orchestrator.
type member struct {
	cmd     *exec.Cmd
	link    string
	serving bool // protected by cluster.mu
	frozen  bool // likewise
	exited  chan struct{}
}

func newCluster(bin, dir string, members int, freeze bool) *cluster {
	c := &cluster{bin: bin, dir: dir, freeze: freeze}
	for n := range members {
		c.members = append(c.members, &member{link: filepath.Join(dir, fmt.Sprintf("%s-%d", dataDir, n+1), "LINK")})
	}
	return c
}

// links returns the value of --orchestrator.
func (c *cluster) links() string {
	var all []string
	for _, m := range c.members {
		all = append(all, m.link)
	}
	return strings.Join(all, ",")
}

// start starts each orchestrator that does not run.
func (c *cluster) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.problem != nil {
		return c.problem
	}
	for _, m := range c.members {
		if m.exited != nil {
			select {
			case <-m.exited:
			default:
				continue
			}
		}
		log, err := os.OpenFile(filepath.Join(c.dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		cmd := exec.Command(c.bin, "serve", "--role", "orchestrator", "--cluster", "crash", "--data", filepath.Dir(m.link), "--agents", filepath.Join(c.dir, agentsDir),
			"--ready", "--log-level", "warn", "--allow", "127.0.0.1")
		cmd.Env, cmd.Stderr = append(os.Environ(), "NO_COLOR=1"), log
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err = errors.Join(err, log.Close()); err != nil {
			return err
		}
		m.cmd, m.serving, m.frozen, m.exited = cmd, false, false, make(chan struct{})
		go c.observe(m, out, m.exited)
	}
	return nil
}

// observe notes that a member serves, which its first line says, and that it has ended.
func (c *cluster) observe(m *member, out io.Reader, exited chan struct{}) {
	if _, err := bufio.NewReader(out).ReadString('\n'); err == nil {
		c.mu.Lock()
		m.serving = true
		c.mu.Unlock()
	}
	_ = m.cmd.Wait() // a signal ends it, or the loss of its lease
	close(exited)
}

// strike ends a member that serves, each in its turn, by SIGKILL or by freezing it until its lease is over. A frozen one MUST
// end by itself once it goes on, and without a signal.
func (c *cluster) strike() {
	c.mu.Lock()
	c.strikes++
	var struck *member
	for i := range c.members {
		if m := c.members[(c.strikes/2+i)%len(c.members)]; m.serving && !m.frozen && struck == nil {
			struck = m
		}
	}
	switch {
	case struck == nil:
		c.mu.Unlock()
	case c.freeze && c.strikes%2 == 0:
		struck.frozen = true
		_ = struck.cmd.Process.Signal(syscall.SIGSTOP)
		c.thaw(struck.cmd, struck.exited)
		c.mu.Unlock()
	default:
		struck.serving = false
		_ = struck.cmd.Process.Kill()
		c.mu.Unlock()
		<-struck.exited
	}
}

// thaw lets a frozen member go on after a while.
func (c *cluster) thaw(cmd *exec.Cmd, exited chan struct{}) {
	c.thawing.Go(func() {
		<-time.After(frozenFor)
		_ = cmd.Process.Signal(syscall.SIGCONT)
		select {
		case <-exited:
		case <-time.After(takeoverMax):
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if code := exitCode(cmd, exited); code != 3 {
			c.problem = errors.Join(c.problem, fmt.Errorf("the orchestrator that was frozen for %v ended with code %d, want 3", frozenFor, code))
			_ = cmd.Process.Kill()
		}
	})
}

// acksAfter is the number of acknowledgements that clients get after a fault before the next one.
const acksAfter = 20

// disturb brings one fault over the cluster in three of four cycles, while the clients work: it drains an orchestrator, lets
// the database crash, or restarts all orchestrators one after another. All pass without a kill of the ingress, and clients
// MUST get answers again.
func (c *harness) disturb(ctx context.Context, inst *instance, n int) error {
	if c.cluster == nil || c.crashDatabase == nil || n%4 == 0 {
		return nil
	}
	began := time.Now()
	var took *[]int64
	switch {
	case n%4 == 1:
		if err := c.cluster.drain(ctx, c.store); err != nil {
			return err
		}
		took = &c.drains
	case n%4 == 2:
		c.crashDatabase()
		took = &c.absent
	default:
		if err := c.cluster.roll(ctx); err != nil {
			return err
		}
		took = &c.rolls
	}
	for want := inst.acks.Load() + acksAfter; inst.acks.Load() < want || inst.open.Load() < openWanted; { // the kill that follows meets open requests
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		if time.Since(began) > ackTimeout+takeoverMax {
			return fmt.Errorf("%v after a fault clients have not got %d answers, or have fewer than %d requests open: %s", time.Since(began), acksAfter, openWanted, tail(c.dir))
		}
	}
	*took = append(*took, time.Since(began).Milliseconds())
	return nil
}

// roll restarts the orchestrators by SIGTERM, each once the one before serves again. It leaves out one that is frozen.
func (c *cluster) roll(ctx context.Context) error {
	for _, m := range c.members {
		if served, err := c.waitServing(ctx, m); err != nil {
			return err
		} else if !served {
			continue
		}
		c.mu.Lock()
		cmd, exited := m.cmd, m.exited
		m.serving = false
		_ = cmd.Process.Signal(syscall.SIGTERM)
		c.mu.Unlock()
		select {
		case <-exited:
		case <-time.After(takeoverMax):
		}
		if code := exitCode(cmd, exited); code != 0 {
			return fmt.Errorf("after SIGTERM an orchestrator ended with code %d, want 0", code)
		}
		if err := c.start(); err != nil {
			return err
		}
		if _, err := c.waitServing(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// waitServing waits until a member serves. It reports false for one that is frozen.
func (c *cluster) waitServing(ctx context.Context, m *member) (bool, error) {
	for until := time.Now().Add(takeoverMax); ; {
		c.mu.Lock()
		serving, frozen := m.serving, m.frozen
		c.mu.Unlock()
		switch {
		case frozen:
			return false, nil
		case serving:
			return true, nil
		case time.Now().After(until):
			return false, fmt.Errorf("an orchestrator does not serve %v after its start", takeoverMax)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// serving returns the name and the link of a member that serves and is not frozen beside another such one, "" for none.
func (c *cluster) serving(ctx context.Context, store string) (name, link string, err error) {
	out, err := exec.CommandContext(ctx, c.bin, "nodes", "list", "--store", store, "--json").Output()
	if err != nil {
		return "", "", fmt.Errorf("nodes list: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	count := 0
	for all := jsontext.NewDecoder(bytes.NewReader(out)); ; {
		var m struct {
			Member, Address string
			Leaving         bool
		}
		switch err := json.UnmarshalDecode(all, &m, json.MatchCaseInsensitiveNames(true)); {
		case errors.Is(err, io.EOF):
			if count < 2 {
				return "", "", nil
			}
			return name, link, nil
		case err != nil:
			return "", "", fmt.Errorf("nodes list: %w: %s", err, out)
		}
		for _, of := range c.members {
			if of.link == m.Address && of.serving && !of.frozen && !m.Leaving {
				name, link = m.Member, of.link
				count++
			}
		}
	}
}

// drain has an orchestrator leave the cluster, once there is another one.
func (c *cluster) drain(ctx context.Context, store string) error {
	link := ""
	for until := time.Now().Add(takeoverMax); ; {
		name, of, err := c.serving(ctx, store)
		if err != nil {
			return err
		}
		out, err := exec.CommandContext(ctx, c.bin, "nodes", "drain", cmp.Or(name, "none"), "--store", store).CombinedOutput()
		if link = of; name != "" && err == nil {
			break
		}
		if time.Now().After(until) {
			return fmt.Errorf("nodes drain: %w: %s", err, out)
		}
		select { // the other one has yet to start
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.mu.Lock()
	m := c.members[slices.IndexFunc(c.members, func(m *member) bool { return m.link == link })]
	cmd, exited := m.cmd, m.exited
	m.serving = false
	c.mu.Unlock()
	select {
	case <-exited:
	case <-time.After(takeoverMax):
		return errors.New("the drained orchestrator has not ended")
	case <-ctx.Done():
		return ctx.Err()
	}
	if code := exitCode(cmd, exited); code != 0 {
		return fmt.Errorf("the drained orchestrator ended with code %d, want 0", code)
	}
	return nil
}

// exitCode returns the exit code of a process, or -2 while it runs.
func exitCode(cmd *exec.Cmd, exited chan struct{}) int {
	select {
	case <-exited:
		return cmd.ProcessState.ExitCode()
	default:
		return -2
	}
}

// close ends all orchestrators, and reports whether one has ended otherwise than it should.
func (c *cluster) close() error {
	c.thawing.Wait()
	var ending []chan struct{}
	c.mu.Lock()
	for _, m := range c.members {
		if m.exited != nil {
			_ = m.cmd.Process.Signal(syscall.SIGTERM)
			ending = append(ending, m.exited)
		}
	}
	c.mu.Unlock()
	for _, exited := range ending { // one of them may begin to serve meanwhile
		<-exited
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// ingress returns the command line of the process that clients connect to.
func (c *cluster) ingress(listen string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(c.dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(c.bin, "serve", "--role", "ingress", "--orchestrator", c.links(), "--listen", listen, "--log-level", "error")
	cmd.Env, cmd.Stderr = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TROUPE_STORE=") }), "NO_COLOR=1"), log
	return cmd, nil
}

// startServer starts the server of the harness: one process, or the ingress of a cluster.
func (c *harness) startServer(ctx context.Context) (*server, error) {
	if c.cluster == nil {
		return start(ctx, c.bin, c.dir, c.listen)
	}
	if err := c.cluster.start(); err != nil {
		return nil, err
	}
	cmd, err := c.cluster.ingress(c.listen)
	if err != nil {
		return nil, err
	}
	defer cmd.Stderr.(*os.File).Close()
	began := time.Now()
	p, err := servertest.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, tail(c.dir))
	}
	s := &server{Process: p, cluster: c.cluster}
	if err := s.waitReady(ctx); err != nil {
		s.terminate(syscall.SIGKILL)
		return nil, err
	}
	s.ready = time.Since(began)
	return s, nil
}
