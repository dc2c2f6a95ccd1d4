// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"bytes"
	"errors"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/program"
	"github.com/troupe-run/troupe/tools"
)

// Package troupetest runs the agents of a program without a server. It needs their form of the
// runtime, which this package does not export.
func init() {
	program.Troupe.New = func(agents, tools any) (program.Program, error) {
		return newProgram(&Config{Agents: agents.([]Agent), Tools: tools.([]Tool)})
	}
	program.Troupe.Refusal = func(err error) (out *actor.Refusal) {
		errors.As(workError(err), &out)
		return out
	}
	program.Troupe.EncodeState = func(version int, state []byte) (items []actor.StateItem) {
		for i, value := range stateValues(version, state) {
			items = append(items, actor.StateItem{Name: stateItem(i), Value: value})
		}
		return items
	}
	program.Troupe.DecodeState = func(items []actor.StateItem) []byte {
		var all []byte
		for _, item := range items {
			if strings.HasPrefix(item.Name, stateItemPrefix) {
				all = append(all, item.Value...)
			}
		}
		_, state, _ := bytes.Cut(all, []byte("\n"))
		return state
	}
}

// newProgram returns the agents and tools of a configuration.
func newProgram(c *Config) (p program.Program, err error) {
	box := &toolbox{}
	if p.Agents, err = definitions(c.Agents, box); err != nil {
		return p, err
	}
	local, policy, err := c.tools(box)
	if err != nil {
		return p, err
	}
	p.Local, p.Tools = local, tools.NewRegistry()
	for _, t := range local {
		if err := p.Tools.Register(t); err != nil {
			return p, err
		}
	}
	if p.Tools, err = p.Tools.With(nil, policy); err != nil {
		return p, err
	}
	box.current.Store(p.Tools)
	return p, nil
}
