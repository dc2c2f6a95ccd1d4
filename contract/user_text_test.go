// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// team declares the nine codes and some capabilities.
func team() (all []Declaration) {
	for _, code := range Codes() {
		d := Declaration{Agent: strings.ToLower(code), Code: code}
		switch code {
		case "ANL":
			d.Capabilities = []actor.Capability{npv()}
		case "DOC":
			d.Capabilities = []actor.Capability{{Code: "DOC_GENERATE", Description: "d"}}
		}
		all = append(all, d)
	}
	return all
}

// The sentences of the contract: three say what is done, three name what does it.
func TestSentencesForUsers(t *testing.T) {
	b, err := os.ReadFile("testdata/sentences.txt")
	if err != nil {
		t.Fatal(err)
	}
	good, bad, _ := strings.Cut(string(b), "Inappropriate Handoff Language")
	sentences := func(text string) (all []string) {
		for line := range strings.Lines(text) {
			if s, ok := strings.CutPrefix(line, "- "); ok {
				all = append(all, strings.TrimSpace(s))
			}
		}
		return all
	}
	lint := NewCodeLint(RedactCodes, team())
	for _, s := range sentences(good) {
		if out, found := lint.Check(s); out != s || found != nil {
			t.Errorf("%q: got %q, %v", s, out, found)
		}
	}
	want := []string{
		"Routing to a specialist agent for NPV calculation...",
		"a specialist handoff complete, initiating a specialist workflow...",
		"Agent capability an analysis invoked...",
	}
	if n := len(sentences(good)) + len(sentences(bad)); n != 6 {
		t.Fatalf("%d sentences", n)
	}
	for i, s := range sentences(bad) {
		if out, found := lint.Check(s); out != want[i] || len(found) == 0 {
			t.Errorf("%q: got %q, %v, want %q", s, out, found, want[i])
		}
	}
}

// However a text is cut, its filter has the same result, and holds back no more than a code.
func TestCodesAreFoundAcrossPieces(t *testing.T) {
	for _, text := range []string{
		"Routing to ANL agent, then ANL_NPV and ANL_MONTECARLO.", "CST", "ANL_NPV", "(DOC_GENERATE)", "ANLé and éANL are words, as ANLAGE is",
		"ORCA, XANL, ANL2 and anl are not codes; ANL-based is one", "DOC DOC DOC", "ANL_" + strings.Repeat("X", 100) + " CHG", "",
	} {
		for _, policy := range []UserText{FlagCodes, RedactCodes, KeepCodes} {
			lint := NewCodeLint(policy, team())
			want, findings := lint.Check(text)
			if policy != RedactCodes && want != text || policy == KeepCodes && findings != nil {
				t.Errorf("%s: %q is %q, %v", policy, text, want, findings)
			}
			try := func(pieces ...string) {
				t.Helper()
				f, out, in := lint.Filter(), "", 0
				for _, p := range pieces {
					out += f.Write(p)
					if in += len(p); policy == FlagCodes && len(out) != in || len(f.word) > codeBytesMax {
						t.Fatalf("%s: holds back %q of %q", policy, f.word, text)
					}
				}
				if out += f.End(); out != want || !slices.Equal(f.Findings(), findings) {
					t.Fatalf("%s: %q in the pieces %q: got %q %v, want %q %v", policy, text, pieces, out, f.Findings(), want, findings)
				}
			}
			for i := range len(text) + 1 {
				if i < len(text) && text[i]&0xC0 == 0x80 {
					continue // pieces hold whole characters
				}
				try(text[:i], text[i:])
			}
			try(strings.Split(text, "")...)
		}
	}
}

func TestFindings(t *testing.T) {
	text := "ORCA: CST asks ANL_NPV, then ANL_X2."
	out, found := NewCodeLint(RedactCodes, team()).Check(text)
	if out != "ORCA: a specialist asks the financial implications, then an analysis." {
		t.Error(out)
	}
	if want := []Finding{{"CST", 6}, {"ANL_NPV", 15}, {"ANL_X2", 29}}; !slices.Equal(found, want) {
		t.Errorf("got %v, want %v", found, want)
	}
	for _, f := range found {
		if !strings.HasPrefix(text[f.At:], f.Code) {
			t.Errorf("%s is not at %d", f.Code, f.At)
		}
	}
	if _, found := NewCodeLint(FlagCodes, team()).Check(strings.Repeat("ANL ", 1000)); len(found) != findingsMax {
		t.Errorf("%d findings", len(found))
	}
	for _, name := range []string{"flag", "redact", "off"} {
		if p, err := ParseUserText(name); err != nil || p.String() != name {
			t.Error(p, err)
		}
	}
	if _, err := ParseUserText("on"); err == nil {
		t.Error("user_text on is accepted")
	}
}
