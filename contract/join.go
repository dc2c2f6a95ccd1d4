// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Component is the outcome of one step of a plan.
type Component struct {
	Title    string // for users, such as "Financial analysis"
	Source   string // the agent, for the record
	Response Response
}

// JoinConfig says how components are joined.
type JoinConfig struct {
	Keys  []Key
	Terms []Term
	// Ask asks the user about each conflict, also if one component is more confident.
	Ask bool
	// Prefer is the title of the component whose values the user has preferred; "": none.
	Prefer string
}

// Key is a member that several results may state: they should agree on it.
type Key struct {
	Field string // names of members joined by '/'
	Title string // for users, such as "the market size"; "" is the field
}

// Term is a word that a workflow uses in place of another one.
type Term struct{ From, To string }

// Verdict is the result of a comparison.
type Verdict string

// The verdicts.
const (
	Agree      Verdict = "agree"
	Differ     Verdict = "differ"
	Uncompared Verdict = "failed" // a component that might state the value was not completed
)

// Comparison compares what components state of one key. Values differ if they are other JSON
// values; numbers are equal if their digits say the same, as 5 and 5.0. Nothing is averaged.
type Comparison struct {
	Verdict   Verdict          `json:"verdict"`
	Fields    []string         `json:"fields"`
	Values    []jsontext.Value `json:"values"`
	Sources   []string         `json:"sources"`   // of the values, in the order of the plan
	Preferred int              `json:"preferred"` // index of the value that is used; -1: the user decides, or there is no choice
	Why       string           `json:"why"`
}

// Part is a component as it stands in the joined text.
type Part struct {
	Title      string
	Source     string
	Status     Status
	Confidence Confidence
	Text       string
}

// Joined is one answer from several components.
type Joined struct {
	Status      Status // Success: all succeeded; Failed: none has a result; else Partial
	Text        string // for users: each part in the order of the plan, then the conflicts
	Parts       []Part
	Comparisons []Comparison
	Question    string // what the user is asked; "": nothing
}

// Bounds of a joined answer.
const (
	ComponentsMax  = 32
	partBytesMax   = 16 << 10 // of the text of a component; a longer one is cut in the middle
	valueBytesMax  = 200      // of a value in the text
	noValue        = -1
	higherWhy      = "its confidence is higher"
	equalWhy       = "the confidence is the same"
	askWhy         = "the user decides"
	preferWhy      = "you have preferred it"
	uncomparedWhy  = "was not completed"
	confidenceText = "Confidence: %s."
)

// Join joins the components of a plan, which are given in its order. The status of a component
// decides how it reads, so a failure is a sentence and never silence.
func Join(components []Component, config JoinConfig) (Joined, *actor.Refusal) {
	if n := len(components); n == 0 || n > ComponentsMax {
		return Joined{}, actor.Refuse(actor.Invalid, "%d components: want 1 to %d", n, ComponentsMax)
	}
	var j Joined
	usable, whole := 0, 0
	for i := range components {
		c := &components[i]
		j.Parts = append(j.Parts, c.part(config.Terms))
		if c.Response.Result != nil {
			usable++
		}
		if c.Response.Status == Success {
			whole++
		}
	}
	switch {
	case whole == len(components):
		j.Status = Success
	case usable == 0:
		j.Status = Failed
	default:
		j.Status = Partial
	}
	paragraphs := make([]string, 0, len(j.Parts)+len(config.Keys)+1)
	for _, p := range j.Parts {
		paragraphs = append(paragraphs, p.Text)
	}
	var questions []string
	for _, key := range config.Keys {
		c, titles, ok := compare(components, key, &config)
		if !ok {
			continue
		}
		j.Comparisons = append(j.Comparisons, c)
		if c.Verdict == Differ {
			paragraphs = append(paragraphs, conflictText(&c, key, titles))
		}
		if c.Verdict == Differ && c.Preferred == noValue {
			questions = append(questions, fmt.Sprintf("Which value of %s should be used?", key.title()))
		}
	}
	if j.Question = strings.Join(questions, " "); j.Question != "" {
		paragraphs = append(paragraphs, j.Question)
	}
	j.Text = strings.Join(paragraphs, "\n\n")
	return j, nil
}

func (k *Key) title() string { return cmp.Or(k.Title, strings.ReplaceAll(k.Field, "/", " ")) }

// part returns a component as users read it.
func (c *Component) part(terms []Term) Part {
	r := &c.Response
	var sentences []string
	if text := textOfResult(r.Result); text != "" {
		sentences = append(sentences, sentence(unify(middleOf(text, partBytesMax), terms)))
	}
	switch {
	case r.Status == Failed:
		sentences = append(sentences, "Could not be completed: "+sentence(unify(cmp.Or(r.ErrorMessage, r.ErrorCode), terms)))
	case r.Status == TimedOut:
		sentences = append(sentences, "Was not completed in time.")
	}
	if r.Status == Partial || r.Status == TimedOut {
		for _, w := range r.Warnings {
			sentences = append(sentences, "Limitation: "+sentence(unify(w, terms)))
		}
		if len(r.Metadata.Incomplete) > 0 {
			sentences = append(sentences, "Missing: "+strings.Join(r.Metadata.Incomplete, ", ")+".")
		}
	}
	if r.Confidence != Unstated && r.Status != Failed {
		sentences = append(sentences, fmt.Sprintf(confidenceText, strings.ToLower(r.Confidence.String())))
	}
	return Part{c.Title, c.Source, r.Status, r.Confidence, c.Title + ": " + strings.Join(sentences, " ")}
}

// sentence returns a text that ends as a sentence does.
func sentence(text string) string {
	text = strings.TrimSpace(text)
	if text == "" || strings.HasSuffix(text, ".") || strings.HasSuffix(text, "!") || strings.HasSuffix(text, "?") {
		return text
	}
	return text + "."
}

// textOfResult returns the member text or summary of a result, or its members.
func textOfResult(result jsontext.Value) string {
	if result == nil {
		return ""
	}
	members, err := membersOf(result)
	if err != nil {
		return ""
	}
	for _, name := range []string{"text", "summary"} {
		if text, ok := textOf(lastOf(members, name)); ok && text != "" {
			return text
		}
	}
	facts := make([]string, 0, len(members))
	for _, m := range members {
		if m.value.Kind() != 'n' {
			facts = append(facts, strings.ReplaceAll(m.name, "_", " ")+" "+shown(m.value))
		}
	}
	if len(facts) == 0 {
		return ""
	}
	return strings.Join(facts, ", ")
}

// shown returns a value as users read it.
func shown(v jsontext.Value) string {
	text, ok := textOf(v)
	if !ok {
		text = string(v)
	}
	return actor.FitText(text, valueBytesMax)
}

// unify replaces terms where they are words of their own.
func unify(text string, terms []Term) string {
	for _, t := range terms {
		if t.From == "" {
			continue
		}
		var b strings.Builder
		last := byte(' ')
		for rest := text; rest != ""; {
			if strings.HasPrefix(rest, t.From) && !isWord(rune(last)) && (len(rest) == len(t.From) || !isWord(rune(rest[len(t.From)]))) {
				b.WriteString(t.To)
				last, rest = 'x', rest[len(t.From):]
				continue
			}
			b.WriteByte(rest[0])
			last, rest = rest[0], rest[1:]
		}
		text = b.String()
	}
	return text
}

// compare compares what the components state of a key. It reports false if there is nothing to
// compare. Titles are those of the components with a value.
func compare(components []Component, key Key, config *JoinConfig) (c Comparison, titles []string, ok bool) {
	c = Comparison{Verdict: Agree, Fields: []string{key.Field}, Preferred: noValue}
	var best Confidence
	missing, equal := "", false
	for i := range components {
		r := &components[i].Response
		value := memberAt(r.Result, key.Field)
		if value == nil {
			if r.Status >= Failed && missing == "" {
				missing = components[i].Title
			}
			continue
		}
		if len(c.Values) > 0 && !sameValue(c.Values[0], value) {
			c.Verdict = Differ
		}
		switch {
		case len(c.Values) == 0 || r.Confidence > best:
			best, equal, c.Preferred = r.Confidence, false, len(c.Values)
		case r.Confidence == best && !sameValue(c.Values[c.Preferred], value):
			equal = true
		}
		c.Values, c.Sources, titles = append(c.Values, value), append(c.Sources, components[i].Source), append(titles, components[i].Title)
	}
	switch {
	case len(c.Values) < 2 && missing == "":
		return c, nil, false
	case len(c.Values) < 2:
		c.Verdict, c.Why = Uncompared, missing+" "+uncomparedWhy
	case c.Verdict == Agree:
		c.Why = "all state the same"
	case config.Prefer != "" && slices.Contains(titles, config.Prefer):
		c.Preferred, c.Why = slices.Index(titles, config.Prefer), preferWhy
	case config.Ask:
		c.Preferred, c.Why = noValue, askWhy
	case equal:
		c.Preferred, c.Why = noValue, equalWhy
	default:
		c.Why = higherWhy
	}
	return c, titles, true
}

// memberAt returns the value at a path, or nil. Null is no value.
func memberAt(v jsontext.Value, path string) jsontext.Value {
	for name := range strings.SplitSeq(path, "/") {
		if v == nil || v.Kind() != '{' {
			return nil
		}
		members, err := membersOf(v)
		if err != nil {
			return nil
		}
		v = lastOf(members, name)
	}
	return v
}

// sameValue reports whether two JSON values state the same.
func sameValue(a, b jsontext.Value) bool {
	if a.Kind() == '0' && b.Kind() == '0' {
		return digitsOf(string(a)) == digitsOf(string(b))
	}
	a, b = a.Clone(), b.Clone()
	options := []jsontext.Options{jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)}
	return a.Canonicalize(options...) == nil && b.Canonicalize(options...) == nil && string(a) == string(b)
}

// decimalNumber is a number: its sign, its digits without zeros at either end, and the exponent of the
// last one. An exponent beyond an int is kept as text.
type decimalNumber struct {
	negative bool
	digits   string
	exponent int
	huge     string
}

func digitsOf(text string) decimalNumber {
	var n decimalNumber
	text, n.negative = strings.CutPrefix(text, "-")
	text = strings.ToLower(text)
	mantissa, exponent, _ := strings.Cut(text, "e")
	if exponent != "" {
		var err error
		if n.exponent, err = strconv.Atoi(exponent); err != nil {
			return decimalNumber{n.negative, mantissa, 0, exponent}
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	n.exponent -= len(fraction)
	digits := strings.TrimLeft(whole+fraction, "0")
	n.digits = strings.TrimRight(digits, "0")
	n.exponent += len(digits) - len(n.digits)
	if n.digits == "" { // zero, of either sign
		return decimalNumber{}
	}
	return n
}

// conflictText says what differs, and what is used.
func conflictText(c *Comparison, key Key, titles []string) string {
	stated := make([]string, len(c.Values))
	for i, v := range c.Values {
		stated[i] = shown(v) + " (" + titles[i] + ")"
	}
	text := fmt.Sprintf("The results differ in %s: %s.", key.title(), strings.Join(stated, ", "))
	if c.Preferred == noValue {
		return text
	}
	return fmt.Sprintf("%s %s is used: %s.", text, shown(c.Values[c.Preferred]), c.Why)
}

// EncodeRecord returns the comparisons and the components of a joined answer as JSON, for the record.
func (j *Joined) EncodeRecord() []byte {
	type part struct {
		Title      string `json:"title"`
		Source     string `json:"source"`
		Status     string `json:"status"`
		Confidence string `json:"confidence_level,omitzero"`
	}
	parts := make([]part, len(j.Parts))
	for i, p := range j.Parts {
		parts[i] = part{p.Title, p.Source, p.Status.String(), p.Confidence.String()}
	}
	return invariant.Must(json.Marshal(struct {
		Status     string       `json:"status"`
		Components []part       `json:"components"`
		Conflicts  []Comparison `json:"conflicts,omitzero"`
		Question   string       `json:"question,omitzero"`
	}{j.Status.String(), parts, j.Comparisons, j.Question}, jsontext.AllowInvalidUTF8(true)))
}
