// SPDX-License-Identifier: Apache-2.0

package ingress

import "strings"

const (
	traceparentBytes    = 55 // length of a traceparent of version 00
	tracestateBytesMax  = 512
	tracestateMembers   = 32
	tracestateLongBytes = 128 // members longer than this are the first to be dropped
)

// Trace returns the trace context of a request according to W3C Trace Context: a
// traceparent of version 00, followed by a space and the tracestate if there is
// one. Without one valid traceparent it returns "".
func Trace(parents, states []string) string {
	if len(parents) != 1 {
		return ""
	}
	parent := traceparent(parents[0])
	if state := tracestate(states); parent != "" && state != "" {
		return parent + " " + state
	}
	return parent
}

// traceparent returns a header as version 00, or "" if it is invalid. A later
// version is parsed by its first four fields; flags that version 00 does not
// define are cleared.
func traceparent(t string) string {
	if len(t) < traceparentBytes || len(t) > traceparentBytes && (t[:2] == "00" || t[traceparentBytes] != '-') {
		return ""
	}
	version, t := t[:2], t[:traceparentBytes]
	for i, c := range []byte(t) {
		dash := i == 2 || i == 35 || i == 52
		if dash != (c == '-') || !dash && !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return ""
		}
	}
	if version == "ff" || strings.Trim(t[3:35], "0") == "" || strings.Trim(t[36:52], "0") == "" {
		return ""
	}
	if version == "00" {
		return t
	}
	const sampled = "13579bdf" // last digits of flags with bit 0
	if strings.IndexByte(sampled, t[54]) >= 0 {
		return "00" + t[2:53] + "01"
	}
	return "00" + t[2:53] + "00"
}

// tracestate combines the headers, or returns "" if a member is invalid, a key is a
// duplicate, or there are more than tracestateMembers. Members are dropped until
// the rest has at most tracestateBytesMax bytes: long ones first, then the last.
func tracestate(headers []string) string {
	var members []string
	length := -1
	keys := map[string]bool{}
	for _, h := range headers {
		for m := range strings.SplitSeq(h, ",") {
			if m = strings.Trim(m, " \t"); m == "" {
				continue
			}
			key, value, _ := strings.Cut(m, "=")
			if !isTraceKey(key) || !isTraceValue(value) || keys[key] || len(members) == tracestateMembers {
				return ""
			}
			keys[key] = true
			members = append(members, m)
			length += len(m) + 1
		}
	}
	for i := len(members) - 1; i >= 0 && length > tracestateBytesMax; i-- {
		if len(members[i]) > tracestateLongBytes {
			length -= len(members[i]) + 1
			members = append(members[:i], members[i+1:]...)
		}
	}
	for length > tracestateBytesMax {
		length -= len(members[len(members)-1]) + 1
		members = members[:len(members)-1]
	}
	return strings.Join(members, ",")
}

// isTraceKey reports whether text is a key of a tracestate: a name, or a tenant, @
// and a system.
func isTraceKey(text string) bool {
	tenant, system, multi := strings.Cut(text, "@")
	if multi {
		return isTraceName(tenant, 241, true) && isTraceName(system, 14, false)
	}
	return isTraceName(text, 256, false)
}

func isTraceName(text string, most int, digitFirst bool) bool {
	if text == "" || len(text) > most || !('a' <= text[0] && text[0] <= 'z' || digitFirst && '0' <= text[0] && text[0] <= '9') {
		return false
	}
	return strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789_-*/") == ""
}

// isTraceValue reports whether text is a value of a tracestate. Its caller has
// removed commas and blanks at the end.
func isTraceValue(text string) bool {
	return text != "" && len(text) <= 256 && !strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' || c == '=' })
}
