// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
)

// RegistryTimeout is the maximum duration of a registry operation.
const RegistryTimeout = 30 * time.Second

// CallRegistry performs a registry operation as the operator, which the node itself is, and returns
// the answer as JSON.
func (n *Node) CallRegistry(ctx context.Context, operation string, body []byte) (answer []byte, warnings []string, err error) {
	return n.callRegistry(ctx, agents.Operator, operation, body)
}

// CallRegistryForOwner is CallRegistry for a person at the data folder. The change has the rights of
// the operator and the user that it has through the socket in the folder.
func (n *Node) CallRegistryForOwner(ctx context.Context, operation string, body []byte) (answer []byte, warnings []string, err error) {
	return n.callRegistry(ctx, actor.LocalUser, operation, body)
}

func (n *Node) callRegistry(ctx context.Context, user, operation string, body []byte) (answer []byte, warnings []string, err error) {
	call := actor.Call{ID: n.engine.NewCallID(), To: agents.RegistryID, Operation: operation, Left: RegistryTimeout,
		Principal: user, Origin: actor.System, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: body}}}
	if user != agents.Operator {
		call.SetAuthority("", actor.AllRights)
	}
	a, err := n.engine.Ask(ctx, call)
	if err == nil {
		err = n.members.catchUp(ctx)
	}
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

// PutAgent stores an agent of a file of the operator in the registry, unless it is stored
// already. It retries while the registry is busy for a short time. A warning names each agent that has lost
// something to it.
func (n *Node) PutAgent(ctx context.Context, spec agents.Spec) (changed bool, warnings []string, err error) {
	if err := n.outbound.Permit(spec.Endpoint, spec.Auth.Env); err != nil {
		return false, nil, err
	}
	if known, owner, by, ok := n.catalog.spec(spec.ID); ok && known.Hash() == spec.Hash() && owner == agents.Operator && by == agents.Operator {
		return false, nil, nil
	}
	operation := agents.OpPut
	if spec.Kind == agents.KindExternal {
		operation = agents.OpRegister
	}
	ctx, cancel := context.WithTimeout(ctx, RegistryTimeout)
	defer cancel()
	var displaced []string
	for more := true; more && err == nil; {
		var answer struct {
			Displaced []string `json:"displaced"`
			More      bool     `json:"more"`
		}
		err = retryBusy(ctx, func() error {
			body, missing, err := n.CallRegistry(ctx, operation, spec.Encode())
			if err != nil {
				return err
			}
			warnings = missing
			return json.Unmarshal(body, &answer)
		})
		for _, text := range answer.Displaced {
			n.catalog.log.Warn(text)
		}
		displaced, more = append(displaced, answer.Displaced...), answer.More
	}
	return err == nil, append(displaced, warnings...), err
}

// PutTool stores a declared tool of the operator in the registry, unless it is stored
// already. It retries while the registry is busy for a short time.
func (n *Node) PutTool(ctx context.Context, d tools.Declared) (changed bool, warnings []string, err error) {
	if err := n.catalog.permitTool(&d); err != nil {
		return false, nil, err
	}
	if known, ok := n.Tool(d.Name); ok && known.Hash() == d.Hash() && known.Owner == agents.Operator {
		return false, nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, RegistryTimeout)
	defer cancel()
	err = retryBusy(ctx, func() (err error) {
		_, warnings, err = n.CallRegistry(ctx, agents.OpPutTool, d.Encode())
		return err
	})
	return err == nil, warnings, err
}

// PutModule keeps a module of WebAssembly for the tools with this SHA-256.
func (n *Node) PutModule(sum string, module []byte) error { return n.outbound.Install(sum, module) }

// SetRemote replaces the tools of MCP servers. It returns once agents are offered them.
func (n *Node) SetRemote(ctx context.Context, remote []tools.Tool) error {
	ctx, cancel := context.WithTimeout(ctx, RegistryTimeout)
	defer cancel()
	return n.catalog.setRemote(ctx, remote)
}

// Tools returns the declared tools with their owners, sorted by name.
func (n *Node) Tools() []agents.DeclaredTool { return n.catalog.declaredTools() }

// Tool returns the declared tool of this name; false if there is none.
func (n *Node) Tool(name string) (agents.DeclaredTool, bool) {
	all := n.Tools()
	i, ok := slices.BinarySearchFunc(all, name, func(d agents.DeclaredTool, name string) int { return strings.Compare(d.Name, name) })
	if !ok {
		return agents.DeclaredTool{}, false
	}
	return all[i], true
}

// Agent returns the stored agent of this ID; false if there is none.
func (n *Node) Agent(id string) (agents.Spec, bool) {
	spec, _, _, ok := n.catalog.spec(id)
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
