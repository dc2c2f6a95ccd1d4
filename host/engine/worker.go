// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"

	proto "github.com/asynkron/protoactor-go/actor"
)

// worker is a cell's own goroutine. It steps the cell whenever no client does.
type worker struct {
	work     chan func() // capacity 1: a mailbox is scheduled at most once until it has run
	quit     chan struct{}
	done     chan struct{}
	stopOnce sync.Once // guards closing quit
}

var _ proto.Dispatcher = (*worker)(nil)

func newWorker() *worker {
	w := &worker{work: make(chan func(), 1), quit: make(chan struct{}), done: make(chan struct{})}
	go w.loop()
	return w
}

// Schedule implements protoactor's Dispatcher.
func (w *worker) Schedule(fn func()) {
	select {
	case w.work <- fn:
	case <-w.quit:
	}
}

// Throughput implements protoactor's Dispatcher.
func (w *worker) Throughput() int { return 128 }

func (w *worker) loop() {
	defer close(w.done)
	for {
		select {
		case fn := <-w.work:
			fn()
		case <-w.quit:
			return
		}
	}
}

// stop ends the goroutine and waits for it.
func (w *worker) stop() {
	w.stopOnce.Do(func() { close(w.quit) })
	<-w.done
}
