// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

const (
	signalWithin  = 30 * time.Second
	cancelWithin  = 5 * time.Second
	newsWithinMax = time.Minute
)

// look reads what is shown, which is durable by then.
func (s *Server) look(at func(View) error) error {
	within, cancel := context.WithTimeout(context.Background(), readWithin)
	defer cancel()
	return s.node.Read(within, func(kv store.KV) error { return at(View{kv}) })
}

// owner is whose run it is.
func (s *Server) owner(run actor.CallID) (owner store.RunOwner, err error) {
	err = s.look(func(v View) (err error) {
		owner, err = v.Owner(run)
		return err
	})
	return owner, err
}

// show answers with what a read finds.
func (s *Server) show(ctx *fasthttp.RequestCtx, read func(View) ([]byte, error)) {
	var body []byte
	err := s.look(func(v View) (err error) {
		body, err = read(v)
		return err
	})
	if err != nil {
		s.failed(ctx, err)
		return
	}
	ok(ctx, http.StatusOK, body)
}

func (s *Server) runs(ctx *fasthttp.RequestCtx) {
	limit, p := number(ctx, "limit", RunsDefault, RunsMax)
	if p != nil {
		p.write(ctx)
		return
	}
	s.show(ctx, func(v View) ([]byte, error) { return v.Runs(int(limit)) })
}

func (s *Server) run(ctx *fasthttp.RequestCtx) {
	id, p := runID(ctx)
	if p != nil {
		p.write(ctx)
		return
	}
	s.show(ctx, func(v View) ([]byte, error) { return v.Run(id) })
}

// events shows a run's events behind the one numbered after, as they come or, as
// JSON, those there are; if there are none yet, it waits for one as long as the
// client wishes.
func (s *Server) events(ctx *fasthttp.RequestCtx) {
	id, p := runID(ctx)
	if p == nil && ingress.WantsStream(header(ctx, fasthttp.HeaderAccept)) {
		s.eventStream(ctx, id)
		return
	}
	var of [3]uint64
	for i, q := range []struct {
		name     string
		or, most uint64
	}{{"after", 0, 1 << 62}, {"limit", EventsDefault, EventsMax}, {"wait_ms", 0, uint64(newsWithinMax / time.Millisecond)}} {
		if p == nil {
			of[i], p = number(ctx, q.name, q.or, q.most)
		}
	}
	if p == nil && ctx.QueryArgs().Has("tree") {
		p = invalid(http.StatusBadRequest, "tree", "tree: a tree of runs is told as a stream: say Accept: "+ingress.EventStream)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	news, deaf := s.node.Watch(id)
	defer deaf()
	patience := s.waiting(ctx, time.Duration(of[2])*time.Millisecond)
	defer patience.stop()
	for last := of[2] == 0; ; {
		var body []byte
		var wait bool
		err := s.look(func(v View) (err error) {
			body, wait, err = v.Events(id, of[0], int(of[1]))
			return err
		})
		if err != nil {
			s.failed(ctx, err)
			return
		}
		if !wait || last {
			ok(ctx, http.StatusOK, body)
			return
		}
		select {
		case <-news:
		case <-patience.Done():
			if left(ctx, patience.cause()) {
				return
			}
			last = true
		case <-s.draining:
			last = true
		}
	}
}

// eventStream tells of a run, or of a run and all below it, from where the client left off.
func (s *Server) eventStream(ctx *fasthttp.RequestCtx, id actor.CallID) {
	at, p := cursor(ctx)
	tree := false
	if p == nil {
		tree, p = flag(ctx, "tree")
	}
	if p != nil {
		p.write(ctx)
		return
	}
	if _, err := s.owner(id); err != nil {
		s.failed(ctx, err)
		return
	}
	if r := s.streams.begin(); r != nil {
		refusal(r).write(ctx)
		return
	}
	s.tell(ctx, id, tree, at, func() {})
}

// ofTheRegistry is why nobody has a hand in its runs: half a change would be
// written down, and not told.
func ofTheRegistry() *actor.Refusal {
	return actor.Refuse(actor.Rejected, "this run is the registry's, and ends by itself")
}

// signal answers a run that waits.
func (s *Server) signal(ctx *fasthttp.RequestCtx) {
	id, p := runID(ctx)
	var call actor.Call
	if p == nil {
		call, p = read(ctx, func(b []byte) (actor.Call, *actor.Refusal) { return ingress.Signal(id, b) })
	}
	if p == nil {
		p = promised(ctx, "POST /v1/runs/{id}:signal "+id.String(), &call)
	}
	if p == nil && call.Operation == ingress.CallAgent {
		p = invalid(http.StatusBadRequest, "name", "name: "+ingress.CallAgent+" is not for clients; an external agent says it by POST /v1/agents/{id}:invoke")
	}
	if p != nil {
		p.write(ctx)
		return
	}
	owner, err := s.owner(id)
	if err != nil {
		s.failed(ctx, err)
		return
	}
	if owner.Actor == agents.RegistryID {
		refusal(ofTheRegistry()).write(ctx)
		return
	}
	call.ID, call.To, call.Left = s.node.NewCallID(), owner.Actor, signalWithin
	within := s.waiting(ctx, signalWithin)
	answer, err := s.node.Ask(within, call)
	why := within.cause()
	within.stop()
	switch {
	case left(ctx, why):
	case err != nil:
		s.failed(ctx, err)
	case answer.Reply.Refusal != nil:
		p := refusal(answer.Reply.Refusal)
		p.Run = id.String()
		p.write(ctx)
	default:
		okJSON(ctx, http.StatusOK, struct {
			Run    string `json:"run_id"`
			Name   string `json:"name"`
			Status string `json:"status"`
		}{id.String(), call.Operation, "received"})
	}
}

// cancel gives a run up, with all that it waits for. One that has ended stays as
// it is; so a cancel may be repeated.
func (s *Server) cancel(ctx *fasthttp.RequestCtx) {
	id, p := runID(ctx)
	if p == nil {
		p = nothing(ctx)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	owner, err := s.owner(id)
	if err != nil {
		s.failed(ctx, err)
		return
	}
	if owner.Actor == agents.RegistryID {
		refusal(ofTheRegistry()).write(ctx)
		return
	}
	news, deaf := s.node.Watch(id)
	defer deaf()
	within := s.waiting(ctx, cancelWithin)
	defer within.stop()
	for asked := false; ; {
		var record runs.Record
		err := s.look(func(v View) (err error) {
			record, err = v.Record(id)
			return err
		})
		if err == nil && !record.Status.Ended() && !asked {
			if r := s.node.Cancel(id, owner.Actor); r != nil {
				err = r
			}
			asked = true
		}
		if err != nil {
			s.failed(ctx, err)
			return
		}
		out := struct {
			Run    string `json:"run_id"`
			Status string `json:"status"`
		}{id.String(), record.Status.String()}
		if record.Status.Ended() {
			okJSON(ctx, http.StatusOK, out)
			return
		}
		select {
		case <-news:
		case <-within.Done():
			if left(ctx, within.cause()) {
				return
			}
			okJSON(ctx, http.StatusAccepted, out) // it ends as soon as its agent lets it
			return
		}
	}
}
