// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/troupe-run/troupe/internal/nearest"
	"github.com/troupe-run/troupe/tools"
)

// policyTables are the tables of a configuration file that decide about calls of declared
// tools.
//
//	[[policy]]
//	tool = "payments.*"
//	when = "args.amount > 100"
//	decision = "require_approval"
//	approver = "operator"
//
//	[policy_default]
//	client_tool = "block"
type policyTables struct {
	Rules   []toml.Primitive          `toml:"policy"`
	Default map[string]toml.Primitive `toml:"policy_default"`
}

// read returns the policy. Its errors name the line, the rule and the field.
func (p *policyTables) read(path string, meta *toml.MetaData) (*tools.Policy, error) {
	var problems []error
	report := func(line int, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s:%d: %s", path, line, fmt.Sprintf(format, args...)))
	}
	if len(p.Rules) > tools.RulesMax {
		return nil, fmt.Errorf("%s: policy: %d rules, at most %d allowed", path, len(p.Rules), tools.RulesMax)
	}
	if meta.IsDefined("policy_default") && meta.Type("policy_default") != "Hash" {
		return nil, fmt.Errorf("%s: policy_default: want a table [policy_default]", path)
	}
	// texts returns the fields of a table, all of which are text, and their lines.
	texts := func(where string, table map[string]toml.Primitive, known ...string) (map[string]string, map[string]int) {
		values, lines := map[string]string{}, map[string]int{}
		for _, name := range slices.Sorted(maps.Keys(table)) {
			value, line := valueAndLine(meta, table[name])
			text, ok := value.(string)
			switch {
			case !slices.Contains(known, name):
				advice := "known fields: " + strings.Join(known, ", ")
				if best := nearest.Of(name, known); best != "" {
					advice = "did you mean " + best + "?"
				}
				report(line, "%s: %.80s is unknown; %s", where, name, advice)
			case !ok:
				report(line, "%s: %s: want text in quotes, got %.80v", where, name, value)
			}
			values[name], lines[name] = text, line
		}
		return values, lines
	}
	var rules []tools.Rule
	for i, item := range p.Rules {
		var table map[string]toml.Primitive
		value, line := valueAndLine(meta, item)
		where, before := fmt.Sprintf("rule %d", i+1), len(problems)
		if _, ok := value.(map[string]any); !ok || meta.PrimitiveDecode(item, &table) != nil {
			report(line, "%s: want a table [[policy]]", where)
			continue
		}
		values, lines := texts(where, table, "tool", "agent", "owner", "when", "decision", "approver")
		rule := tools.Rule{Tool: values["tool"], Agent: values["agent"], Owner: values["owner"], When: values["when"], Decision: values["decision"], Approver: values["approver"]}
		if err := rule.Check(); err != nil && len(problems) == before {
			field, _, _ := strings.Cut(err.Error(), ":")
			if at, ok := lines[field]; ok {
				line = at
			}
			report(line, "%s: %v", where, err)
		}
		rules = append(rules, rule)
	}
	values, lines := texts("policy_default", p.Default, tools.KindServer, tools.KindClient)
	for _, kind := range []string{tools.KindServer, tools.KindClient} {
		// The value is one of a rule, so its error is that of a rule.
		if _, set := lines[kind]; set && values[kind] != "" {
			if err := (tools.Rule{Tool: "*", Decision: values[kind]}).Check(); err != nil {
				report(lines[kind], "policy_default: %s: %s", kind, strings.TrimPrefix(err.Error(), "decision: "))
			}
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return tools.NewPolicy(rules, values[tools.KindServer], values[tools.KindClient])
}

// linedValue receives a TOML value. Its UnmarshalTOML fails, because the decoder reports
// lines only in errors.
type linedValue struct{ value any }

var errLined = errors.New("seen")

// UnmarshalTOML implements toml.Unmarshaler.
func (v *linedValue) UnmarshalTOML(value any) error {
	v.value = value
	return errLined
}

func valueAndLine(meta *toml.MetaData, p toml.Primitive) (any, int) {
	var v linedValue
	var at toml.ParseError
	if errors.As(meta.PrimitiveDecode(p, &v), &at) {
		return v.value, at.Position.Line
	}
	return v.value, 0
}
