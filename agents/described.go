// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Names of fields that SealAuth and described agents use.
const (
	sealedField       = "auth.sealed"
	capabilitiesField = "capabilities"
	detailsField      = "capability_details"
)

// DetailsBytesMax is the maximum length of described capabilities in bytes.
const DetailsBytesMax = 16 << 10

// described are the capabilities of an external agent as a value of any form: the protocol of external agents
// leaves it open. They are kept as they are; the names in them are tags.
type described struct {
	raw  jsontext.Value // without white space
	tags []string
}

// describedDepthMax is the maximum nesting of capabilities.
const describedDepthMax = 16

// isDeep reports whether a value is nested deeper.
func isDeep(raw jsontext.Value) bool {
	for d := jsontext.NewDecoder(bytes.NewReader(raw)); ; {
		if _, err := d.ReadToken(); err != nil {
			return false // at the end: the value was parsed before
		}
		if d.StackDepth() > describedDepthMax {
			return true
		}
	}
}

// newDescribed returns a list or an object of JSON as described. A list of names and every other value are returned
// as they are in other fields.
func newDescribed(raw jsontext.Value, value any) any {
	names, isList := value.([]any)
	isName := func(v any) bool { _, ok := v.(string); return ok }
	if raw.Kind() != '{' && !isList || isList && !slices.ContainsFunc(names, func(v any) bool { return !isName(v) }) {
		return value
	}
	d := described{raw: raw.Clone()}
	if d.raw.Compact() != nil || isDeep(d.raw) {
		return value
	}
	add := func(name string) {
		if actor.CheckName(name) == nil && !slices.Contains(d.tags, name) && len(d.tags) < CapabilitiesMax {
			d.tags = append(d.tags, name)
		}
	}
	var list []jsontext.Value
	if raw.Kind() == '{' {
		var members map[string]jsontext.Value
		if json.Unmarshal(raw, &members) != nil {
			return value
		}
		for _, name := range slices.Sorted(maps.Keys(members)) {
			if k := members[name].Kind(); k != 'f' && k != 'n' {
				add(name)
			}
		}
		return d
	}
	_ = json.Unmarshal(raw, &list)
	for _, v := range list {
		var name string
		var one struct {
			Name string `json:"name"`
		}
		if json.Unmarshal(v, &name) == nil {
			add(name)
		} else if json.Unmarshal(v, &one) == nil {
			add(one.Name)
		}
	}
	return d
}

// capabilities sets tags, or capabilities in a form of their own.
func capabilities(s *Spec, v any) error {
	d, ok := v.(described)
	if !ok {
		return list(CapabilitiesMax, func(s *Spec) *[]string { return &s.Capabilities }, actor.CheckName)(s, v)
	}
	if s.Kind != KindExternal {
		return fmt.Errorf(`want a list of text, like ["a", "b"]: only external agents describe capabilities in another form`)
	}
	s.Capabilities = d.tags
	return details(s, v)
}

// details sets capabilities in a form of their own.
func details(s *Spec, v any) error {
	d, ok := v.(described)
	switch {
	case !ok:
		return fmt.Errorf("want an object, or a list with objects")
	case len(d.raw) > DetailsBytesMax:
		return fmt.Errorf("%d bytes, at most %d allowed", len(d.raw), DetailsBytesMax)
	}
	s.Details = d.raw
	return nil
}

// UnknownAgent returns the warning about a key that is limited to an agent which does not exist.
func UnknownAgent(name string) string {
	return fmt.Sprintf("no agent is named %.80s yet; `troupe agents list` prints their IDs", name)
}
