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
		extra = m.delayBy(NetworkJitter, w.between(0, 80*time.Millisecond))
	}
	if l.slowUntil > w.now {
		l.freeAt = max(l.freeAt, w.now).Add(time.Duration(len(m.bytes)) * time.Second / slowLinkBytesPerSecond)
		extra += m.delayBy(NetworkSlowLink, l.freeAt.Sub(w.now))
	}
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
	until := w.now.Add(w.faultPeriod(f, 300*time.Millisecond, 8*time.Second))
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
	down := w.faultPeriod(NetworkFlapping, 20*time.Millisecond, 600*time.Millisecond)
	w.cutLink(NetworkFlapping, a, b, w.now.Add(down))
	w.after(down+w.between(20*time.Millisecond, 600*time.Millisecond), func() { w.flapLink(a, b, times-1) })
}

// resetConnection has fault f break the connection between two nodes. The messages in
// flight are lost.
func (w *Simulation) resetConnection(a, b *node, f Fault) {
	if !w.acts(f) {
		return
	}
	for _, l := range [...]*link{w.net.link(a, b), w.net.link(b, a)} {
		l.resets++
		l.resetBy = f
	}
}
