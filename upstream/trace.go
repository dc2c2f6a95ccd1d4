// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"encoding/hex"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

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

// TraceID returns the identifier of the trace of a call: that of its client, or of the root of its tree.
func TraceID(call *actor.Call) string {
	if parent, _, _ := strings.Cut(call.Trace, " "); validTraceparent(parent) {
		return call.TraceID()
	}
	return hex.EncodeToString(call.Root[:])
}

// TraceIn returns the trace that a request of a call has within a span of this server, with the state of its client.
func TraceIn(call *actor.Call, span runs.SpanID) string {
	parent, state, _ := strings.Cut(call.Trace, " ")
	trace := "00-" + TraceID(call) + "-" + hex.EncodeToString(span[:]) + "-01"
	if validTraceparent(parent) && state != "" {
		trace += " " + state
	}
	return trace
}

// ParentSpan returns the span in which a client has sent a call; false if it names none.
func ParentSpan(trace string) (span runs.SpanID, ok bool) {
	parent, _, _ := strings.Cut(trace, " ")
	if !validTraceparent(parent) {
		return span, false
	}
	_, err := hex.Decode(span[:], []byte(strings.Split(parent, "-")[2]))
	return span, err == nil
}
