// SPDX-License-Identifier: Apache-2.0

package command

import "strconv"

// AppendJSON appends the body of GET /v1/runs/{id}.
func (r *Run) AppendJSON(b []byte) []byte {
	record := r.Current()
	return record.AppendJSON(b)
}

// AppendJSON appends the body of GET /v1/runs/{id}/events.
func (e *Events) AppendJSON(b []byte) []byte {
	b = append(append(b, `{"run_id":"`...), e.Run.String()...)
	b = append(b, `","events":[`...)
	for i, event := range e.All {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, event.Body...)
	}
	b = strconv.AppendUint(append(b, `],"next_after":`...), e.After, 10)
	b = strconv.AppendBool(append(b, `,"ended":`...), e.Ended)
	return append(b, '}')
}
