// SPDX-License-Identifier: Apache-2.0

package actor

// HoldReason is the kind of event that a held call waits for. A reader passes on a
// reason that it does not know.
type HoldReason uint8

// The reasons. Zero means that the sender did not name one.
const (
	HoldSignal   HoldReason = iota + 1 // a signal with a name
	HoldApproval                       // the decision of a person
	HoldDevice                         // the answer of a client's device
	HoldBudget                         // the decision of a person about a larger budget
	HoldQuestion                       // the answer to a question
)

var holdNames = [...]string{HoldSignal: "signal", HoldApproval: "approval", HoldDevice: "device", HoldBudget: "budget", HoldQuestion: "question"}

// String returns the name of the reason.
func (r HoldReason) String() string { return nameOf(holdNames[:], int(r)) }

// AwaitsDecision reports whether a person decides.
func (r HoldReason) AwaitsDecision() bool { return r == HoldApproval || r == HoldBudget }

// Hold describes the event that a held call waits for. The zero value is unknown.
//
// It is sent upwards with a new end of the hold only, because HeldOnce allows one message
// for each end. A caller may therefore have an earlier reason of a hold with the same end.
// It MUST NOT decide by the reason: the held run is the source of it.
type Hold struct {
	Reason     HoldReason
	Subject    string // ID of the approval, device or question; name of the signal
	Name       string // tool of an approval, or model of a budget
	Text       string // summary for the person
	Extensions Extensions
}

// Hold appends a hold.
func (e *Encoder) Hold(h Hold) {
	e.Uint(uint64(h.Reason))
	e.String(h.Subject)
	e.String(h.Name)
	e.String(h.Text)
	e.Extensions(h.Extensions)
}

// Hold reads a hold.
func (d *Decoder) Hold() Hold {
	return Hold{HoldReason(d.UintMax(1<<8-1, "reason of a hold")), d.String(TextBytesMax), d.String(TextBytesMax), d.String(TextBytesMax), d.Extensions()}
}
