// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Temporary faults of the links between nodes.

func (n *network) link(from, to *node) *link { return &n.links[from.index][to.index] }

// slowLinkBytesPerSecond is the bandwidth of a slow link.
const slowLinkBytesPerSecond = 20_000

// linkDelay returns the additional delay of a message caused by the state of its
// link.
func (w *Simulation) linkDelay(m *message) (extra time.Duration) {
	l := w.net.link(m.from, m.to)
	if l.jitterUntil > w.now {
		if extra = w.between(0, 80*time.Millisecond); extra > 0 {
			w.recordFault(NetworkJitter, "%s is delayed by %v", m, extra)
		}
	}
	if l.slowUntil > w.now {
		l.freeAt = max(l.freeAt, w.now).Add(time.Duration(len(m.bytes)) * time.Second / slowLinkBytesPerSecond)
		w.recordFault(NetworkSlowLink, "%s waits %v for earlier messages", m, l.freeAt.Sub(w.now))
		extra += l.freeAt.Sub(w.now)
	}
	m.delayed = m.delayed || extra > 0
	return extra
}

// randomPeer returns a random node other than from, or nil if there is no other.
func (w *Simulation) randomPeer(from *node) (to *node) {
	if len(w.nodes) < 2 {
		return nil
	}
	return w.nodes[(from.index+1+w.entropy.Int(len(w.nodes)-1))%len(w.nodes)]
}

// degradeLink temporarily adds jitter to a link, or limits its bandwidth, in both
// directions.
func (w *Simulation) degradeLink(f Fault, from *node) {
	to := w.randomPeer(from)
	if to == nil {
		return
	}
	until := w.now.Add(w.between(300*time.Millisecond, 8*time.Second))
	for _, l := range [...]*link{w.net.link(from, to), w.net.link(to, from)} {
		if f == NetworkJitter {
			l.jitterUntil = until
		} else {
			l.slowUntil = until
		}
	}
}

// cutLink cuts the link between two nodes in both directions.
func (w *Simulation) cutLink(f Fault, a, b *node, until actor.Time) {
	w.net.blocked[a.index][b.index] = linkCut{until, f}
	w.net.blocked[b.index][a.index] = linkCut{until, f}
}

// flapLink cuts and restores a link the given number of times.
func (w *Simulation) flapLink(a, b *node, times int) {
	if w.recovering || times == 0 {
		return
	}
	down := w.between(20*time.Millisecond, 600*time.Millisecond)
	w.cutLink(NetworkFlapping, a, b, w.now.Add(down))
	w.after(down+w.between(20*time.Millisecond, 600*time.Millisecond), func() { w.flapLink(a, b, times-1) })
}

// resetConnection breaks the connection between two nodes and returns the number of
// messages in flight, which are lost.
func (w *Simulation) resetConnection(a, b *node) (lost int) {
	for _, l := range [...]*link{w.net.link(a, b), w.net.link(b, a)} {
		lost += l.inFlight
		l.resets++
		l.inFlight = 0
	}
	return lost
}
