// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"

	"github.com/troupe-run/troupe/host/postgres"
)

// hint returns a command line that acts on the same server: a command, its
// arguments, and its flags. Arguments may be words of an agent, so they are quoted
// for a shell.
func (a ServerFlags) hint(command string, arguments []string, flags ...string) string {
	if a.url() != (ServerFlags{Server: os.Getenv("TROUPE_SERVER")}).url() {
		flags = append(flags, "--server", a.url())
	}
	if a.CA != "" && a.CA != os.Getenv("TROUPE_CA") {
		flags = append(flags, "--ca", a.CA)
	}
	return hint(command, arguments, flags)
}

// hint returns a command line about the same user.
func (u UserFlags) hint(command string, arguments []string, flags ...string) string {
	if u.User != "" {
		flags = append(flags, "--user", u.User)
	}
	return u.ServerFlags.hint(command, arguments, flags...)
}

// hint returns a command line that reads the same server or store. It has no password of a database.
func (s SourceFlags) hint(command string, arguments []string, flags ...string) string {
	if s.fromServer() {
		return s.UserFlags.hint(command, arguments, flags...)
	}
	if s.User != "" {
		flags = append(flags, "--user", s.User)
	}
	if s.Store != "" {
		flags = append(flags, "--store", postgres.Shown(s.Store))
	} else if flags = append(flags, "--data", s.Data); s.Damaged {
		flags = append(flags, "--damaged")
	}
	return hint(command, arguments, flags)
}

func hint(command string, arguments, flags []string) string {
	words := append([]string(nil), arguments...)
	words = append(words, flags...)
	for _, argument := range arguments {
		if strings.HasPrefix(argument, "-") {
			words = append(append(append([]string(nil), flags...), "--"), arguments...)
			break
		}
	}
	for i, w := range words {
		words[i] = shellQuote(w)
	}
	return strings.Join(append([]string{"troupe", command}, words...), " ")
}

// shellQuote quotes a word for a POSIX shell if it needs it.
func shellQuote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/:=,@%+", r)
	}
	if word != "" && strings.TrimFunc(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
