// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/troupe-run/troupe/runs"
)

// traced is a span in its trace.
type traced struct {
	trace string // 32 hexadecimal digits
	span
}

// The body of a request in the JSON encoding of OTLP: identifiers are hexadecimal, and integers of 64 bits are texts.
type (
	body struct {
		Resources []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource resource     `json:"resource"`
		Scopes   []scopeSpans `json:"scopeSpans"`
	}
	resource struct {
		Attributes []keyValue `json:"attributes"`
	}
	scopeSpans struct {
		Scope scope      `json:"scope"`
		Spans []wireSpan `json:"spans"`
	}
	scope struct {
		Name string `json:"name"`
	}
	wireSpan struct {
		Trace      string     `json:"traceId"`
		ID         string     `json:"spanId"`
		Parent     string     `json:"parentSpanId,omitempty"`
		Name       string     `json:"name"`
		Kind       int        `json:"kind"`
		From       string     `json:"startTimeUnixNano"`
		To         string     `json:"endTimeUnixNano"`
		Attributes []keyValue `json:"attributes"`
		Links      []wireLink `json:"links,omitempty"`
		Status     *status    `json:"status,omitempty"`
	}
	wireLink struct {
		Trace string `json:"traceId"`
		ID    string `json:"spanId"`
	}
	status struct {
		Code    int    `json:"code"`
		Message string `json:"message,omitempty"`
	}
	keyValue struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	value struct {
		Text  *string `json:"stringValue,omitempty"`
		Count *string `json:"intValue,omitempty"`
	}
)

// Values of OTLP.
const (
	kindInternal = 1
	kindClient   = 3
	statusError  = 2
)

func text(name, t string) keyValue {
	t = strings.ToValidUTF8(t, "\uFFFD")
	return keyValue{name, value{Text: &t}}
}

// encode returns the body of a request.
func encode(service string, all []traced) ([]byte, error) {
	spans := make([]wireSpan, 0, len(all))
	for i := range all {
		spans = append(spans, all[i].wire())
	}
	return json.Marshal(body{[]resourceSpans{{resource{[]keyValue{text(serviceName, service)}}, []scopeSpans{{scope{"github.com/troupe-run/troupe"}, spans}}}}})
}

func (t *traced) wire() wireSpan {
	w := wireSpan{Trace: t.trace, ID: hex.EncodeToString(t.id[:]), Name: strings.ToValidUTF8(t.name, "\uFFFD"), Kind: kindInternal, From: number(int64(t.from)), To: number(int64(max(t.from, t.to)))}
	if t.client {
		w.Kind = kindClient
	}
	if t.parent != (runs.SpanID{}) {
		w.Parent = hex.EncodeToString(t.parent[:])
	}
	for _, a := range t.attributes {
		if a.text != "" {
			w.Attributes = append(w.Attributes, text(a.name, a.text))
			continue
		}
		n := number(a.count)
		w.Attributes = append(w.Attributes, keyValue{a.name, value{Count: &n}})
	}
	if t.link != (runs.SpanID{}) {
		w.Links = []wireLink{{t.trace, hex.EncodeToString(t.link[:])}}
	}
	if t.failed != "" {
		w.Attributes, w.Status = append(w.Attributes, text(errorType, t.failed)), &status{Code: statusError, Message: t.failed}
	}
	return w
}

// quote returns a text as JSON.
func quote(t string) string {
	b, err := json.Marshal(strings.ToValidUTF8(t, "\uFFFD"))
	if err != nil {
		return `""`
	}
	return string(b)
}
