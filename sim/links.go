// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// What befalls the links between nodes for a while.

func (n *network) link(from, to *node) *link { return &n.links[from.index][to.index] }

// slowLink is how many bytes a slow link carries in a second.
const slowLink = 20_000

// strained is how much longer a message takes because of the state of its link.
func (w *World) strained(m *message) (more time.Duration) {
	l := w.net.link(m.from, m.to)
	if l.jitter > w.now {
		if more = w.between(0, 80*time.Millisecond); more > 0 {
			w.hit(NetworkJitter, "%s comes %v later", m, more)
		}
	}
	if l.slow > w.now {
		l.free = max(l.free, w.now).Add(time.Duration(len(m.bytes)) * time.Second / slowLink)
		w.hit(NetworkSlowLink, "%s waits %v behind others", m, l.free.Sub(w.now))
		more += l.free.Sub(w.now)
	}
	m.late = m.late || more > 0
	return more
}

// someLink is two nodes, the first of which is up; nil if there are no two.
func (w *World) someLink(from *node) (to *node) {
	if len(w.nodes) < 2 {
		return nil
	}
	return w.nodes[(from.index+1+w.choose.Int(len(w.nodes)-1))%len(w.nodes)]
}

// strain makes a link worse, in both directions, for a while.
func (w *World) strain(f Fault, from *node) {
	to := w.someLink(from)
	if to == nil {
		return
	}
	until := w.now.Add(w.between(300*time.Millisecond, 8*time.Second))
	for _, l := range [...]*link{w.net.link(from, to), w.net.link(to, from)} {
		if f == NetworkJitter {
			l.jitter = until
		} else {
			l.slow = until
		}
	}
}

// apart cuts the link between two nodes.
func (w *World) apart(f Fault, a, b *node, until actor.Time) {
	w.net.block[a.index][b.index] = cutting{until, f}
	w.net.block[b.index][a.index] = cutting{until, f}
}

// flap cuts a link and mends it, a few times.
func (w *World) flap(a, b *node, times int) {
	if w.calm || times == 0 {
		return
	}
	down := w.between(20*time.Millisecond, 600*time.Millisecond)
	w.apart(NetworkFlapping, a, b, w.now.Add(down))
	w.after(down+w.between(20*time.Millisecond, 600*time.Millisecond), func() { w.flap(a, b, times-1) })
}

// reset breaks the connection between two nodes: what is on its way is lost.
func (w *World) reset(a, b *node) (lost int) {
	for _, l := range [...]*link{w.net.link(a, b), w.net.link(b, a)} {
		lost += l.onWay
		l.resets++
		l.onWay = 0
	}
	return lost
}
