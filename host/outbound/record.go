// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// Recorded is a request to a model for a run and its outcome. It has content; see Config.Record.
type Recorded struct {
	Owner      actor.ID // agent that has sent the request for the run
	Run        actor.CallID
	External   bool // that agent is an external one, which has sent it itself
	Began      time.Time
	Took       time.Duration
	Model      string // in the configuration
	Provider   string // name of the model at its server, as it was sent
	Request    []byte // body as it was sent; before that, the prompt. It MUST NOT be changed
	Completion upstream.Completion
	Raw        []byte // answer as it was passed on to an external agent; the Completion has no text then. nil otherwise
	Refusal    *actor.Refusal
	Status     int // of the last response; 0 if there was none
	Attempts   int
	// Mask returns a text without the secrets of the request; nil: it has none.
	Mask func([]byte) []byte
}

// record begins the record of a request; end is nil if it is not recorded.
func (o *Outbound) record(model string, owner actor.ID, run actor.CallID) (x *Recorded, end func()) {
	if o.config.Record == nil {
		return nil, nil
	}
	done := o.config.Record(owner, run)
	if done == nil {
		return nil, nil
	}
	x = &Recorded{Owner: owner, Run: run, Model: model, Began: time.Now()}
	return x, func() {
		x.Took = time.Since(x.Began)
		done(x)
	}
}

// setRequest sets what is sent. A nil Recorded ignores it.
func (x *Recorded) setRequest(m *model, r upstream.Request) {
	if x != nil {
		x.Request, x.Model, x.Provider, x.Mask = r.Body, m.name, m.config.Model, r.Mask
	}
}

// setOutcome sets how the exchange has ended.
func (x *Recorded) setOutcome(o *upstream.Outcome) {
	if x == nil {
		return
	}
	x.Completion, x.Attempts = o.Completion, len(o.Attempts)
	if x.Attempts > 0 {
		x.Status = o.Attempts[x.Attempts-1].Status
	}
}

// addRaw adds a part of the answer to an external agent, up to the size of a whole answer.
func (x *Recorded) addRaw(part string) {
	x.Raw = append(x.Raw, part[:min(len(part), upstream.BodyBytesMax-len(x.Raw))]...)
}
