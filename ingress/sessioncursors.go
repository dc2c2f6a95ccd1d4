// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/runs"
)

// SessionCursors makes the cursors of the sessions of a tenant, which clients keep. A cursor is
// valid for its session only. Without a key the text is the position itself.
type SessionCursors struct {
	Key    CursorKey
	Tenant string
}

// Text returns the cursor for a position in a session, or "" for the position before the first event.
func (c SessionCursors) Text(session string, at runs.SessionCursor) string {
	if len(at) == 0 || len(c.Key) == 0 {
		return at.String()
	}
	return c.Key.PageCursor(c.list(session), at.String())
}

// Find returns the position of a text that has passed CheckSessionCursor. It reports false if Text did not
// return the text for this session. Such a text belongs to another session, user or server, or to the store from
// which this one was restored.
func (c SessionCursors) Find(session, text string) (at runs.SessionCursor, ok bool) {
	if text == "" {
		return nil, true
	}
	if len(c.Key) > 0 {
		after, r := c.Key.ParsePageCursor(c.list(session), text)
		if r != nil {
			return nil, false
		}
		text = after
	}
	at, err := runs.ParseSessionCursor(text)
	return at, err == nil
}

func (c SessionCursors) list(session string) string {
	return fmt.Sprintf("events of the session %q %q", c.Tenant, session)
}

// CheckSessionCursor returns an error unless a text has the form of a cursor, of this version or of
// earlier ones, whose cursors had no key.
func CheckSessionCursor(text string) error {
	position := text
	if raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(text, "c")); err == nil && len(raw) > cursorSumBytes {
		position = string(raw[cursorSumBytes:])
	}
	if _, err := runs.ParseSessionCursor(position); err != nil {
		return fmt.Errorf("invalid cursor %.80q: send the cursor of the last message or event read, or omit it to start at the first one", text)
	}
	return nil
}

// ForeignCursor is the explanation of a cursor that SessionCursors does not find.
const ForeignCursor = "this is no cursor of this session, or the store was restored from a backup"
