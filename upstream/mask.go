// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maskedBytesMin is the length from which secrets are masked in answers. Shorter keys, such as
// "none" for a server that needs none, are words of answers. Errors are without any.
const maskedBytesMin = 16

// long returns the secrets that are masked in answers.
func (s Secrets) long() (all Secrets) {
	for _, secret := range s {
		if len(secret) >= maskedBytesMin && !strings.HasPrefix(secret, "Bearer ") { // without that it is another one
			all = append(all, secret)
		}
	}
	return all
}

// masker replaces the secrets of a request in the pieces of an answer. It holds the end of a piece
// back as long as it may begin a secret. The zero masker passes everything on.
type masker struct {
	secrets Secrets
	held    string
}

// add returns the text of a piece that can be passed on.
func (m *masker) add(piece string) string {
	if len(m.secrets) == 0 {
		return piece
	}
	text := m.secrets.redact(m.held + piece)
	at := m.begin(text)
	m.held = text[at:]
	return text[:at]
}

// rest returns what was held back at the end of the answer.
func (m *masker) rest() string {
	text := m.held
	m.held = ""
	return text
}

// begin returns the place from which the rest of a text may begin a secret, the length of the text if
// there is none.
func (m *masker) begin(text string) int {
	longest := 0
	for _, secret := range m.secrets {
		longest = max(longest, 2*len(secret)) // another letter case may have twice the bytes
	}
	for at := max(len(text)-longest, 0); at < len(text); at++ {
		if utf8.RuneStart(text[at]) && slices.ContainsFunc(m.secrets, func(secret string) bool { return begins(secret, text[at:]) }) {
			return at
		}
	}
	return len(text)
}

// begins reports whether a secret begins with a text, in any letter case.
func begins(secret, text string) bool {
	for _, want := range secret {
		if text == "" {
			return true
		}
		got, size := utf8.DecodeRuneInString(text)
		if unicode.ToLower(got) != unicode.ToLower(want) {
			return false
		}
		text = text[size:]
	}
	return text == ""
}

// Mask returns a text with "***" in place of the secrets of the request that are long enough for a key.
func (r Request) Mask(text []byte) []byte {
	for _, secret := range r.secrets().long() {
		if bytes.Contains(text, []byte(secret)) {
			text = bytes.ReplaceAll(text, []byte(secret), []byte("***"))
		}
	}
	return text
}
