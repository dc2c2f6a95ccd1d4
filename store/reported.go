// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/troupe-run/troupe/actor"

// Bounds of what an external agent reports of itself. A longer state is cut, a longer detail is left out.
const (
	ReportedStateMax  = 1 << 10
	ReportedDetailMax = 8 << 10
)

// Reported is the state that an external agent has last reported of itself in a session, in an answer. It stays
// until the agent reports another one, also if that answer fails, and goes with the session.
type Reported struct {
	State   string
	Detail  string       // JSON value; may be empty
	Version uint64       // number of changes; 0 means that the agent has reported none
	Run     actor.CallID // run in which it changed
	At      actor.Time
}

// report sets the state that a piece of an answer reports. Reporting the same one again changes nothing.
func (j *Journal) report(r *Streamed) {
	now := &j.Reported
	if r.State == "" || r.State == now.State && r.Detail == now.Detail {
		return
	}
	*now = Reported{r.State, r.Detail, now.Version + 1, r.Run, r.At}
}

func (w *encoder) reported(r *Reported) {
	w.Uint(r.Version)
	if r.Version > 0 {
		w.String(r.State)
		w.String(r.Detail)
		w.CallID(r.Run)
		w.time(r.At)
	}
}

func (r decoder) reported() Reported {
	out := Reported{Version: r.Uint()}
	if out.Version > 0 {
		out.State, out.Detail, out.Run, out.At = r.String(ReportedStateMax), r.String(ReportedDetailMax), r.CallID(), r.time()
	}
	return out
}
