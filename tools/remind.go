// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// Remind is the name of the tool with which agents send themselves a message at a later time.
const Remind = "remind"

// Bounds of a reminder.
const (
	ReminderTextMax = 16 << 10 // bytes
	ReminderTimeMax = 366 * 24 * time.Hour
)

const remindSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "text": {
      "type": "string",
      "minLength": 1,
      "description": "What to be reminded of: it begins a turn of this conversation at its time."
    },
    "after": {
      "type": "integer",
      "minimum": 1,
      "description": "When, in milliseconds from now."
    },
    "at": {
      "type": "string",
      "description": "When, in RFC 3339, such as 2030-01-31T09:00:00+01:00. One of after and at."
    }
  },
  "required": ["text"],
  "additionalProperties": false
}`

const remindDescription = "Be reminded later: at its time the text comes back as a message of this conversation, also after a restart, once."

func remind() Tool {
	return Tool{Name: Remind, Description: remindDescription, Schema: remindSchema, ContextHandler: planRemind}
}

// rfc3339 is a time in RFC 3339: date and time, fraction, and offset.
var rfc3339 = regexp.MustCompile(`^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))$`)

// readTime returns a time in RFC 3339 as ms since 1970, without its fraction.
func readTime(text string) (ms int64, ok bool) {
	m := rfc3339.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	at, err := runs.ParseTime(m[1] + ".000000000Z")
	if err != nil {
		return 0, false
	}
	var offset int64
	if m[3] != "" {
		hours, _ := strconv.Atoi(m[4])
		minutes, _ := strconv.Atoi(m[5])
		offset = int64(hours*60+minutes) * 60_000
	}
	if m[3] == "-" {
		offset = -offset
	}
	return int64(at)/int64(time.Millisecond) - offset, true
}

func planRemind(input []byte, _ ExecutionContext) (actor.Ask, *Result) {
	var in struct {
		Text  string  `json:"text"`
		After float64 `json:"after"`
		At    string  `json:"at"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return refuse(invalid(Remind, "", "want an object")) // unreachable: the schema has accepted the input
	}
	d := Detached{Tool: Remind, Remind: in.Text}
	switch {
	case len(in.Text) > ReminderTextMax:
		return refuse(invalid(Remind, "text", fmt.Sprintf("%d bytes exceed the maximum of %d", len(in.Text), ReminderTextMax)))
	case (in.After == 0) == (in.At == ""):
		return refuse(invalid(Remind, "", "want one of after and at"))
	case in.At != "":
		var ok bool
		if d.At, ok = readTime(in.At); !ok {
			return refuse(invalid(Remind, "at", "want a time in RFC 3339, such as 2030-01-31T09:00:00+01:00"))
		}
	}
	return actor.Ask{Kind: actor.AskDetach, Name: Remind, Operation: Remind, Timeout: millis(in.After),
		Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: jsontext.Value("{}")}, {Media: actor.MediaJSON, Bytes: invariant.Must(json.Marshal(d))}}}, nil
}
