// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/placement"
)

// join makes this process a member of its cluster and waits until it owns the log. It returns nil without
// --cluster.
func (c *ServeCmd) join(log *slog.Logger) (*postgres.Cluster, error) {
	if c.Cluster == "" {
		return nil, nil
	}
	address, _, err := c.linkAddress()
	if err != nil {
		return nil, err
	}
	x, err := postgres.Join(postgres.ClusterConfig{URL: c.Store, Name: c.Cluster, Node: actor.NodeID(c.Node), Address: address.String(), Timing: placement.Default, Logger: log})
	if err != nil {
		return nil, err
	}
	log.Info("joined the cluster", "cluster", c.Cluster, "member", x.Name())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err = x.Own(ctx, func(owner placement.Owner) {
		log.Info("standing by", "cluster", c.Cluster, "serves", owner.Member, "at", owner.Address)
	})
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}
