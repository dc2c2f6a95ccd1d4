// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"strconv"
	"strings"
)

// EventStream is the media type of Server-Sent Events.
const EventStream = "text/event-stream"

// WantsStream reports whether an Accept header prefers an event stream to a
// single JSON answer. A header that does not name the stream gets JSON. With
// equal weights the stream wins, since a client that names it can read it.
func WantsStream(accept string) bool {
	stream, json := 0.0, 0.0
	for part := range strings.SplitSeq(accept, ",") {
		media, parameters, _ := strings.Cut(part, ";")
		switch media = strings.TrimSpace(media); {
		case strings.EqualFold(media, EventStream):
			stream = max(stream, quality(parameters))
		case strings.EqualFold(media, "application/json"):
			json = max(json, quality(parameters))
		}
	}
	return stream > 0 && stream >= json
}

func quality(parameters string) float64 {
	for p := range strings.SplitSeq(parameters, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		if !strings.EqualFold(name, "q") {
			continue
		}
		if q, err := strconv.ParseFloat(value, 64); err == nil && q >= 0 && q <= 1 {
			return q
		}
		return 0
	}
	return 1
}
