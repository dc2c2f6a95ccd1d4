// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/signals"
)

// AddModel records a request of an external agent to a model in its run, before the model gets it,
// and returns the ID under which the run knows it.
func (c *Client) AddModel(ctx context.Context, m *ingress.ModelRequest) (id string, err error) {
	reply, err := c.signal(ctx, m.Add(), &Request{Origin: actor.Agent})
	added, _ := signals.ReadAddedModel(reply.Parts)
	return added.ID, err
}

// EndModel records the outcome of a request that has the ID of AddModel: a completion of package
// upstream, or a refusal. Without an ID it records nothing, and shows by its error whether the run is
// open.
func (c *Client) EndModel(ctx context.Context, m *ingress.ModelRequest, id string, completion []byte, refusal *actor.Refusal) error {
	_, err := c.signal(ctx, m.End(id, completion, refusal), &Request{Origin: actor.Agent})
	return err
}
