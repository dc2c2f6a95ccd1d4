// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Sentences in place of what an agent says of a failure in the words of its machinery. The events of its run have those.
const (
	internalError   = "an error occurred"
	internalWarning = "a part of it could not be done"
	internalName    = "a part"
)

// ForUser prepares what a response says of its failure and its limits for a user, as the policy of user text wants it. An
// agent often passes the error of a tool on, with its hosts, paths and codes. With RedactCodes a general sentence takes the
// place of such a text; with FlagCodes it stays. It returns the words that users should not read.
func (r *Response) ForUser(policy UserText) (found []string) {
	if policy != RedactCodes && policy != FlagCodes {
		return nil
	}
	check := func(text *string, instead string) {
		word := internalIn(*text)
		if word == "" {
			return
		}
		if !slices.Contains(found, word) && len(found) < findingsMax {
			found = append(found, word)
		}
		if policy == RedactCodes {
			*text = instead
		}
	}
	check(&r.ErrorMessage, internalError)
	r.Warnings, r.Metadata.Incomplete = slices.Clone(r.Warnings), slices.Clone(r.Metadata.Incomplete)
	for i := range r.Warnings {
		check(&r.Warnings[i], internalWarning)
	}
	for i := range r.Metadata.Incomplete {
		check(&r.Metadata.Incomplete[i], internalName)
	}
	r.Warnings, r.Metadata.Incomplete = slices.Compact(r.Warnings), slices.Compact(r.Metadata.Incomplete)
	return found
}

// internalIn returns the first word of a text that names machinery, or "".
func internalIn(text string) string {
	for word := range strings.FieldsFuncSeq(text, func(c rune) bool { return c <= ' ' || strings.ContainsRune("()[]{}<>\"'`,;=|", c) }) {
		if word = strings.Trim(word, ".:!?…"); isInternal(word) {
			return word
		}
	}
	return ""
}

// internalSuffixes end names of hosts that no user can reach.
var internalSuffixes = []string{".internal", ".local", ".localdomain", ".lan", ".svc", ".corp", ".intranet", ".home.arpa"}

// systemErrors are names of errors of systems that begin as words do. Others have a '_', or end with Error or Exception.
var systemErrors = []string{"ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "ETIMEDOUT", "ENOTFOUND", "EHOSTUNREACH", "ENETUNREACH", "EPIPE", "ENOENT", "EACCES", "EPERM", "EMFILE", "ENOSPC", "NXDOMAIN", "Traceback"}

func isInternal(word string) bool {
	if _, err := netip.ParseAddr(word); err == nil {
		return true
	}
	if _, err := netip.ParseAddrPort(word); err == nil {
		return true
	}
	host, port, _ := strings.Cut(word, ":")
	switch {
	case strings.Contains(word, "://"), slices.Contains(systemErrors, word), strings.HasPrefix(word, "0x") && len(word) > 4:
		return true
	case strings.Count(word, "/") > 1 && word[0] == '/', strings.Contains(word, `:\`):
		return true
	case host == "localhost", slices.ContainsFunc(internalSuffixes, func(s string) bool { return strings.HasSuffix(strings.ToLower(host), s) && len(host) > len(s) }):
		return true
	}
	return isHostPort(host, port) || isErrorCode(word) || isErrorType(word) || isUUID(word)
}

// isHostPort reports whether a word is a host and a port. Years and times of a day are no ports.
func isHostPort(host, port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || strings.Trim(strings.ToLower(host), "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" || strings.Trim(host, "0123456789.-") == "" {
		return false
	}
	return strings.ContainsAny(host, ".-") || n > 2100 && host == strings.ToLower(host)
}

// isErrorCode reports whether a word is a code of capitals that is not the capability of an agent of the contract: CodeLint
// has words for those.
func isErrorCode(word string) bool {
	first, _, ok := strings.Cut(word, "_")
	return ok && isCode(word) && !slices.Contains(Codes(), first)
}

// isErrorType reports whether a word is the name of a type of errors in a programming language.
func isErrorType(word string) bool {
	word = word[strings.LastIndexByte(word, '.')+1:]
	for _, end := range []string{"Error", "Exception"} {
		if rest, ok := strings.CutSuffix(word, end); ok && rest != "" && rest[0] >= 'A' && rest[0] <= 'Z' {
			return true
		}
	}
	return false
}

func isUUID(word string) bool {
	return len(word) == 36 && strings.Count(word, "-") == 4 && strings.Trim(strings.ToLower(word), "0123456789abcdef-") == ""
}
