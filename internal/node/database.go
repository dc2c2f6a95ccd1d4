// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/internal/command"
)

// database is what a node tells about the database of its store. The zero value stands for a store in a folder.
type database struct {
	store  *postgres.Store
	member *postgres.Cluster // nil: the node belongs to no cluster
}

func (d *database) of(s storage, member *postgres.Cluster) {
	d.store, _ = s.(*postgres.Store)
	d.member = member
}

// promise returns a Health.Database.
func (d *database) promise() string {
	switch {
	case d.store == nil:
		return ""
	case d.store.Synchronous():
		return command.DatabaseSynchronous
	default:
		return command.DatabaseAsynchronous
	}
}

func (d *database) cluster() (s command.ClusterStats) {
	if d.member != nil {
		s.Members, s.Logs, s.Epoch, s.Lease = d.member.Stats()
	}
	return s
}
