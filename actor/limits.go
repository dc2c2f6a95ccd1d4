// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// The functions in this file reduce input of agents, tools and clients to the
// limits of the codec. A value that could not be decoded MUST NOT be encoded.

// FitText returns text as valid UTF-8 of at most limit bytes.
func FitText(text string, limit int) string {
	if len(text) <= limit && utf8.ValidString(text) {
		return text
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit-len("…")], "") + "…"
	}
	return text
}

// CheckParts returns an error if parts exceeds the limits of the codec, or if the
// inline parts, with their media types, exceed limit bytes in total.
func CheckParts(parts []Part, limit int) error {
	if len(parts) > PartsMax {
		return fmt.Errorf("%d parts, at most %d allowed", len(parts), PartsMax)
	}
	inline := 0
	for i, p := range parts {
		if len(p.Media) > TextBytesMax || !utf8.ValidString(p.Media) {
			return fmt.Errorf("part %d: media type: want valid UTF-8 of at most %d bytes", i, TextBytesMax)
		}
		switch {
		case p.Blob.IsZero():
			inline += len(p.Media) + len(p.Bytes)
		case len(p.Bytes) > 0:
			return fmt.Errorf("part %d: has both inline content and a blob", i)
		case p.Size > blobBytesMax:
			return fmt.Errorf("part %d: blob of %d bytes, at most %d allowed", i, p.Size, uint64(blobBytesMax))
		}
	}
	if limit = min(limit, MessageBytesMax); inline > limit {
		return fmt.Errorf("%d bytes, at most %d allowed", inline, limit)
	}
	return nil
}

// CheckEncodable returns an error if the codec cannot carry the call.
func (c *Call) CheckEncodable() error {
	if err := c.Check(); err != nil {
		return err
	}
	if len(c.Chain) > ChainMax {
		return fmt.Errorf("call with %d calls above it, at most %d allowed", len(c.Chain), ChainMax)
	}
	for _, text := range [...]string{c.Operation, c.Principal, c.Project, c.Workflow, c.Trace,
		c.Idempotency.Principal, c.Idempotency.Route, c.Idempotency.Key} {
		if len(text) > TextBytesMax || !utf8.ValidString(text) {
			return fmt.Errorf("%.40q: want valid UTF-8 of at most %d bytes", text, TextBytesMax)
		}
	}
	if err := c.Extensions.Check(); err != nil {
		return err
	}
	return CheckParts(c.Parts, MessageBytesMax)
}

// smallPart holds a part and its content in one allocation.
type smallPart struct {
	part  [1]Part
	bytes [112]byte
}

// CloneParts returns a deep copy of parts.
func CloneParts(parts []Part) []Part {
	if len(parts) == 0 {
		return nil
	}
	if len(parts) == 1 && 0 < len(parts[0].Bytes) && len(parts[0].Bytes) <= len(smallPart{}.bytes) {
		s := &smallPart{part: [1]Part{parts[0]}}
		n := copy(s.bytes[:], parts[0].Bytes)
		s.part[0].Bytes = s.bytes[:n:n]
		return s.part[:]
	}
	size := 0
	for i := range parts {
		size += len(parts[i].Bytes)
	}
	all, bytes := slices.Clone(parts), make([]byte, 0, size)
	for i := range all {
		if b := all[i].Bytes; b != nil {
			from := len(bytes)
			bytes = append(bytes, b...)
			all[i].Bytes = bytes[from:len(bytes):len(bytes)]
		}
	}
	return all
}

// Fit returns a copy of the refusal with each field reduced to its limit, or nil
// if r is nil.
func (r *Refusal) Fit() *Refusal {
	if r == nil {
		return nil
	}
	fit := *r
	if fit.Reason == 0 || int(fit.Reason) >= len(reasons) {
		fit.Reason = Unavailable
	}
	if int(fit.Scope) >= len(scopeNames) {
		fit.Scope = NoScope
	}
	if fit.Reason != NotFound || int(fit.What) >= len(whats) {
		fit.What = NoWhat
	}
	fit.Detail = FitText(fit.Detail, TextBytesMax)
	fit.Field = FitText(fit.Field, TextBytesMax)
	fit.Operation = FitText(fit.Operation, TextBytesMax)
	if len(fit.Chain) > ChainMax {
		fit.Chain = fit.Chain[:ChainMax]
	}
	for _, id := range fit.Chain {
		if id.Check() != nil {
			fit.Chain = nil
			break
		}
	}
	return &fit
}

// Fit returns the answer reduced to the limits of the codec. Content of more than
// limit bytes is replaced by a refusal.
func (a Answer) Fit(limit int) Answer {
	if err := CheckParts(a.Parts, limit); err != nil {
		return Answer{Refusal: Refuse(Invalid, "invalid answer: %v", err)}
	}
	a.Warnings = fitWarnings(a.Warnings)
	a.Refusal = a.Refusal.Fit()
	return a
}

// Fit returns the outcome reduced to the limits of the codec. Its status is Failed
// exactly if it has a refusal.
func (o Outcome) Fit(limit int) Outcome {
	a := Answer{Parts: o.Parts, Warnings: o.Warnings, Refusal: o.Refusal}.Fit(limit)
	o.Parts, o.Warnings, o.Refusal = a.Parts, a.Warnings, a.Refusal
	switch {
	case o.Refusal != nil:
		o.Status = Failed
	case o.Status == Failed:
		o.Refusal = Refuse(Unavailable, "the agent failed without a reason")
	case o.Status != Partial:
		o.Status = Succeeded
	}
	return o
}

// Check returns an error if the codec cannot carry the ask.
func (a Ask) Check(limit int) error {
	for _, f := range [...]struct{ what, text string }{{"name", a.Name}, {"operation", a.Operation}} {
		if len(f.text) > TextBytesMax || !utf8.ValidString(f.text) {
			return fmt.Errorf("%s: want valid UTF-8 of at most %d bytes", f.what, TextBytesMax)
		}
	}
	if a.Kind == 0 || int(a.Kind) >= len(askNames) {
		return fmt.Errorf("unknown kind %d", a.Kind)
	}
	if a.Timeout < 0 {
		return fmt.Errorf("negative timeout %v", a.Timeout)
	}
	if a.Lane > Low {
		return fmt.Errorf("unknown priority %d", a.Lane)
	}
	return CheckParts(a.Parts, limit)
}

// Check returns an error if the name or the size of the item is invalid.
func (i StateItem) Check() error {
	if i.Name == "" || len(i.Name) > StateItemNameBytesMax || strings.Trim(i.Name, stateItemNameChars) != "" {
		return fmt.Errorf("item %.40q: want a name of 1 to %d of the characters %s", i.Name, StateItemNameBytesMax, stateItemNameChars)
	}
	if len(i.Value) > StateItemValueBytesMax {
		return fmt.Errorf("item %s has %d bytes, at most %d allowed", i.Name, len(i.Value), StateItemValueBytesMax)
	}
	return nil
}

const stateItemNameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/"

func fitWarnings(warnings []string) []string {
	if len(warnings) == 0 {
		return nil
	}
	fit := make([]string, min(len(warnings), WarningsMax))
	for i := range fit {
		fit[i] = FitText(warnings[i], TextBytesMax)
	}
	return fit
}
