// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// ModelRequest is the part of a run about a request that its external agent sent to a model
// through the server. It has no part of the prompt.
type ModelRequest struct {
	ID string `json:"request_id"` // of the HTTP request
}

// Parts returns the content of the ask for the request.
func (r ModelRequest) Parts() []actor.Part {
	return []actor.Part{{Media: actor.MediaJSON, Bytes: invariant.Must(json.Marshal(r))}}
}

// modelRequestID returns the ID of the request in the content of an added ask, "" if it has
// none.
func modelRequestID(a *Asked) string {
	var r ModelRequest
	if parts := a.Out().Parts; !a.Added || len(parts) != 1 || json.Unmarshal(parts[0].Bytes, &r) != nil {
		return ""
	}
	return r.ID
}
