// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// ChatRequest is a request of a client to a model, which is passed on.
type ChatRequest struct {
	Chat      upstream.Chat
	Principal string
	Trace     string // see actor.Call.Trace
	Left      actor.Duration
	Owner     actor.ID     // agent that sends it for a run
	Run       actor.CallID // zero: it belongs to none
}

// ChatOutcome is the end of a ChatRequest. Either Tail or Refusal is set.
type ChatOutcome struct {
	Tail       []byte // last part of the answer; see upstream.ChatReader
	Streams    bool   // the answer is a stream of events
	Completion upstream.Completion
	Refusal    *actor.Refusal
	Detail     string // of the refusal, for the client: without the address of the model, and with its name in the configuration
	Status     int    // of the last response of the model; 0 if there was none
	Code       string // of the error in it; may be empty
	Error      []byte // JSON object with the error as the model's server sent it, without its address; nil if there is none
}

// CheckModel returns a refusal if there is no model of a name.
func (o *Outbound) CheckModel(name string) *actor.Refusal {
	if _, ok := o.models[name]; !ok {
		return o.unknownModel(name)
	}
	return nil
}

// Chat passes a request on to a model. It calls onPiece with each part of a streamed answer
// as it arrives, except for the last part. ctx ends when the client has gone.
func (o *Outbound) Chat(ctx context.Context, in ChatRequest, onPiece func(text string)) ChatOutcome {
	x, end := o.record(in.Chat.Model, in.Owner, in.Run)
	if end == nil {
		return o.chat(ctx, in, onPiece, nil)
	}
	x.External, x.Raw = true, []byte{}
	out := o.chat(ctx, in, func(text string) {
		x.addRaw(text)
		onPiece(text)
	}, x)
	x.addRaw(string(out.Tail))
	x.Refusal = out.Refusal
	end()
	return out
}

// chat is Chat for a request whose record is x, nil if there is none.
func (o *Outbound) chat(ctx context.Context, in ChatRequest, onPiece func(text string), x *Recorded) ChatOutcome {
	m, ok := o.models[in.Chat.Model]
	if !ok {
		return ChatOutcome{Refusal: o.unknownModel(in.Chat.Model)}
	}
	var reader *upstream.ChatReader
	outcome := o.inTurn(m, o.deadline(ctx, in.Left), func(p actor.Piece) {
		if p.Retry == nil {
			onPiece(p.Text)
		}
	}, func(t turn, onPiece func(actor.Piece)) *upstream.Outcome {
		m = t.model
		var outcome *upstream.Outcome
		reader, outcome = o.passOn(ctx, t, &in, onPiece, x)
		return outcome
	})
	if reader == nil {
		return ChatOutcome{Refusal: outcome.Refusal}
	}
	out := ChatOutcome{Tail: reader.Tail(), Streams: reader.Streams(), Completion: outcome.Completion, Refusal: outcome.Refusal, Code: outcome.Code}
	if n := len(outcome.Attempts); n > 0 {
		out.Status = outcome.Attempts[n-1].Status
	}
	if out.Refusal != nil {
		out.Detail = m.detailForClient(out.Refusal.Detail)
		if out.Refusal.Reason != actor.ModelAuth { // which is about the key of this server
			out.Error = []byte(m.withoutAddress(string(outcome.Object)))
		}
	}
	return out
}

// passOn passes a request on to a model. There is no reader of the answer if nothing was sent.
func (o *Outbound) passOn(ctx context.Context, t turn, in *ChatRequest, onPiece func(actor.Piece), x *Recorded) (*upstream.ChatReader, *upstream.Outcome) {
	m := t.model
	endpoint := m.refusals.apply(m.endpoint)
	endpoint.Trace = in.Trace
	order, reader, refusal := endpoint.Chat(&in.Chat, m.config.Model, t.deadline, t.limits()) // has a copy of the body
	var roundTripper http.RoundTripper = o.transport
	if refusal == nil && m.name == upstream.ScriptName {
		var prompt upstream.Prompt
		prompt, refusal = in.Chat.Prompt()
		roundTripper = scriptTransport{prompt, o.config.Pace}
		if !in.Chat.Stream {
			roundTripper = scriptAnswer(prompt)
		}
	}
	if refusal != nil {
		return nil, &upstream.Outcome{Refusal: refusal}
	}
	if t.others == 0 {
		in.Chat = upstream.Chat{}
	}
	x.setRequest(m, order.Request)
	release, refusal := o.acquireModel(ctx, m, in.Principal, t.left())
	if refusal != nil {
		return nil, &upstream.Outcome{Refusal: refusal}
	}
	defer release()
	outcome := o.runExchange(ctx, order, roundTripper, t.pacer(), &m.stats, nil, onPiece)
	m.setCost(outcome)
	o.remember(m, outcome)
	x.setOutcome(outcome)
	return reader, outcome
}

// shownServer replaces the address of a model in details for clients.
const shownServer = "its server"

// detailForClient returns the detail of a refusal for clients that know the model by its name in
// the configuration. The words of the model's server stay, without its address. The log and the run have the
// whole detail.
func (m *model) detailForClient(detail string) string {
	if rest, ok := strings.CutPrefix(detail, "model "+m.config.Model); ok {
		detail = "model " + m.name + rest
	}
	detail, _, _ = strings.Cut(detail, upstream.RemedyPrefix)
	if before, _, ok := strings.Cut(detail, invalidCertificate+":"); ok { // the rest may have internal names
		detail = before + invalidCertificate
	}
	return m.withoutAddress(detail)
}

// withoutAddress removes the address of a model from a text for clients.
func (m *model) withoutAddress(detail string) string {
	if u, err := url.Parse(m.endpoint.URL); err == nil {
		if host := u.Hostname(); strings.ContainsAny(host, ".:") || host == "localhost" { // another name may be a word of the text
			detail = strings.ReplaceAll(strings.ReplaceAll(detail, u.Host, shownServer), host, shownServer)
		} else {
			detail = strings.ReplaceAll(strings.ReplaceAll(detail, host+":", shownServer+":"), "//"+host, "//"+shownServer)
		}
	}
	return detail
}

// scriptAnswer is the scripted model for a request without stream.
type scriptAnswer upstream.Prompt

// RoundTrip implements http.RoundTripper.
func (s scriptAnswer) RoundTrip(*http.Request) (*http.Response, error) {
	answer := upstream.AppendAnswer(nil, upstream.Script(upstream.Prompt(s)))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(string(answer)))}, nil
}
