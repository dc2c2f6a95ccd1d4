// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Sentences that replace texts with internal names. The events of the run have the original texts.
const (
	internalError   = "an error occurred"
	internalWarning = "a part of it could not be done"
	internalName    = "a part"
)

// ForUser removes internal names (hosts, paths, codes) from the error, the warnings and the gaps of a response, which
// agents often copy from the error of a tool. With RedactCodes a general sentence replaces a text with such a name; with
// FlagCodes the text stays. It returns the names that it found.
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
	for word := range strings.FieldsFuncSeq(text, func(c rune) bool {
		return c <= ' ' || strings.ContainsRune("()[]{}<>\"'`,;=|", c) || c > unicode.MaxASCII && !unicode.IsLetter(c) && !unicode.IsDigit(c) && c != '…'
	}) {
		if _, err := netip.ParseAddr(word); err == nil { // also one that begins with a colon
			return word
		}
		if code, ok := strings.CutSuffix(word, ":"); ok && isReasonCode(code) {
			return code
		}
		if word = strings.Trim(word, ".:!?…"); isInternal(word) {
			return word
		}
		for part := range strings.FieldsFuncSeq(word, func(c rune) bool { return c == '@' || c == '/' }) { // of an address without its scheme
			if host, port, _ := strings.Cut(part, ":"); isAddress(part) || isAddress(host) || isAddress(port) || isHostPort(host, port) {
				return word
			}
		}
	}
	return ""
}

// isAddress reports whether a word is an address of the Internet, with or without a port. A number with dots, such as a
// version of four parts, is one too.
func isAddress(word string) bool {
	if _, err := netip.ParseAddr(word); err == nil {
		return true
	}
	_, err := netip.ParseAddrPort(word)
	return err == nil
}

// isReasonCode reports whether a word is a code such as model_rejected, which an error begins with.
func isReasonCode(word string) bool {
	return strings.Contains(word, "_") && strings.Trim(word, "abcdefghijklmnopqrstuvwxyz_") == "" && word[0] != '_'
}

// isPath reports whether a word is the path of a file.
func isPath(word string) bool {
	last := word[strings.LastIndexByte(word, '/')+1:]
	switch dirs := strings.Count(word, "/"); {
	case strings.HasPrefix(word, "~/"):
		return true
	case strings.HasPrefix(word, "/"):
		return dirs > 1 || strings.Contains(last, ".")
	default:
		return dirs > 1 && strings.Contains(last, ".")
	}
}

// isSecret reports whether a word looks like a key or an identifier of a trace.
func isSecret(word string) bool {
	return strings.HasPrefix(word, "sk-") && len(word) > 8 || len(word) == 32 && strings.Trim(word, "0123456789abcdef") == ""
}

// internalSuffixes end names of hosts that no user can reach.
var internalSuffixes = []string{".internal", ".local", ".localdomain", ".lan", ".svc", ".corp", ".intranet", ".home.arpa"}

// systemErrors are names of errors of systems that begin as words do. Others have a '_', or end with Error or Exception.
var systemErrors = []string{"ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "ETIMEDOUT", "ENOTFOUND", "EHOSTUNREACH", "ENETUNREACH", "EPIPE", "ENOENT", "EACCES", "EPERM", "EMFILE", "ENOSPC", "NXDOMAIN", "SQLSTATE", "Traceback"}

func isInternal(word string) bool {
	if isAddress(word) || isSecret(word) {
		return true
	}
	host, port, _ := strings.Cut(word, ":")
	switch {
	case strings.Contains(word, "://"), slices.Contains(systemErrors, word), strings.HasPrefix(word, "0x") && len(word) > 4:
		return true
	case isPath(word), strings.Contains(word, `:\`):
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
