// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/store"
)

// userTexts keeps codes of agents and capabilities out of what users read: the pieces and the answers of
// runs that a client began. Other events, such as the requests to models, show them.
type userTexts struct{ c *Cell }

// lint returns the lint for the texts of a run, or nil if they stay as they are.
func (u userTexts) lint(run *store.Run, def *actor.Definition) *contract.CodeLint {
	if def == nil || def.UserText == "" || !run.Call.IsRoot() {
		return nil
	}
	policy, err := contract.ParseUserText(def.UserText)
	if err != nil || policy == contract.KeepCodes {
		return nil
	}
	lint := &u.c.lints[policy]
	if *lint == nil {
		*lint = contract.NewCodeLint(policy, u.c.definitions.declarations())
	}
	return *lint
}

// declarations returns what the current agents declare of themselves.
func (d *definitions) declarations() (all []contract.Declaration) {
	for _, name := range slices.Sorted(maps.Keys(d.byName)) {
		def := d.byName[name]
		if def.Code != "" || len(def.Provides) > 0 {
			all = append(all, contract.Declaration{Agent: name, Code: def.Code, Capabilities: def.Provides})
		}
	}
	return all
}

// piece returns the part of a text piece that users may see now. The end of it may begin a code, and is held
// back until the next piece or the end of the answer.
func (u userTexts) piece(t *turn, i int, text string) string {
	if t.def != nil && t.def.Inward && t.run.Last()[i].Out().Kind == actor.AskModel {
		return ""
	}
	if t.def == nil || t.def.UserText != contract.RedactCodes.String() {
		return text
	}
	s := &t.sends[i]
	if s.codes == nil {
		lint := u.lint(t.run, t.def)
		if lint == nil {
			return text
		}
		s.codes = lint.Filter()
	}
	return s.codes.Write(text)
}

// end shows the rest of the answer to an ask, if some of it was held back.
func (u userTexts) end(t *turn, i int, answer *actor.Answer) {
	codes := t.sends[i].codes
	t.sends[i].codes = nil
	if codes == nil || answer.Refusal != nil {
		return
	}
	if rest := codes.End(); rest != "" {
		u.show(t, i, rest)
	}
}

// show records a piece of an answer.
func (u userTexts) show(t *turn, i int, text string) {
	a := &t.run.Last()[i]
	record := store.Streamed{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: u.c.now, StreamedAfter: t.run.Seq}
	t.act.record(u.c, record, store.Shown{Ask: &store.ShownAsk{Kind: a.Out().Kind, Piece: actor.Piece{Text: shownPiece(text)}}})
}

// answer returns the outcome of a run as its user reads it. With the policy flag, a warning names the codes.
func (u userTexts) answer(run *store.Run, out actor.Outcome) actor.Outcome {
	lint := u.lint(run, u.c.definitions.of(run))
	if lint == nil {
		return out
	}
	var found []string
	check := func(text string) string {
		text, findings := lint.Check(text)
		for _, f := range findings {
			if !slices.Contains(found, f.Code) {
				found = append(found, f.Code)
			}
		}
		return text
	}
	out.Parts = slices.Clone(out.Parts)
	for i := range out.Parts {
		if p := &out.Parts[i]; p.Media == actor.MediaText && p.Blob.IsZero() {
			p.Bytes = []byte(check(string(p.Bytes)))
		}
	}
	if out.Refusal != nil {
		refusal := *out.Refusal
		refusal.Detail = check(refusal.Detail)
		out.Refusal = &refusal
	}
	out.Warnings = slices.Clone(out.Warnings)
	for i := range out.Warnings {
		out.Warnings[i] = check(out.Warnings[i])
	}
	if len(found) > 0 && lint.Policy() == contract.FlagCodes && out.Refusal == nil {
		slices.Sort(found)
		out.Warnings = append(out.Warnings, contract.FlagText(found))
	}
	return out
}
