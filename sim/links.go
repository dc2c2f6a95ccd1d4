// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// What befalls the links between nodes for a while.

func (n *network) link(from, to *node) *link { return &n.links[from.index][to.index] }

// slowLinkBytesPerSecond is how many bytes a slow link carries in a second.
const slowLinkBytesPerSecond = 20_000

// linkDelay is how much longer a message takes because of the state of its link.
func (w *Simulation) linkDelay(m *message) (more time.Duration) {
	l := w.net.link(m.from, m.to)
	if l.jitterUntil > w.now {
		if more = w.between(0, 80*time.Millisecond); more > 0 {
			w.recordFault(NetworkJitter, "%s comes %v later", m, more)
		}
	}
	if l.slowUntil > w.now {
		l.freeAt = max(l.freeAt, w.now).Add(time.Duration(len(m.bytes)) * time.Second / slowLinkBytesPerSecond)
		w.recordFault(NetworkSlowLink, "%s waits %v behind others", m, l.freeAt.Sub(w.now))
		more += l.freeAt.Sub(w.now)
	}
	m.delayed = m.delayed || more > 0
	return more
}

// randomPeer is two nodes, the first of which is up; nil if there are no two.
func (w *Simulation) randomPeer(from *node) (to *node) {
	if len(w.nodes) < 2 {
		return nil
	}
	return w.nodes[(from.index+1+w.entropy.Int(len(w.nodes)-1))%len(w.nodes)]
}

// degradeLink makes a link worse, in both directions, for a while.
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

// cutLink cuts the link between two nodes.
func (w *Simulation) cutLink(f Fault, a, b *node, until actor.Time) {
	w.net.blocked[a.index][b.index] = linkCut{until, f}
	w.net.blocked[b.index][a.index] = linkCut{until, f}
}

// flapLink cuts a link and mends it, a few times.
func (w *Simulation) flapLink(a, b *node, times int) {
	if w.recovering || times == 0 {
		return
	}
	down := w.between(20*time.Millisecond, 600*time.Millisecond)
	w.cutLink(NetworkFlapping, a, b, w.now.Add(down))
	w.after(down+w.between(20*time.Millisecond, 600*time.Millisecond), func() { w.flapLink(a, b, times-1) })
}

// resetConnection breaks the connection between two nodes: what is on its way is lost.
func (w *Simulation) resetConnection(a, b *node) (lost int) {
	for _, l := range [...]*link{w.net.link(a, b), w.net.link(b, a)} {
		lost += l.inFlight
		l.resets++
		l.inFlight = 0
	}
	return lost
}
