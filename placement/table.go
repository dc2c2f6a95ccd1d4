// SPDX-License-Identifier: Apache-2.0

package placement

import "github.com/troupe-run/troupe/actor"

// Request is one beat of a member.
type Request struct {
	Member  string
	Address string         // at which other processes reach the member
	TTL     actor.Duration // of the lease, from the arrival of the request
	Joined  bool           // the table has a row of this member; otherwise one is made
	Want    int            // how many logs without an owner to claim, the lowest first
	Sent    actor.Time     // by the monotonic clock of the member
}

// Answer is the table after a request, all in one transaction: the lease is renewed, the rows of
// members whose lease has run out are deleted, logs are claimed, and then read.
type Answer struct {
	// Renewed is false if the table has no row of a member that has joined. Then nothing else was done.
	Renewed bool
	Members int // with a lease, this one included
	Owners  []Owner
	Leaving bool // somebody has asked the member to end
}

// Owner is the owner of a log. An owner without a lease is none.
type Owner struct {
	Log     uint16
	Member  string // empty: the log has no owner
	Address string
	Epoch   actor.Epoch // greater than every earlier one of the log
}

// Table is what the members of a cluster share. A member that joins under the name of an earlier one
// replaces it: the logs of the earlier one have no owner then.
type Table interface {
	// Beat performs a request. An error means that it may have been performed or not.
	Beat(Request) (Answer, error)
	// Release removes the owner of a log, if it is this member under this epoch. All that the owner
	// wrote MUST be durable, and it MUST write nothing more.
	Release(member string, log uint16, epoch actor.Epoch) error
}
