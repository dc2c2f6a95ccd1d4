// SPDX-License-Identifier: Apache-2.0

package command

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// The queries and actions of a gateway in a process of its own. A node answers them only over a
// connection whose peer it has authenticated: the peer names the principals of all commands.
type (
	// GatewayQuery asks for the secrets and the API keys, once their version differs from After.
	GatewayQuery struct{ After uint64 } // 0: at once
	// ExternalQuery asks for the health of an external agent.
	ExternalQuery struct{ Name string }
	// Heartbeat records a heartbeat of an external agent and returns its health.
	Heartbeat struct{ Name string }
	// PermitQuery asks whether the secret in the variable AuthEnv may be sent to a URL or, if
	// Definition is not empty, whether a tool with this definition can be performed.
	PermitQuery struct {
		URL, AuthEnv string
		Definition   []byte // JSON
	}
	// MakeBackup makes a copy of the store and returns its path.
	MakeBackup struct{ Name string }
)

// GatewayBeat is the maximum time to the answer of a GatewayQuery. If nothing changes until then,
// the answer has the version After and no other field.
const GatewayBeat = 5 * time.Second

type (
	// Gateway is what a gateway needs to know before it serves a client.
	Gateway struct {
		Version       uint64 // from 1
		Secret        []byte // signs run tokens
		ApprovalScope string // needed to decide about a tool call; may be empty
		Keys          [][]byte
	}
	// External is the health of an external agent.
	External struct {
		Known, Healthy bool
		LastSeen       actor.Time // 0: never
		Circuit        string     // state of its circuit breaker; "" if the agent is unknown
	}
	// Permit is the answer to a PermitQuery.
	Permit struct{ Problem string } // "": permitted
	// Backup is a copy of the store, or the reason why there is none.
	Backup struct {
		Dir     string
		Failed  BackupFailure
		Problem string // set if Failed is
	}
)

// BackupFailure is a foreseen failure of a backup; 0 means none.
type BackupFailure uint8

// The failures of backups.
const (
	BackupExists    BackupFailure = iota + 1 // fs.ErrExist
	BackupForbidden                          // fs.ErrPermission
	BackupDiskFull                           // syscall.ENOSPC
)

func (GatewayQuery) query()  {}
func (ExternalQuery) query() {}
func (PermitQuery) query()   {}
func (Heartbeat) action()    {}
func (MakeBackup) action()   {}

func (GatewayQuery) returns(Gateway)   {}
func (ExternalQuery) returns(External) {}
func (Heartbeat) returns(External)     {}
func (PermitQuery) returns(Permit)     {}
func (MakeBackup) returns(Backup)      {}

func (Gateway) result()  {}
func (External) result() {}
func (Permit) result()   {}
func (Backup) result()   {}
