// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// Bounds of Partial.
const (
	partialEventsMax = 10_000
	partialBytesMax  = 64 << 10
	partialNamesMax  = 64
)

// Partial is what a run had produced when its time ran out.
type Partial struct {
	Text       string   `json:"text,omitzero"`       // of the answer that its agent had begun
	Finished   []string `json:"finished,omitzero"`   // agents that had answered its calls
	Incomplete []string `json:"incomplete,omitzero"` // agents that had not
}

// IsZero reports whether the run had produced nothing.
func (p Partial) IsZero() bool { return p.Text == "" && len(p.Finished)+len(p.Incomplete) == 0 }

// Partial returns what a run that has failed had produced, from its first events.
func (c *Client) Partial(ctx context.Context, run actor.CallID) (p Partial, err error) {
	var answer runs.AnswerText
	var record runs.Record
	for after := uint64(0); after < partialEventsMax; {
		page, err := find(ctx, c, command.EventsQuery{Run: run, After: after, Limit: command.EventsMax})
		if err != nil {
			return p, err
		}
		for i := range page.All {
			e, err := runs.Decode(page.All[i].Body)
			if err == nil {
				err = record.Apply(&e)
			}
			if err != nil {
				return p, err
			}
			answer.Apply(&e)
		}
		if after = page.After; len(page.All) < command.EventsMax {
			break
		}
	}
	text, _ := answer.Streamed()
	p.Text = actor.FitText(text, partialBytesMax)
	for i := range record.Children {
		child := &record.Children[i]
		names := &p.Incomplete
		if child.Status == actor.Succeeded || child.Status == actor.Partial {
			names = &p.Finished
		}
		if name := child.Actor.Agent; name != "" && len(*names) < partialNamesMax {
			*names = append(*names, name)
		}
	}
	return p, nil
}
