// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"strings"
	"unicode"
)

// wordBytesMax is the length at which a word is cut.
const wordBytesMax = 64

// Words returns the words of a text in lower case. Every character of a script without spaces between
// words is a word. Nothing else of a text has a meaning: operators of search languages are words.
func Words(text string) []string {
	var all []string
	var b strings.Builder
	end := func() {
		if b.Len() > 0 {
			all = append(all, b.String())
			b.Reset()
		}
	}
	for _, r := range text {
		switch {
		case 'a' <= r && r <= 'z' || '0' <= r && r <= '9': // most of a text, without its tables
			if b.Len() < wordBytesMax {
				b.WriteByte(byte(r))
			}
		case r < 0x80 && (r < 'A' || 'Z' < r):
			end()
		case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai):
			end()
			all = append(all, string(r))
		case unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.Mn, r):
			if b.Len() < wordBytesMax {
				b.WriteRune(unicode.ToLower(r))
			}
		default:
			end()
		}
	}
	end()
	return all
}
