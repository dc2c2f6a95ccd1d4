// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"cmp"

	"github.com/go-json-experiment/json/jsontext"
)

// Misrouted is the answer of an owner that a request is not for the capability that was asked for.
type Misrouted struct {
	Suggested string // code of the capability that the request is for; "" if the owner does not know it
}

// MisroutedCode is the error code of a misrouted request whose owner gives no other one.
const MisroutedCode = "REQUEST_MISROUTED"

const misroutedMember = "misrouted"

// encode returns the JSON form, or nil.
func (m *Misrouted) encode() jsontext.Value {
	switch {
	case m == nil:
		return nil
	case m.Suggested == "":
		return jsontext.Value("{}")
	}
	return encodeMembers([]member{{"suggested", quoted(m.Suggested)}})
}

// readMisrouted reads the member misrouted of an envelope or of its metadata: an object with suggested, or the
// suggested code. It makes the response an ERROR, unless it has a result.
func (r *Response) readMisrouted(v jsontext.Value) {
	var suggested string
	switch v.Kind() {
	case '{':
		members, err := membersOf(v, lenient)
		if err != nil {
			r.note("%s cannot be read", misroutedMember)
			return
		}
		suggested, _ = textOf(lastOf(members, "suggested"))
	case '"':
		suggested, _ = textOf(v)
	case 't':
	default: // false, null or absent
		return
	}
	if r.Result != nil {
		r.note("%s is left out: there is a result", misroutedMember)
		return
	}
	r.Metadata.Misrouted = &Misrouted{Suggested: codeOf(suggested)}
	r.Status, r.Confidence = Failed, Unstated
	r.ErrorCode = cmp.Or(r.ErrorCode, MisroutedCode)
	r.ErrorMessage = cmp.Or(r.ErrorMessage, "the request is not for this capability")
}
