// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"github.com/troupe-run/troupe/internal/client"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

const (
	agentChatPing = 15 * time.Second
	agentChatPage = 256 // events that are read at a time
)

// agentAnswer is the answer of an agent in the form of the OpenAI API, made of the events of its run.
type agentAnswer struct {
	server    *Server
	by        caller
	run       actor.CallID
	head      ingress.ChatHead
	withUsage bool
	coding    transferCoding    // of a stream
	keep      func(text string) // is called with the text that the client has, before its end

	seq     uint64 // of the last event that was read
	follows ingress.ChatAnswer
	record  runs.Record
	sent    []byte // text that the client has
	end     *runs.Event
}

// wait reads the events of the run until its end.
func (a *agentAnswer) wait(ctx context.Context, watch *client.Watch) error {
	for {
		_, more, err := a.read()
		switch away := watch.Away(err); {
		case !away && (err != nil || a.end != nil):
			return err
		case away || !more:
			if err := watch.Await(ctx); err != nil {
				return err
			}
		}
		if err := watch.Check(ctx); err != nil {
			return err
		}
	}
}

// read reads the next events and returns the text that they add for the client, and whether
// further events can be read.
func (a *agentAnswer) read() (text string, more bool, err error) {
	defer a.server.turns.take(&a.by)()
	page, err := lookup(a.server, a.by, command.EventsQuery{Run: a.run, After: a.seq, Limit: agentChatPage})
	if err != nil {
		return "", false, err
	}
	var all strings.Builder
	for i := range page.All {
		e, err := runs.Decode(page.All[i].Body)
		if err == nil {
			err = a.record.Apply(&e)
		}
		if err != nil {
			return "", false, err
		}
		a.seq = e.Seq
		all.WriteString(a.follows.Apply(&e))
		if e.Type.Ends() {
			a.end = &e
			break
		}
	}
	return all.String(), a.end == nil && len(page.All) == agentChatPage, nil
}

// stream sends the text as it is read.
func (a *agentAnswer) stream(e eventStream, out []byte, watch *client.Watch) {
	gone, unwatch := watchPeer(e.conn)
	defer unwatch()
	out = append(out, a.coding.part(a.head.Chunk(ingress.ChatChunk{Role: "assistant"}, a.withUsage))...)
	unread := true
	for pinged := time.Now(); ; {
		if unread {
			text, more, err := a.read()
			switch unread = more; {
			case watch.Away(err):
			case err != nil:
				a.fail(e, out, a.problemOf(err))
				return
			case text != "":
				out = append(out, a.coding.part(a.head.Chunk(ingress.ChatChunk{Text: text}, a.withUsage))...)
				if len(a.sent) <= agentChatSentMax { // a longer answer is not kept
					a.sent = append(a.sent, text...)
				}
			}
		}
		switch {
		case a.end != nil && a.end.Type == runs.RunDone:
			a.keep(string(a.sent))
			e.write(append(out, a.coding.last(a.lastFrames(ingress.ChatFinish(a.end.Status)))...))
			return
		case a.end != nil:
			a.fail(e, out, a.failure())
			return
		case len(out) == 0 && time.Since(pinged) >= agentChatPing:
			out = a.coding.part([]byte(openAIPing))
		}
		if len(out) > 0 {
			if pinged = time.Now(); !e.write(out) {
				return
			}
			out = nil
		}
		err := watch.Check(peerContext{gone})
		if err == nil && !unread {
			unread, err = watch.Wait(peerContext{gone}, time.Until(pinged.Add(agentChatPing)))
		}
		switch {
		case errors.Is(err, context.Canceled):
			return
		case errors.Is(err, client.ErrRevoked):
			a.fail(e, nil, invalidKey())
			return
		case err != nil:
			a.fail(e, nil, a.problemOf(err))
			return
		}
	}
}

// lastFrames are the frames behind the text.
func (a *agentAnswer) lastFrames(finish string) []byte {
	b := a.head.Chunk(ingress.ChatChunk{Finish: finish}, a.withUsage)
	if a.withUsage {
		b = append(b, a.head.UsageChunk(a.record.Tree)...)
	}
	return append(b, ingress.ChatEnd...)
}

// fail ends a stream with an error, which no client takes for a complete answer.
func (a *agentAnswer) fail(e eventStream, out []byte, p *problem) {
	e.writeFinal(append(out, a.coding.last(runs.Frame{Data: string(p.appendOpenAI(nil))}.Append(nil))...))
}

// failure is the problem of a run that has no answer.
func (a *agentAnswer) failure() *problem {
	p := refusalProblem(a.end.Refusal)
	p.Run = a.run.String()
	return p
}

// problemOf is the problem of a run that cannot be followed.
func (a *agentAnswer) problemOf(err error) *problem {
	var r *actor.Refusal
	switch {
	case errors.Is(err, command.ErrClosed):
		return a.continues("this server is stopping")
	case errors.As(err, &r):
		return refusalProblem(r)
	default:
		a.server.log.Error("cannot read the events of a run", "run", a.run.String(), "error", err.Error())
		return internalProblem()
	}
}

// continues is the problem of a client that has to read the answer elsewhere.
func (a *agentAnswer) continues(why string) *problem {
	p := refusalProblem(actor.RefuseUnavailable(time.Second, "%s; the run continues: read its answer at GET /v1/runs/%s", why, a.run))
	p.Run = a.run.String()
	return p
}
