// SPDX-License-Identifier: Apache-2.0

package actor

// Switch is a choice that may be left open. The zero Switch is.
type Switch uint8

// The values of a Switch beside the open one.
const (
	On Switch = iota + 1
	Off
)

// Or returns the choice, or def if it is left open.
func (s Switch) Or(def bool) bool {
	if s == 0 {
		return def
	}
	return s == On
}

// Routing are the parts of the detached calls of an agent that its author switches. One that is left open is that
// of the server.
type Routing struct {
	Correlation, ReturnTo, Responses, Timeouts Switch
	// Channel reports whether clients of the channel see the runs of the callees.
	Channel Switch
}
