// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
)

// Bounds of lists of tools.
const (
	ToolsMax        = 256 // of one server
	AllToolsMax     = 512 // of all servers
	pagesMax        = 64
	listingBytesMax = 4 << 20
)

// Listing is the list of the tools of a server, sorted by name.
type Listing struct {
	Tools []Tool `json:"tools"`
}

// Tool is a tool as its server describes it.
type Tool struct {
	Name        string         `json:"name"`
	Description string         `json:"description,omitzero"`
	InputSchema jsontext.Value `json:"input_schema"`
	ReadOnly    bool           `json:"read_only,omitzero"`  // hint of the server
	Idempotent  bool           `json:"idempotent,omitzero"` // likewise
}

func (t *Tool) hash() actor.Hash {
	return actor.HashOf(invariant.Must(json.Marshal(t, json.Deterministic(true))))
}

// Encode returns the JSON form of the list. It is deterministic.
func (l *Listing) Encode() []byte {
	return invariant.Must(json.Marshal(l, json.Deterministic(true)))
}

// Hash returns the identity of the list: names, descriptions, schemas and hints.
func (l *Listing) Hash() actor.Hash { return actor.HashOf(l.Encode()) }

func readListing(b []byte) (*Listing, error) {
	var l Listing
	if err := json.Unmarshal(b, &l); err != nil {
		return nil, err
	}
	return &l, l.check()
}

// check sorts the tools and returns an error for a list over a bound.
func (l *Listing) check() error {
	if len(l.Tools) > ToolsMax {
		return fmt.Errorf("lists more than %d tools, the most that are allowed", ToolsMax)
	}
	slices.SortFunc(l.Tools, func(a, b Tool) int { return strings.Compare(a.Name, b.Name) })
	for i := range l.Tools {
		if i > 0 && l.Tools[i].Name == l.Tools[i-1].Name {
			return fmt.Errorf("lists two tools named %.80q", l.Tools[i].Name)
		}
	}
	if n := len(l.Encode()); n > listingBytesMax {
		return fmt.Errorf("its list of tools has %d bytes, at most %d allowed", n, listingBytesMax)
	}
	return nil
}

// dropDoubled removes the tools that share a name: a call could mean any of them. It returns the
// reasons.
func (l *Listing) dropDoubled() (left []string) {
	times := map[string]int{}
	for i := range l.Tools {
		times[l.Tools[i].Name]++
	}
	for i := range l.Tools {
		if name := l.Tools[i].Name; times[name] > 1 {
			left = append(left, fmt.Sprintf("%.80q: %d tools have this name", name, times[name]))
			times[name] = 0
		}
	}
	l.Tools = slices.DeleteFunc(l.Tools, func(t Tool) bool { return times[t.Name] == 0 })
	return left
}

// list returns the list of a session's server, and why entries are left out of it.
func list(ctx context.Context, session *sdk.ClientSession) (l *Listing, left []string, err error) {
	l, cursor := &Listing{}, ""
	entries := 0
	for range pagesMax {
		page, err := session.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor})
		if err != nil {
			return nil, nil, fmt.Errorf("list of tools: %w", err)
		}
		if entries += len(page.Tools); entries > ToolsMax {
			return nil, nil, fmt.Errorf("lists more than %d tools, the most that are allowed", ToolsMax)
		}
		for _, t := range page.Tools {
			if entry := malformedOf(t); entry != "" {
				left = append(left, entry+": is no tool")
				continue
			}
			schema, err := json.Marshal(t.InputSchema, json.Deterministic(true))
			if err != nil {
				return nil, nil, fmt.Errorf("list of tools: %.80q: input schema: %w", t.Name, err)
			}
			tool := Tool{Name: t.Name, Description: t.Description, InputSchema: schema}
			if t.Annotations != nil {
				tool.ReadOnly, tool.Idempotent = t.Annotations.ReadOnlyHint, t.Annotations.IdempotentHint
			}
			l.Tools = append(l.Tools, tool)
		}
		if cursor = page.NextCursor; cursor == "" {
			left = append(left, l.dropDoubled()...)
			return l, left, l.check()
		}
	}
	return nil, nil, errors.New("its list of tools does not end")
}

// Change is a difference between two lists.
type Change struct {
	Kind     string // added, removed or changed
	Old, New Tool   // zero if there is none
}

// Diff returns the differences between the accepted list, which may be nil, and the offered one,
// sorted by the name of the tool.
func Diff(accepted, offered *Listing) (all []Change) {
	var old []Tool
	if accepted != nil {
		old = accepted.Tools
	}
	find := func(in []Tool, name string) (Tool, bool) {
		i, ok := slices.BinarySearchFunc(in, name, func(t Tool, name string) int { return strings.Compare(t.Name, name) })
		if !ok {
			return Tool{}, false
		}
		return in[i], true
	}
	for _, t := range old {
		if _, ok := find(offered.Tools, t.Name); !ok {
			all = append(all, Change{Kind: "removed", Old: t})
		}
	}
	for _, t := range offered.Tools {
		before, ok := find(old, t.Name)
		switch {
		case !ok:
			all = append(all, Change{Kind: "added", New: t})
		case before.hash() != t.hash():
			all = append(all, Change{Kind: "changed", Old: before, New: t})
		}
	}
	slices.SortStableFunc(all, func(a, b Change) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

// Name returns the name of the tool.
func (c *Change) Name() string {
	if c.Kind == "removed" {
		return c.Old.Name
	}
	return c.New.Name
}

// declared returns the definition of a tool of a server.
func (c *Config) declared(server string, t *Tool) tools.Declared {
	return tools.Declared{Name: server + "." + t.Name, Description: actor.FitText(t.Description, tools.DescriptionBytesMax), InputSchema: t.InputSchema,
		TimeoutMS: c.TimeoutMS, Idempotent: c.TrustAnnotations && (t.ReadOnly || t.Idempotent), Concurrency: c.atOnce(),
		MaxResultBytes: c.MaxResultBytes, Policy: c.Policy}
}
