// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// Bounds of a policy.
const (
	RulesMax      = 256
	globBytesMax  = 128
	whenBytesMax  = 1 << 10
	matchBytesMax = 16 << 10 // length of a text that a pattern is matched with
)

// Rule is one rule of a policy, as its author writes it.
type Rule struct {
	Tool     string // glob of the names of tools: '*' is any number of characters, '?' is one
	Agent    string // glob of the IDs of agents; "" means all. See Owner
	Owner    string // principal whose agents are meant; "" means the operator in a rule that allows calls of an Agent, and everyone in any other
	When     string // a comparison of an argument; "" means every call
	Decision string // name of a runs.Decision
	Approver string // one of runs.Approvers; "" leaves it to the tool. With the decision require_approval only
}

// Caller is the agent that calls a tool. Whoever may register agents chooses their IDs, so
// only ID and owner together tell whose agent it is.
type Caller struct {
	Agent string
	Owner string // principal that registered it; actor.OperatorUser for those of the operator and of the program; "" if unknown
}

// Policy decides which tool calls are performed. A nil policy has no rules. It is never
// changed.
type Policy struct {
	rules    []policyRule
	defaults map[string]runs.Decision // by kind of tool
}

type policyRule struct {
	Rule
	when     *condition // nil: always
	unowned  bool       // Owner was not written, and is the operator
	decision runs.Decision
}

// NewPolicy returns the policy with these rules, and the default decisions for server tools
// and client tools, of which "" means to allow. The error names the rule and its field.
func NewPolicy(rules []Rule, serverDefault, clientDefault string) (*Policy, error) {
	if len(rules) > RulesMax {
		return nil, fmt.Errorf("%d rules of the policy, at most %d allowed", len(rules), RulesMax)
	}
	p := &Policy{defaults: map[string]runs.Decision{}}
	for _, d := range [...]struct{ kind, decision string }{{KindServer, serverDefault}, {KindClient, clientDefault}} {
		p.defaults[d.kind] = runs.Allow
		if d.decision == "" {
			continue
		}
		decision, err := runs.ParseDecision(d.decision)
		if err != nil {
			return nil, fmt.Errorf("policy_default: %s: %w", d.kind, err)
		}
		p.defaults[d.kind] = decision
	}
	for i, r := range rules {
		compiled, err := r.compile()
		if err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
		p.rules = append(p.rules, compiled)
	}
	return p, nil
}

// Check returns an error that names the first invalid field of the rule.
func (r Rule) Check() error {
	_, err := r.compile()
	return err
}

func (r Rule) compile() (policyRule, error) {
	for _, f := range [...]struct{ field, glob string }{{"tool", r.Tool}, {"agent", r.Agent}} {
		if len(f.glob) > globBytesMax || strings.ContainsFunc(f.glob, func(c rune) bool { return c > 0x7f || !isNameByte(byte(c)) && c != '*' && c != '?' }) {
			return policyRule{}, fmt.Errorf("%s: want at most %d letters, digits, '.', '_', '-', '*' and '?', like payments.*, got %.80q", f.field, globBytesMax, f.glob)
		}
	}
	if r.Tool == "" {
		return policyRule{}, fmt.Errorf(`tool: is missing; want the names of tools, like "payments.*", or "*" for all`)
	}
	if len(r.Owner) > runs.NameBytesMax || strings.ContainsFunc(r.Owner, unicode.IsControl) {
		return policyRule{}, fmt.Errorf("owner: want the user whose agents are meant, or %q, got %.80q", actor.OperatorUser, r.Owner)
	}
	if r.Decision == "" {
		return policyRule{}, fmt.Errorf("decision: is missing; want one of allow, require_approval and block")
	}
	decision, err := runs.ParseDecision(r.Decision)
	if err != nil {
		return policyRule{}, fmt.Errorf("decision: %w", err)
	}
	if decision == runs.RequireApproval && (slices.Contains(ownTools, r.Tool) || IsMemory(r.Tool) || IsSession(r.Tool)) {
		return policyRule{}, fmt.Errorf("decision: %s is a tool of this program, whose calls wait for nobody; want allow or block", r.Tool)
	}
	switch {
	case r.Approver != "" && !slices.Contains(runs.Approvers, r.Approver):
		return policyRule{}, fmt.Errorf("approver: want one of requester, operator and other, got %.40q", r.Approver)
	case r.Approver != "" && decision != runs.RequireApproval:
		return policyRule{}, fmt.Errorf("approver: nobody is asked with the decision %s; want require_approval", decision)
	}
	compiled := policyRule{Rule: r, decision: decision}
	if r.Owner == "" && r.Agent != "" && decision == runs.Allow {
		compiled.Owner, compiled.unowned = actor.OperatorUser, true
	}
	if r.When != "" {
		if compiled.when, err = parseCondition(r.When); err != nil {
			return policyRule{}, fmt.Errorf("when: %w", err)
		}
	}
	return compiled, nil
}

// Decide returns the verdict on a call with valid input. The rules are tried in order, then
// the policy of the tool itself, then the default of its kind. Tools of this program have no
// policy but the rules with their exact name.
func (p *Policy) Decide(by Caller, t *Tool, input []byte) Verdict {
	if p != nil {
		args := arguments{input: input}
		for i := range p.rules {
			if r := &p.rules[i]; r.applies(by, t) && (r.when == nil || r.when.holds(&args, r.decision)) {
				return newVerdict(r.decision, ruleText(i, r), r.Approver, t)
			}
		}
	}
	if t.Declared == nil {
		return newVerdict(runs.Allow, "tool of this program", "", t)
	}
	if d, err := runs.ParseDecision(t.Declared.Policy); err == nil {
		return newVerdict(d, "policy of the tool", "", t)
	}
	kind := t.Declared.Kind
	if kind != KindClient {
		kind = KindServer
	}
	decision := runs.Allow
	if p != nil {
		decision = p.defaults[kind]
	}
	return newVerdict(decision, "default of "+kind, "", t)
}

// newVerdict returns the verdict of a rule, or with an empty approver that of the tool.
func newVerdict(d runs.Decision, rule, approver string, t *Tool) Verdict {
	v := Verdict{Decision: d, Rule: rule}
	if d == runs.RequireApproval {
		if v.Approver = approver; approver == "" && t.Declared != nil {
			v.Approver = t.Declared.Approver
		}
	}
	return v
}

// Possible returns the verdicts that calls of a tool by an agent can have, in the order in
// which they are tried. Each but the last depends on the arguments of the call, and its rule
// includes the condition.
func (p *Policy) Possible(by Caller, t *Tool) (all []Verdict) {
	if p != nil {
		for i := range p.rules {
			switch r := &p.rules[i]; {
			case !r.applies(by, t):
			case r.when == nil:
				return append(all, newVerdict(r.decision, ruleText(i, r), r.Approver, t))
			default:
				all = append(all, newVerdict(r.decision, ruleText(i, r)+" when "+r.When, r.Approver, t))
			}
		}
	}
	rest := Policy{}
	if p != nil {
		rest.defaults = p.defaults
		return append(all, rest.Decide(by, t, nil))
	}
	return append(all, p.Decide(by, t, nil))
}

func (r *policyRule) applies(by Caller, t *Tool) bool {
	return glob(r.Tool, t.Name) && (t.Declared != nil || r.Tool == t.Name) && (r.Agent == "" || glob(r.Agent, by.Agent)) && (r.Owner == "" || r.Owner == by.Owner)
}

// Narrowed returns the numbers, from 1, of the rules that allow calls of named agents and do not
// say whose agents these are: they hold for those of the operator.
func (p *Policy) Narrowed() (numbers []int) {
	if p == nil {
		return nil
	}
	for i := range p.rules {
		if r := &p.rules[i]; r.unowned {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}

func ruleText(i int, r *policyRule) string { return fmt.Sprintf("rule %d (%s)", i+1, r.Tool) }

// glob reports whether a text matches a pattern with '*' and '?'. Its time is at most the
// product of the two lengths.
func glob(pattern, text string) bool {
	p, t := 0, 0
	star, from := -1, 0 // the last '*', and the end of the text that it matches
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			p++
			t++
		case star >= 0:
			from++
			p, t = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
