// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// UserText decides what becomes of codes of agents and capabilities in texts for users.
type UserText uint8

// The policies.
const (
	FlagCodes   UserText = iota + 1 // the text stays, and the findings are recorded
	RedactCodes                     // words take the place of each code
	KeepCodes                       // the text is not read
)

var userTextNames = []string{"", "flag", "redact", "off"}

// ParseUserText parses the name of a policy.
func ParseUserText(name string) (UserText, error) {
	if i := slices.Index(userTextNames, name); i > 0 {
		return UserText(i), nil
	}
	return 0, fmt.Errorf("user_text: %.40q: want flag, redact or off", name)
}

// String returns the name of the policy.
func (p UserText) String() string { return userTextNames[min(int(p), len(userTextNames)-1)] }

// Finding is a code in a text for a user.
type Finding struct {
	Code string
	At   int // offset in the text of the agent, in bytes
}

// findingsMax is the maximum number of findings of a text that are kept.
const findingsMax = 32

// CodeLint finds the codes of a catalog in texts. A code is a word of its own, in capitals. A word that
// begins with the code of an agent and '_', as codes of capabilities do, is one too: models invent
// some. It is read-only.
type CodeLint struct {
	policy UserText
	codes  []lintedCode // in order of their codes
	agents []string     // likewise, each with '_'
}

type lintedCode struct{ code, words string }

// The words in place of a code.
const (
	agentWords      = "a specialist"
	capabilityWords = "an analysis"
)

// NewCodeLint returns the lint for the codes that agents declare.
func NewCodeLint(policy UserText, all []Declaration) *CodeLint {
	l := &CodeLint{policy: policy}
	for _, d := range all {
		if d.Code != "" {
			l.codes = append(l.codes, lintedCode{d.Code, agentWords})
			l.agents = append(l.agents, d.Code+"_")
		}
		for i := range d.Capabilities {
			l.codes = append(l.codes, lintedCode{d.Capabilities[i].Code, cmp.Or(d.Capabilities[i].UserText, capabilityWords)})
		}
	}
	slices.SortStableFunc(l.codes, func(a, b lintedCode) int { return strings.Compare(a.code, b.code) })
	l.codes = slices.CompactFunc(l.codes, func(a, b lintedCode) bool { return a.code == b.code })
	slices.Sort(l.agents)
	return l
}

// Policy returns the policy of the lint.
func (l *CodeLint) Policy() UserText { return l.policy }

// FlagText returns the warning about codes that were found in an answer.
func FlagText(codes []string) string {
	return "the answer names " + strings.Join(codes, ", ") + ", which users should not read (user_text)"
}

// Check reads a whole text. It returns the text for the user and the first findings.
func (l *CodeLint) Check(text string) (string, []Finding) {
	f := l.Filter()
	out := f.Write(text)
	return out + f.End(), f.Findings()
}

// Filter returns a filter for one text that arrives in pieces.
func (l *CodeLint) Filter() *CodeFilter { return &CodeFilter{lint: l} }

// CodeFilter filters one text. It finds a code that is cut by the pieces. To redact it, it holds back
// the last word of a piece as long as this may become a code, at most codeBytesMax bytes.
type CodeFilter struct {
	lint     *CodeLint
	word     []byte // the current word, while it may be a code
	other    bool   // the current word cannot be a code
	at       int    // bytes of the text before the current word
	findings []Finding
}

// Findings returns the first findings.
func (f *CodeFilter) Findings() []Finding { return f.findings }

// Write reads the next piece. It returns what the user may see now.
func (f *CodeFilter) Write(piece string) string {
	if f.lint.policy == KeepCodes {
		return piece
	}
	var out strings.Builder
	for i := 0; i < len(piece); {
		c, size := utf8.DecodeRuneInString(piece[i:])
		char := piece[i : i+size]
		i += size
		if !isWord(c) {
			out.WriteString(f.endWord())
			out.WriteString(char)
			f.at += size
			continue
		}
		if f.other {
			out.WriteString(char)
			f.at += size
		} else if f.word = append(f.word, char...); !f.lint.begins(f.word) {
			f.other = true
			out.WriteString(f.release())
		}
	}
	if f.lint.policy == FlagCodes {
		return piece
	}
	return out.String()
}

// End returns the rest of the text, which was held back.
func (f *CodeFilter) End() string {
	if rest := f.endWord(); f.lint.policy == RedactCodes {
		return rest
	}
	return ""
}

func isWord(c rune) bool {
	return c == '_' || c != utf8.RuneError && (unicode.IsLetter(c) || unicode.IsDigit(c))
}

// release returns the current word and forgets its bytes.
func (f *CodeFilter) release() string {
	word := string(f.word)
	f.at += len(word)
	f.word = f.word[:0]
	return word
}

// endWord ends the current word. It returns the part of it that was held back, or the words in its
// place.
func (f *CodeFilter) endWord() string {
	f.other = false
	if len(f.word) == 0 {
		return ""
	}
	at := f.at
	word := f.release()
	words := f.lint.wordsFor(word)
	if words == "" {
		return word
	}
	if len(f.findings) < findingsMax {
		f.findings = append(f.findings, Finding{word, at})
	}
	return words
}

// begins reports whether a code may begin with a word.
func (l *CodeLint) begins(word []byte) bool {
	if len(word) > codeBytesMax {
		return false
	}
	text := string(word)
	i, _ := slices.BinarySearchFunc(l.codes, text, func(c lintedCode, text string) int { return strings.Compare(c.code, text) })
	return i < len(l.codes) && strings.HasPrefix(l.codes[i].code, text) || l.isInvented(text)
}

// isInvented reports whether a word has the form of a capability of an agent.
func (l *CodeLint) isInvented(word string) bool {
	at := strings.IndexByte(word, '_')
	if at < 0 || strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
		return false
	}
	_, found := slices.BinarySearch(l.agents, word[:at+1])
	return found
}

// wordsFor returns the words in place of a code, or "" for any other word.
func (l *CodeLint) wordsFor(word string) string {
	i, found := slices.BinarySearchFunc(l.codes, word, func(c lintedCode, text string) int { return strings.Compare(c.code, text) })
	switch {
	case found:
		return l.codes[i].words
	case l.isInvented(word):
		return capabilityWords
	}
	return ""
}
