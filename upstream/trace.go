// SPDX-License-Identifier: Apache-2.0

package upstream

import "strings"

const tracestateBytesMax = 512

// traceHeaders returns the headers that forward the trace of a call, which has the
// form of actor.Call.Trace. An invalid trace is not forwarded.
func traceHeaders(trace string) []Header {
	parent, state, _ := strings.Cut(trace, " ")
	if !validTraceparent(parent) {
		return nil
	}
	headers := []Header{{Name: "traceparent", Value: parent}}
	if state != "" && len(state) <= tracestateBytesMax && !strings.ContainsFunc(state, func(c rune) bool { return c < ' ' || c > '~' }) {
		headers = append(headers, Header{Name: "tracestate", Value: state})
	}
	return headers
}

// validTraceparent reports whether text is a W3C traceparent that may be
// forwarded.
func validTraceparent(text string) bool {
	parts := strings.Split(text, "-")
	if len(parts) < 4 || len(parts[0]) != 2 || len(parts[1]) != 32 || len(parts[2]) != 16 || len(parts[3]) != 2 {
		return false
	}
	for _, p := range parts[:4] {
		if strings.Trim(p, "0123456789abcdef") != "" {
			return false
		}
	}
	zero := func(s string) bool { return strings.Trim(s, "0") == "" }
	return parts[0] != "ff" && (parts[0] != "00" || len(parts) == 4) && !zero(parts[1]) && !zero(parts[2])
}
