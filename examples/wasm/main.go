// SPDX-License-Identifier: Apache-2.0

// Command wasm is a tool that the server runs as a module of WebAssembly: arguments on standard input, result on
// standard output. It makes a text fit for a URL.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"unicode"
)

func main() {
	var in struct {
		Text string `json:"text"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		fmt.Fprintln(os.Stderr, err) // a failure of the tool shows it
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"slug": slug(in.Text)}); err != nil {
		os.Exit(1)
	}
}

// slug returns the words of a text in lower case, joined by hyphens.
func slug(text string) string {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return strings.Join(words, "-")
}
