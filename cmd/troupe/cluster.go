// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/placement"
)

// join prepares this process as a member of its cluster. It returns nil without --cluster.
func (c *ServeCmd) join(log *slog.Logger) (*postgres.Cluster, error) {
	if c.Cluster == "" {
		return nil, nil
	}
	address, err := c.advertised()
	if err != nil {
		return nil, err
	}
	return postgres.Join(postgres.ClusterConfig{URL: c.Store, Name: c.Cluster, Node: actor.NodeID(c.Node), Address: address, Timing: placement.Default, Logs: 16, Logger: log})
}

// awaitCluster waits until each log of the cluster has an owner.
func (n *nodeServer) awaitCluster(log *slog.Logger) error {
	if n.cluster == nil {
		return nil
	}
	log.Info("joined the cluster", "member", n.cluster.Name())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	return n.Placed(ctx)
}
