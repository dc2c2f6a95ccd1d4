// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/upstream"
)

const (
	// ChatsMax is the maximum number of open requests of clients to models.
	ChatsMax = 4096

	chatIdleMax      = 3 * command.ChatBeat // time without a reader after which a request is cancelled
	chatPartBytesMax = 64 << 10             // size of a part, except for the last one

	unknownModelBytesMax = 80 // size of the name in the run
)

// chatEngine is the part of an engine.Engine that requests to models need.
type chatEngine interface {
	NewCallID() actor.CallID
	RecordChat(model, agent string, took actor.Duration, answer actor.Answer)
}

// chats are the open requests of clients to models.
type chats struct {
	outbound *outbound.Outbound
	engine   chatEngine
	left     actor.Duration // maximum time of a request

	mu   sync.Mutex
	open map[actor.CallID]*chat
}

func newChats(o *outbound.Outbound, e chatEngine, left actor.Duration) *chats {
	return &chats{outbound: o, engine: e, left: left, open: map[actor.CallID]*chat{}}
}

// chat is one request. Its parts wait for a reader, so a slow client slows the model.
type chat struct {
	by     actor.Principal
	in     outbound.ChatRequest
	model  string
	agent  string
	cancel context.CancelFunc
	begin  func()           // performs the request once
	parts  chan string      // closed at the end, when last is set
	last   command.ChatPart // valid once parts is closed
	idle   *time.Timer      // cancels the request
	reader sync.Mutex       // held by the reader of a part

	unknown *actor.Refusal // of a request for a run to a model that does not exist; the run records it
}

// models lists the models.
func (c *chats) models() (command.Result, error) {
	if c == nil {
		return nil, noModels()
	}
	return command.Models{All: c.outbound.Models()}, nil
}

func noModels() error {
	return actor.Refuse(actor.Rejected, "this node passes no requests on to models")
}

// do performs an action of a request.
func (c *chats) do(ctx context.Context, in command.Do) (command.Result, error) {
	if c == nil {
		return nil, noModels()
	}
	switch a := in.Action.(type) {
	case command.StartChat:
		return c.add(in.By, a)
	case command.ReadChat:
		return c.part(ctx, in.By, a.Chat)
	case command.CancelChat:
		return command.ChatPart{}, c.stop(in.By, a.Chat)
	}
	return nil, fmt.Errorf("unknown action %T", in.Action)
}

// add checks a request and keeps it until its first part is asked for.
func (c *chats) add(by actor.Principal, q command.StartChat) (command.Chat, error) {
	in, refusal := upstream.ReadChat(q.Body)
	if refusal != nil {
		return command.Chat{}, refusal
	}
	prompt, answer := in.Tokens()
	model, unknown := in.Model, c.outbound.CheckModel(in.Model)
	if unknown != nil && q.Agent == "" {
		return command.Chat{}, unknown
	} else if unknown != nil {
		model, in = actor.FitText(model, unknownModelBytesMax), upstream.Chat{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	one := &chat{by: by, model: model, agent: q.Agent, unknown: unknown, cancel: cancel, parts: make(chan string, 16),
		in: outbound.ChatRequest{Chat: in, Principal: q.Share, Trace: q.Trace, Left: c.left, Owner: q.Owner, Run: q.Run}}
	one.begin = sync.OnceFunc(func() { go c.run(ctx, one) })
	id := c.engine.NewCallID()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= ChatsMax {
		cancel()
		return command.Chat{}, actor.RefuseBusy(actor.ScopeNode, time.Second, "%d requests to models are open, which is the limit", ChatsMax)
	}
	one.idle = time.AfterFunc(chatIdleMax, func() { c.end(id, one) })
	c.open[id] = one
	return command.Chat{ID: id, Model: model, PromptTokens: prompt, AnswerTokens: answer}, nil
}

// run performs a request.
func (c *chats) run(ctx context.Context, o *chat) {
	defer close(o.parts)
	if o.unknown != nil {
		o.last = command.ChatPart{Last: true, Refusal: o.unknown}
		return
	}
	began := time.Now()
	in := o.in
	o.in = outbound.ChatRequest{} // the body is that of the request upstream from now on
	outcome := c.outbound.Chat(ctx, in, func(text string) {
		select {
		case o.parts <- text:
		case <-ctx.Done():
		}
	})
	o.last = command.ChatPart{Bytes: outcome.Tail, Last: true, Streams: outcome.Streams, Refusal: outcome.Refusal, Detail: outcome.Detail, Status: uint64(outcome.Status), Code: outcome.Code, Error: outcome.Error}
	answer := actor.Answer{Refusal: outcome.Refusal}
	if outcome.Refusal == nil {
		o.last.Completion, o.last.Tokens = outcome.Completion.Encode(), uint64(outcome.Completion.Usage.Total)
		answer.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: o.last.Completion}}
	}
	c.engine.RecordChat(o.model, o.agent, time.Since(began), answer)
}

// end cancels a request and forgets it.
func (c *chats) end(id actor.CallID, o *chat) {
	c.mu.Lock()
	delete(c.open, id)
	c.mu.Unlock()
	o.idle.Stop()
	o.cancel()
}

// find returns an open request of a principal.
func (c *chats) find(by actor.Principal, id actor.CallID) (*chat, error) {
	c.mu.Lock()
	one := c.open[id]
	c.mu.Unlock()
	if one == nil || one.by.Tenant != by.Tenant || one.by.User != by.User {
		return nil, actor.Refuse(actor.NotFound, "no request %s to a model is open", id)
	}
	return one, nil
}

// stop cancels a request.
func (c *chats) stop(by actor.Principal, id actor.CallID) error {
	one, err := c.find(by, id)
	if err == nil {
		c.end(id, one)
	}
	return err
}

// part returns the next part of an answer.
func (c *chats) part(ctx context.Context, by actor.Principal, id actor.CallID) (command.ChatPart, error) {
	one, err := c.find(by, id)
	if err != nil {
		return command.ChatPart{}, err
	}
	one.reader.Lock()
	defer one.reader.Unlock()
	one.idle.Stop()
	one.begin()
	part, last := one.next(ctx)
	if last {
		c.end(id, one)
		return one.last, nil
	}
	one.idle.Reset(chatIdleMax)
	return command.ChatPart{Bytes: part}, nil
}

// next waits for the next part. Those that have arrived together are returned together.
func (o *chat) next(ctx context.Context) (part []byte, last bool) {
	beat := time.NewTimer(command.ChatBeat)
	defer beat.Stop()
	select {
	case text, open := <-o.parts:
		if !open {
			return nil, true
		}
		part = append(part, text...)
	case <-beat.C:
		return nil, false
	case <-ctx.Done():
		return nil, false
	}
	for len(part) < chatPartBytesMax {
		select {
		case text, open := <-o.parts:
			if !open { // the next query finds it closed
				return part, false
			}
			part = append(part, text...)
		default:
			return part, false
		}
	}
	return part, false
}
