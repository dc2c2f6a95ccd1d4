// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// Orchestrator is a node and the other things that an ingress needs.
type Orchestrator struct {
	command.Node
	Keys          *Keys
	Secret        []byte
	ApprovalScope ingress.Scope
	External      gateway.External
	Backup        func(name string) (dir string, err error)
}

// Lookup implements command.Node.
func (o *Orchestrator) Lookup(ctx context.Context, in command.Lookup) (command.Result, error) {
	switch q := in.Query.(type) {
	case command.GatewayQuery:
		version, keys, err := o.Keys.encoded.await(ctx, q.After, command.GatewayBeat)
		if err != nil || version == q.After {
			return command.Gateway{Version: version}, err
		}
		return command.Gateway{Version: version, Secret: o.Secret, ApprovalScope: string(o.ApprovalScope), Keys: keys}, nil
	case command.ExternalQuery:
		return o.health(q.Name), nil
	case command.PermitQuery:
		err := error(nil)
		if len(q.Definition) > 0 {
			err = o.External.PermitDefinition(q.Definition)
		} else {
			err = o.External.Permit(q.URL, q.AuthEnv)
		}
		if err != nil {
			return command.Permit{Problem: err.Error()}, nil
		}
		return command.Permit{}, nil
	}
	return o.Node.Lookup(ctx, in)
}

func (o *Orchestrator) health(name string) command.External {
	return command.External{Healthy: o.External.Healthy(name), LastSeen: o.External.LastSeen(name), Circuit: o.External.Circuit(name)}
}

// Do implements command.Node.
func (o *Orchestrator) Do(ctx context.Context, in command.Do) (command.Result, error) {
	switch a := in.Action.(type) {
	case command.Heartbeat:
		known := o.External.Heartbeat(a.Name)
		health := o.health(a.Name)
		health.Known = known
		return health, nil
	case command.MakeBackup:
		dir, err := o.Backup(a.Name)
		failed := command.BackupFailure(0)
		switch {
		case errors.Is(err, fs.ErrExist):
			failed = command.BackupExists
		case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
			failed = command.BackupDiskFull
		case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
			failed = command.BackupForbidden
		case err != nil:
			return nil, err
		default:
			return command.Backup{Dir: dir}, nil
		}
		return command.Backup{Failed: failed, Problem: err.Error()}, nil
	}
	return o.Node.Do(ctx, in)
}

// Keys passes the API keys of a node on to the gateway of this process and to each ingress.
type Keys struct {
	To      interface{ Set([]ingress.Key) }
	encoded awaited[[][]byte]
}

// Set replaces all keys.
func (k *Keys) Set(all []ingress.Key) {
	k.To.Set(all)
	encoded := make([][]byte, 0, len(all))
	for i := range all {
		encoded = append(encoded, all[i].Encode())
	}
	k.encoded.set(encoded)
}
