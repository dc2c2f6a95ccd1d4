// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// FoldName returns the form in which names are compared: NFKC, without a difference between
// upper and lower case, and without white space at the ends or repeated within. A reader cannot
// distinguish names of one form.
func FoldName(name string) string {
	name = strings.Join(strings.Fields(name), " ")
	if isASCII(name) {
		return strings.ToLower(name)
	}
	return strings.Join(strings.Fields(norm.NFKC.String(cases.Fold().String(norm.NFKC.String(name)))), " ")
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// mixedScripts are the sets of scripts that one name may have. Their letters do not look like each
// other. These are the highly restrictive sets of UTS 39.
var mixedScripts = [][]string{{"Han", "Hiragana", "Katakana", "Latin"}, {"Bopomofo", "Han", "Latin"}, {"Han", "Hangul", "Latin"}}

// scriptNames are the scripts whose letters count: not those of all and of combining characters.
var scriptNames = slices.DeleteFunc(slices.Sorted(maps.Keys(unicode.Scripts)), func(s string) bool { return s == "Common" || s == "Inherited" })

// CheckScripts returns an error if a name has letters of scripts that are not written together, such
// as a Cyrillic letter between Latin ones that looks like one of them.
func CheckScripts(name string) error {
	if isASCII(name) {
		return nil
	}
	var found []string
	for _, r := range norm.NFKC.String(name) {
		script := scriptOf(r)
		if script == "" || slices.Contains(found, script) {
			continue
		}
		if found = append(found, script); len(found) > 1 && !slices.ContainsFunc(mixedScripts, func(set []string) bool {
			return !slices.ContainsFunc(found, func(s string) bool { return !slices.Contains(set, s) })
		}) {
			return fmt.Errorf("%.80q mixes letters of the scripts %s and %s, such as %q (%U): use those of one script", name, found[0], script, r, r)
		}
	}
	return nil
}

// CheckUserScripts is CheckScripts for each word of a user, because the parts of an address may
// have different scripts.
func CheckUserScripts(user string) error {
	for word := range strings.FieldsFuncSeq(user, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsMark(r) && !unicode.IsDigit(r) }) {
		if err := CheckScripts(word); err != nil {
			return err
		}
	}
	return nil
}

func scriptOf(r rune) string {
	if r < utf8.RuneSelf {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return "Latin"
		}
		return ""
	}
	for _, name := range scriptNames {
		if unicode.Is(unicode.Scripts[name], r) {
			return name
		}
	}
	return ""
}
