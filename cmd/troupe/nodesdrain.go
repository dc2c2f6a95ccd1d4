// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/host/postgres"
)

// NodesDrainCmd takes an orchestrator out of its cluster.
type NodesDrainCmd struct {
	Member string        `arg:"" optional:"" help:"Name of the orchestrator, or its beginning; absent: the one that has run longest."`
	Store  string        `env:"TROUPE_STORE" placeholder:"URL" help:"PostgreSQL database of the cluster."`
	Wait   time.Duration `default:"2m" help:"How long to wait until it has left."`
}

// Help returns the detailed help.
func (NodesDrainCmd) Help() string {
	return `The orchestrator ends as with SIGTERM: it answers waiting clients, the others take its logs over, and the command returns.
Its exit code is 0, so that a supervisor with Restart=always starts it again, to join anew, and one with
Restart=on-failure leaves its machine free for maintenance. The last orchestrator is not drained: nobody would serve.

Examples:
  troupe nodes drain --store postgres://troupe@db.internal/troupe
  troupe nodes drain db1.4711 --store postgres://troupe@db.internal/troupe`
}

// Run executes the command.
func (c *NodesDrainCmd) Run(s streams) error {
	x, err := clusterOf(c.Store)
	if err != nil {
		return err
	}
	of, err := choose(x.Members, c.Member)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", x.Name, err)
	}
	if err := postgres.Drain(c.Store, of.Member); err != nil {
		return err
	}
	fmt.Fprintf(s.err, "%s was asked to leave\n", of.Member)
	for until := time.Now().Add(c.Wait); ; time.Sleep(drainPoll) {
		x, err := clusterOf(c.Store) // the database may be away for a while
		left := err == nil && !slices.ContainsFunc(x.Members, func(m postgres.MemberInfo) bool { return m.Member == of.Member && m.LeaseMS > 0 })
		switch {
		case left && x.Placed():
			_, err := fmt.Fprintf(s.out, "%s has left, %d serve\n", of.Member, len(x.Members))
			return err
		case time.Now().Before(until):
		case left:
			return fmt.Errorf("%s has left, and no orchestrator serves: start one", of.Member)
		case err != nil:
			return fmt.Errorf("%s was asked to leave, and will; whether it has is not known: %w", of.Member, err)
		default:
			return fmt.Errorf("%s has not left after %v, and still will: see troupe nodes list --store URL, and its log", of.Member, c.Wait)
		}
	}
}

const drainPoll = 200 * time.Millisecond

// choose returns the member with that name or beginning, or the one that has run longest.
func choose(members []postgres.MemberInfo, name string) (of postgres.MemberInfo, err error) {
	if name == "" {
		i := slices.IndexFunc(members, func(m postgres.MemberInfo) bool { return m.LeaseMS > 0 && !m.Leaving })
		if i < 0 {
			return of, errors.New("no orchestrator serves; see troupe nodes list --store URL")
		}
		return members[i], nil
	}
	found := 0
	for _, m := range members {
		switch {
		case name == m.Member:
			return m, nil
		case strings.HasPrefix(m.Member, name):
			of = m
			found++
		}
	}
	switch {
	case found == 0:
		return of, fmt.Errorf("no orchestrator is named %q; see troupe nodes list --store URL", name)
	case found > 1:
		return of, fmt.Errorf("%d orchestrators have names that begin with %q: write more of the name", found, name)
	}
	return of, nil
}
