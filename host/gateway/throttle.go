// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
)

const (
	wrongKeysPerSecond   = 10
	wrongKeyAddressesMax = 4096
)

// wrongKeys limits the wrong keys and run tokens that one client address may
// present. Valid ones are never limited.
type wrongKeys struct {
	now func() time.Time

	mu     sync.Mutex
	debts  map[netip.Prefix]time.Time // time at which the allowance is whole again
	pruned time.Time
}

// add counts a wrong key. It reports whether the address has exceeded its
// allowance. If the table is full of addresses in debt, a new address has none.
func (w *wrongKeys) add(address netip.Prefix) (exceeded bool) {
	const interval = time.Second / wrongKeysPerSecond
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	debt, known := w.debts[address]
	if debt.Before(now) {
		debt = now
	}
	if debt = debt.Add(interval); debt.Sub(now) > time.Second {
		return true
	}
	if !known && len(w.debts) >= wrongKeyAddressesMax {
		if now.Sub(w.pruned) >= interval {
			w.pruned = now
			maps.DeleteFunc(w.debts, func(_ netip.Prefix, t time.Time) bool { return !t.After(now) })
		}
		if len(w.debts) >= wrongKeyAddressesMax {
			return true
		}
	}
	w.debts[address] = debt
	return false
}

// throttle returns the problem to answer instead of p: if p refuses a wrong key and
// the client has presented too many, it is a 429.
func (s *Server) throttle(conn net.Conn, p *problem) *problem {
	if !p.wrongKey || isOwner(conn) || !s.wrongKeys.add(ClientPrefix(conn)) {
		return p
	}
	return refusalProblem(actor.RefuseBusy(actor.ScopeCaller, time.Second,
		"your address has presented more than %d wrong API keys within a second: correct the key and retry", wrongKeysPerSecond))
}
