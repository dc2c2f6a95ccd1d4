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
		for i, t := range page.Tools {
			entry, _ := t.Meta[entryKey].(string)
			tool, reason := readEntry(jsontext.Value(entry))
			if reason != "" {
				left = append(left, fmt.Sprintf("entry %d%s", entries-len(page.Tools)+i+1, reason))
				continue
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

// readEntry decodes an entry of a list, or returns why it is no tool. The schema is in a canonical form
// in which whole numbers keep their digits.
func readEntry(entry jsontext.Value) (t Tool, reason string) {
	var read struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		InputSchema jsontext.Value `json:"inputSchema"`
		Annotations struct {
			ReadOnly   bool `json:"readOnlyHint"`
			Idempotent bool `json:"idempotentHint"`
		} `json:"annotations"`
	}
	if entry.Kind() != '{' || json.Unmarshal(entry, &read) != nil {
		var named struct {
			Name jsontext.Value `json:"name"`
		}
		if entry.Kind() == '{' && json.Unmarshal(entry, &named) == nil && len(named.Name) > 0 {
			reason = fmt.Sprintf(" (name %.80s)", named.Name)
		}
		return t, reason + ": is no tool"
	}
	if len(read.InputSchema) == 0 {
		read.InputSchema = jsontext.Value("null")
	}
	if err := read.InputSchema.Canonicalize(jsontext.CanonicalizeRawInts(false)); err != nil {
		return t, fmt.Sprintf(" (name %.80q): its input schema cannot be read: %.200v", read.Name, err)
	}
	return Tool{Name: read.Name, Description: read.Description, InputSchema: read.InputSchema, ReadOnly: read.Annotations.ReadOnly, Idempotent: read.Annotations.Idempotent}, ""
}

// objectSchema returns the schema of a tool with the type object, which a server may leave out.
func objectSchema(schema jsontext.Value) jsontext.Value {
	var members map[string]jsontext.Value
	if json.Unmarshal(schema, &members) != nil { // such as true
		return schema
	}
	var kind any
	if json.Unmarshal(members["type"], &kind) == nil && kind != nil && kind == "object" {
		return schema
	}
	if all, ok := kind.([]any); kind != nil && !(ok && slices.Contains(all, any("object"))) {
		return schema
	}
	if members == nil {
		members = map[string]jsontext.Value{}
	}
	members["type"] = jsontext.Value(`"object"`)
	return invariant.Must(json.Marshal(members, json.Deterministic(true)))
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
	return tools.Declared{Name: server + "." + t.Name, Description: actor.FitText(t.Description, tools.DescriptionBytesMax), InputSchema: objectSchema(t.InputSchema),
		TimeoutMS: c.TimeoutMS, Idempotent: c.Wasm != "" || c.TrustAnnotations && (t.ReadOnly || t.Idempotent), Concurrency: c.atOnce(),
		MaxResultBytes: c.MaxResultBytes, Policy: c.Policy}
}
