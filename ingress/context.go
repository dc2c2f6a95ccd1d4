// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// ContextRequest is the body of a request that stores a context.
type ContextRequest struct {
	Value              []byte // JSON
	Session            string // "": that of the run
	OwnerType, OwnerID string
	Version            *uint64 // version that must be current; nil: any
}

// ownerTypes are the kinds of owners of a context.
var ownerTypes = map[string]bool{"session": true, "agent": true, "user": true}

// DecodeContext decodes the body of a request that stores a context. A creation may name
// the session and the owner, a replacement the current version.
func DecodeContext(body []byte, creates bool, valueMax int) (out ContextRequest, r *actor.Refusal) {
	var in struct {
		Data      jsontext.Value `json:"data"`
		Session   *string        `json:"session_id"`
		OwnerType *string        `json:"owner_type"`
		OwnerID   *string        `json:"owner_id"`
		Version   jsontext.Value `json:"version"`
	}
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	if len(in.Data) == 0 {
		return out, invalid("data", `is missing: want any JSON value, like {"data": {"notes": []}}`)
	}
	value := jsontext.Value(bytes.Clone(in.Data))
	if err := value.Compact(); err != nil {
		return out, invalid("data", "not JSON")
	}
	if len(value) > valueMax {
		return out, invalid("data", "%d bytes, at most %d allowed: store it in pieces", len(value), valueMax)
	}
	out = ContextRequest{Value: value, OwnerType: "session"}
	if len(in.Version) > 0 && in.Version.Kind() != 'n' {
		version, r := ParseContextVersion(string(in.Version))
		if r != nil {
			return out, r
		}
		out.Version = &version
	}
	for _, f := range []struct {
		name  string
		value *string
	}{{"session_id", in.Session}, {"owner_type", in.OwnerType}, {"owner_id", in.OwnerID}} {
		if f.value != nil && !creates {
			return out, invalid(f.name, "want no value: it is set when the context is created")
		}
	}
	if creates && out.Version != nil {
		return out, invalid("version", "want no value: a new context has version 1")
	}
	if in.Session != nil && *in.Session != "" {
		if err := actor.CheckName(*in.Session); err != nil {
			return out, invalid("session_id", "%v", err)
		}
		out.Session = *in.Session
	}
	if in.OwnerType != nil {
		if out.OwnerType = *in.OwnerType; !ownerTypes[out.OwnerType] {
			return out, invalid("owner_type", "%.40q: want session, agent or user", out.OwnerType)
		}
	}
	if in.OwnerID != nil {
		if out.OwnerID = *in.OwnerID; len(out.OwnerID) > actor.PrincipalTextBytesMax {
			return out, invalid("owner_id", "%d bytes, at most %d allowed", len(out.OwnerID), actor.PrincipalTextBytesMax)
		}
	}
	return out, nil
}

// ParseContextVersion parses the number of a version.
func ParseContextVersion(text string) (uint64, *actor.Refusal) {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 {
		return 0, invalid("version", "%.40q: want a number from 1 on, the version of a context", text)
	}
	return n, nil
}

// contextIDBytes is the length of the first part of a context key.
const contextIDBytes = 36

// ParseContextKey returns the parts of a key. A text that is none is that of an unknown
// context.
func ParseContextKey(key string) (id, session string, ok bool) {
	if len(key) < contextIDBytes+2 || key[contextIDBytes] != '.' {
		return "", "", false
	}
	id, session = key[:contextIDBytes], key[contextIDBytes+1:]
	_, err := actor.ParseCallID(id)
	return id, session, err == nil && actor.CheckName(session) == nil
}
