// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/troupe-run/troupe/host/postgres"
)

// NodesCmd shows the processes of a cluster.
type NodesCmd struct {
	List  NodesListCmd  `cmd:"" help:"List the orchestrators of a cluster and how many logs each owns."`
	Drain NodesDrainCmd `cmd:"" help:"Have an orchestrator leave its cluster, so that the others take over its logs."`
}

// NodesListCmd reads the table of members.
type NodesListCmd struct {
	Store string `env:"TROUPE_STORE" placeholder:"URL" help:"PostgreSQL database of the cluster."`
	JSON  bool   `name:"json" help:"Print a JSON object for each."`
}

// Help returns the detailed help.
func (NodesListCmd) Help() string {
	return `The list is read from the database, so it needs no process that serves. The sessions are spread over logs: each belongs to
one orchestrator, which runs its agents. The time left is that of the lease.

Examples:
  troupe nodes list --store postgres://troupe@db.internal/troupe`
}

// clusterOf returns the cluster of a database.
func clusterOf(store string) (x postgres.ClusterInfo, err error) {
	if !postgres.IsURL(store) {
		return x, errors.New("--store: want the database of the cluster, such as postgres://troupe@db.internal/troupe")
	}
	x, err = postgres.Members(store)
	if err == nil && x.Name == "" {
		err = errors.New("the store belongs to no cluster: start orchestrators with --cluster NAME")
	}
	return x, err
}

// Run executes the command.
func (c *NodesListCmd) Run(s streams) error {
	x, err := clusterOf(c.Store)
	if err != nil {
		return err
	}
	if c.JSON {
		for _, m := range x.Members {
			if err := writeJSON(s.out, m); err != nil {
				return err
			}
		}
		return nil
	}
	if len(x.Members) == 0 {
		_, err := fmt.Fprintf(s.out, "no orchestrator of the cluster %s runs\n", x.Name)
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MEMBER\tADDRESS\tLOGS\tLEASE\tSINCE")
	for _, m := range x.Members {
		logs := fmt.Sprint(m.Logs)
		if m.Leaving {
			logs += ", leaves"
		}
		left := "over"
		if m.LeaseMS > 0 {
			left = (time.Duration(m.LeaseMS) * time.Millisecond).Round(100 * time.Millisecond).String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", m.Member, m.Address, logs, left, m.Since.Local().Format(time.DateTime))
	}
	return w.Flush()
}
