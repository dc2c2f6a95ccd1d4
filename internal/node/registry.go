// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// RegistryTimeout is the maximum duration of a registry operation.
const RegistryTimeout = 30 * time.Second

// CallRegistry performs a registry operation as the operator and returns the answer
// as JSON.
func (n *Node) CallRegistry(ctx context.Context, operation string, body []byte) (answer []byte, warnings []string, err error) {
	a, err := n.engine.Ask(ctx, actor.Call{ID: n.engine.NewCallID(), To: agents.RegistryID, Operation: operation, Left: RegistryTimeout,
		Principal: agents.Operator, Origin: actor.System, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: body}}})
	switch {
	case err != nil:
		return nil, nil, errorOf(err)
	case a.Reply.Refusal != nil:
		return nil, nil, a.Reply.Refusal
	case len(a.Reply.Parts) != 1:
		return nil, nil, fmt.Errorf("%s: no answer from the registry in time", operation)
	}
	return a.Reply.Parts[0].Bytes, a.Reply.Warnings, nil
}

// PutAgent stores an agent of the operator in the registry, unless it is stored
// already. It retries while the registry is busy for a short time.
func (n *Node) PutAgent(ctx context.Context, spec agents.Spec) (changed bool, warnings []string, err error) {
	if err := n.outbound.Permit(spec.Endpoint, spec.Auth.Env); err != nil {
		return false, nil, err
	}
	if known, owner, ok := n.catalog.spec(spec.ID); ok && known.Hash() == spec.Hash() && owner == agents.Operator {
		return false, nil, nil
	}
	operation := agents.OpPut
	if spec.Kind == agents.KindExternal {
		operation = agents.OpRegister
	}
	ctx, cancel := context.WithTimeout(ctx, RegistryTimeout)
	defer cancel()
	err = retryBusy(ctx, func() (err error) {
		_, warnings, err = n.CallRegistry(ctx, operation, spec.Encode())
		return err
	})
	return err == nil, warnings, err
}

// Agent returns the stored agent of this ID; false if there is none.
func (n *Node) Agent(id string) (agents.Spec, bool) {
	spec, _, ok := n.catalog.spec(id)
	return spec, ok
}

// retryBusy repeats op while it is refused as busy with a retry delay of at most
// RegistryTimeout, until ctx ends. A starting node may be busy with resumed runs.
func retryBusy(ctx context.Context, op func() error) error {
	for {
		err := op()
		var r *actor.Refusal
		if !errors.As(err, &r) || r.Reason != actor.Busy || r.RetryAfter == 0 || r.RetryAfter > RegistryTimeout {
			return err
		}
		select {
		case <-time.After(r.RetryAfter):
		case <-ctx.Done():
			return err
		}
	}
}
