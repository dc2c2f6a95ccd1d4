// SPDX-License-Identifier: Apache-2.0

package upstream

import _ "embed" // for the examples

// The examples of the protocol of external agents, byte for byte as its description
// prints them. Tests and the simulator compare the wire with them instead of with the
// types of this package, which they would otherwise repeat.
var (
	//go:embed testdata/protocol/invoke.json
	invokeExample string
	//go:embed testdata/protocol/events.txt
	eventExamples string
)

// InvokeExample returns the example body of POST /invoke.
func InvokeExample() string { return invokeExample }

// EventExamples returns the examples of the events of an answer, one a line:
//
//   - `event: delta` data: `{ "text": "...", "run_id":"..." }`
//
// An object whose members the description leaves open is {...}, so such a line is not
// JSON.
func EventExamples() string { return eventExamples }
