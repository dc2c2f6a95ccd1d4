// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

const (
	// Window is the maximum number of open deliveries of a webhook, plus those of the rest of a batch. More notices
	// stay in the log.
	Window = 1024
	// GiveUpAfter is the time after its event at which a notice is given up.
	GiveUpAfter = 72 * time.Hour

	sendingMax    = 8                // requests at once
	answerTimeout = 15 * time.Second // of one attempt
	answerBytes   = 64 << 10         // that are read of an answer, so that its connection can be used again
	retryMin      = time.Second
	retryMax      = 5 * time.Minute
	retryAfterMax = time.Hour
	savePeriod    = 200 * time.Millisecond // minimum time between two writes of the position, over all logs
	saveAgain     = 2 * time.Second        // likewise, after one that failed
	idlePeriod    = 5 * time.Second        // likewise, if it moves without deliveries
	busyPeriod    = 50 * time.Millisecond  // until a place for a request is looked for again
	closeTimeout  = 3 * time.Second        // for requests that are under way
	readPeriod    = time.Second            // of the lists of MCP servers, and of a log that could not be read
)

// webhook delivers the notices of a node to one receiver. One goroutine owns all of it; those that send
// report to it.
type webhook struct {
	config Config
	target target
	set    *Webhooks
	room   *Room
	log    *slog.Logger
	now    func() time.Time

	position position
	dirty    bool
	saved    time.Time
	turn     time.Time              // at which the position is written; zero: there is nothing to write
	unsaved  bool                   // the last write failed
	lost     bool                   // another process has the log
	read     uint64                 // batch up to which the log was read
	open     map[string][]*delivery // by object, in order
	count    int                    // of open deliveries
	sending  int
	ended    chan *delivery
	failing  bool // the last attempt failed

	mu    sync.Mutex
	stats Stats
}

// delivery is a notice that is not delivered yet.
type delivery struct {
	Notice
	attempts int
	due      time.Time
	sending  bool
	err      error         // of the last attempt
	after    time.Duration // that the receiver asked to wait
}

// Stats has the figures of a webhook.
type Stats struct {
	Name      string
	Delivered uint64
	Failed    uint64     // attempts
	GivenUp   uint64     // notices
	Waiting   int        // open deliveries; more may be in the log
	Oldest    actor.Time // of their events; 0 if there is none
}

// run delivers until ctx ends.
func (w *webhook) run(ctx context.Context, source Source) {
	changed := source.Changed()
	timer := time.NewTimer(0)
	defer timer.Stop()
	offers := time.NewTicker(readPeriod)
	defer offers.Stop()
	w.notice(source)
	for {
		next := idlePeriod
		if ctx.Err() == nil {
			w.refill(ctx, source)
			next = w.send()
		}
		next = min(next, w.save(false))
		w.publish()
		timer.Reset(next)
		select {
		case <-changed:
		case <-timer.C:
		case <-offers.C:
			w.notice(source)
		case d := <-w.ended:
			for w.end(d); len(w.ended) > 0; {
				w.end(<-w.ended)
			}
		case <-ctx.Done():
			time.AfterFunc(closeTimeout, w.set.abort)
			for w.sending > 0 {
				w.end(<-w.ended)
			}
			w.save(true)
			w.publish()
			w.room.open.Add(-int64(w.count)) // for the logs that stay
			return
		}
	}
}

// refill reads further notices from the log, as long as there is room.
func (w *webhook) refill(ctx context.Context, source Source) {
	for ctx.Err() == nil {
		left := Window - int(w.room.open.Load())
		if left <= 0 {
			return
		}
		page, err := source.Notices(ctx, w.read, left)
		if err != nil {
			if ctx.Err() == nil {
				w.log.Error("the notices of a webhook cannot be read from the log; it is tried again", "error", err.Error())
			}
			return
		}
		if page.Upto == w.read {
			return
		}
		w.read = page.Upto
		for i := range page.All {
			n := &page.All[i]
			if _, delivered := w.position.Delivered[n.ID()]; !delivered && w.wants(n.Kind) {
				w.add(*n)
			}
		}
		w.move()
	}
}

func (w *webhook) wants(kind runs.Notice) bool {
	return len(w.target.kinds) == 0 || slices.Contains(w.target.kinds, kind)
}

func (w *webhook) add(n Notice) {
	w.open[n.Object()] = append(w.open[n.Object()], &delivery{Notice: n})
	w.count++
	w.room.open.Add(1)
}

// notice adds the lists of MCP servers that wait for their acceptance and were not noticed before.
func (w *webhook) notice(source Source) {
	if !w.wants(runs.NoticeMCPChanged) {
		return
	}
	offers := source.Offers()
	for server, hash := range offers {
		if w.position.Offers[server] == hash {
			continue
		}
		if w.position.Offers == nil {
			w.position.Offers = map[string]string{}
		}
		o := owed{server, hash, w.now().UnixNano()}
		w.position.Offers[server], w.position.Owed, w.dirty = hash, append(w.position.Owed, o), true
		w.owe(o)
	}
	for server := range w.position.Offers {
		if offers[server] == "" { // accepted or withdrawn; the same list may be offered again
			delete(w.position.Offers, server)
			w.dirty = true
		}
	}
}

func (w *webhook) owe(o owed) {
	w.add(Notice{Kind: runs.NoticeMCPChanged, Server: o.Server, Hash: o.Hash, Seen: actor.Time(o.Seen)})
}

// move moves the position to the batch before the first open delivery.
func (w *webhook) move() {
	batch := w.read
	for _, queue := range w.open {
		for _, d := range queue {
			if d.Batch > 0 {
				batch = min(batch, d.Batch-1)
			}
		}
	}
	if batch > w.position.Batch {
		w.position.Batch, w.dirty = batch, true
		w.position.prune()
	}
}

// send starts the deliveries that are due, the first of each object, and returns the time until the next one.
func (w *webhook) send() (next time.Duration) {
	now := w.now()
	var due []*delivery
	next = idlePeriod
	for _, queue := range w.open {
		switch d := queue[0]; {
		case d.sending:
		case d.due.After(now):
			next = min(next, d.due.Sub(now))
		default:
			due = append(due, d)
		}
	}
	slices.SortFunc(due, func(a, b *delivery) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.At(), b.At()), cmp.Compare(a.ID(), b.ID()))
	})
	for _, d := range due {
		if w.room.sending.Add(1) > sendingMax { // also those of other logs
			w.room.sending.Add(-1)
			return min(next, busyPeriod)
		}
		d.sending = true
		w.sending++
		go func() {
			d.after, d.err = w.post(w.set.requests, &d.Notice)
			w.ended <- d
		}()
	}
	return next
}

// end processes the end of an attempt.
func (w *webhook) end(d *delivery) {
	d.sending = false
	w.sending--
	w.room.sending.Add(-1)
	d.attempts++
	switch {
	case d.err == nil:
		if w.failing {
			w.failing = false
			w.log.Info("the webhook takes deliveries again")
		}
		w.tally(func(s *Stats) { s.Delivered++ })
		w.drop(d)
	case w.set.requests.Err() != nil: // it was aborted, and is sent after the next start
	case w.now().Sub(time.Unix(0, int64(d.At()))) > GiveUpAfter:
		w.log.Error("a notice is given up: the webhook did not take it", "id", d.ID(), "attempts", d.attempts, "error", d.err.Error())
		w.tally(func(s *Stats) { s.Failed++; s.GivenUp++ })
		w.drop(d)
	default:
		level := slog.LevelDebug
		if !w.failing { // one line for each time that it begins to fail
			w.failing, level = true, slog.LevelWarn
		}
		d.due = w.now().Add(max(backOff(d.attempts), min(d.after, retryAfterMax)))
		w.log.Log(context.Background(), level, "a webhook did not take a delivery; it is tried again", "id", d.ID(), "attempts", d.attempts, "error", d.err.Error())
		w.tally(func(s *Stats) { s.Failed++ })
	}
}

// backOff returns the delay after a number of failed attempts: it doubles, and up to a fifth of it is drawn.
func backOff(attempts int) time.Duration {
	delay := min(retryMin<<min(attempts-1, 20), retryMax)
	return delay - rand.N(delay/5)
}

// drop removes a delivery that has ended. It is the first of its object.
func (w *webhook) drop(d *delivery) {
	object := d.Object()
	if w.open[object] = w.open[object][1:]; len(w.open[object]) == 0 {
		delete(w.open, object)
	}
	w.count--
	w.room.open.Add(-1)
	w.dirty = true
	if d.Batch == 0 {
		w.position.Owed = slices.DeleteFunc(w.position.Owed, func(o owed) bool { return o.Server == d.Server && o.Hash == d.Hash })
		return
	}
	if w.position.Delivered == nil {
		w.position.Delivered = map[string]uint64{}
	}
	w.position.Delivered[d.ID()] = d.Batch
	w.move()
}

// save writes the position if it has changed and it is its turn, or if it must be written now. It returns the time
// until the next write. All deliveries of the log end if another process has it.
func (w *webhook) save(now bool) (next time.Duration) {
	if !w.dirty || w.lost {
		return idlePeriod
	}
	if w.turn.IsZero() && !now {
		period := savePeriod
		switch {
		case w.unsaved:
			period = saveAgain
		case w.count == 0 && len(w.position.Delivered) == 0 && len(w.position.Owed) == 0: // nothing but the batch has changed
			period = idlePeriod
		}
		if left := period - w.now().Sub(w.saved); left > 0 {
			return left
		}
		w.turn = w.room.turn(w.now())
	}
	if left := w.turn.Sub(w.now()); left > 0 && !now {
		return left
	}
	err := w.set.positions.Write(w.config.Name, mustJSON(&w.position))
	w.saved, w.turn = w.now(), time.Time{}
	switch {
	case errors.Is(err, logs.ErrNotOwner):
		w.lost = true
		w.log.Warn("the deliveries of a webhook end here: another process has the log, and continues them")
		w.set.cancel()
		return idlePeriod
	case err != nil:
		if !w.unsaved { // one line for each time that it begins to fail
			w.log.Error("the position of a webhook cannot be written: it is tried again, and after a restart before then deliveries are repeated", "error", err.Error())
		}
		w.unsaved = true
		return saveAgain
	case w.unsaved:
		w.unsaved = false
		w.log.Info("the position of a webhook is written again")
	}
	w.dirty = false
	return idlePeriod
}

func (w *webhook) tally(change func(*Stats)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.stats)
}

// publish updates the figures, and the batch that the log must keep.
func (w *webhook) publish() {
	oldest := actor.Time(0)
	for _, queue := range w.open {
		if at := queue[0].At(); oldest == 0 || at < oldest {
			oldest = at
		}
	}
	w.set.kept(w, w.position.Batch)
	w.tally(func(s *Stats) { s.Waiting, s.Oldest = w.count, oldest })
}

// statusError is the answer of a receiver that did not take a delivery.
type statusError int

func (e statusError) Error() string {
	return fmt.Sprintf("the receiver answered with status %d, want 200 to 299", int(e))
}

// post sends a delivery once, and returns the time that the receiver asks to wait.
func (w *webhook) post(ctx context.Context, n *Notice) (after time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	content := n.encode(w.config.Details)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.target.url, bytes.NewReader(content))
	if err != nil {
		return 0, fmt.Errorf("request: %w", err)
	}
	seconds := w.now().Unix()
	r.GetBody = nil // the transport repeats nothing by itself
	for name, value := range map[string]string{"Content-Type": "application/json", "User-Agent": "troupe", "webhook-id": n.ID(), "webhook-timestamp": strconv.FormatInt(seconds, 10),
		"webhook-signature": signature(w.target.secret, n.ID(), seconds, content), upstream.EgressHeader: cmp.Or(w.set.mark, "1")} {
		r.Header.Set(name, value)
	}
	answer, err := w.set.transport.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, answerBytes))
	_ = answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		if s, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 31); err == nil {
			after = time.Duration(s) * time.Second
		}
		return after, statusError(answer.StatusCode)
	}
	return 0, err
}
