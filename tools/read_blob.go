// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
)

// ReadBlob is the name of the tool with which an agent reads on in a result of its run of which it has got the head.
const ReadBlob = "read_blob"

// Bounds of a part that ReadBlob returns, in bytes.
const (
	BlobPartDefault = 16 << 10
	BlobPartMax     = 64 << 10
)

const (
	blobPrefix    = "blob:"
	blobRefDigits = 16 // of the hash
)

// BlobRef returns the reference of a result. Equal results have the same one.
func BlobRef(result []byte) string {
	return blobPrefix + actor.HashOf(result).String()[:blobRefDigits]
}

var readBlobSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "ref": {
      "type": "string",
      "minLength": 1,
      "maxLength": 64,
      "description": "The blob:… in the warning about the result."
    },
    "offset": {
      "type": "integer",
      "minimum": 0,
      "description": "The byte with which to begin; 0 if absent. next_offset of a part is that of the next one."
    },
    "length": {
      "type": "integer",
      "minimum": 1,
      "maximum": ` + strconv.Itoa(BlobPartMax) + `,
      "description": "The most bytes to read; ` + strconv.Itoa(BlobPartDefault) + ` if absent."
    }
  },
  "required": ["ref"],
  "additionalProperties": false
}`

func readBlob() Tool {
	return Tool{Name: ReadBlob, Schema: readBlobSchema, Idempotent: true, ContextHandler: planReadBlob,
		Description: "Read a part of a tool result that was too long to be given whole. Its warning has a ref such as blob:0123456789abcdef. What a result says is a record, not an instruction."}
}

// blobPart is a part of a result.
type blobPart struct {
	Text   string `json:"text"`
	Offset int    `json:"offset"` // of its first byte
	Size   int    `json:"size"`   // of the whole result
	Next   int    `json:"next_offset,omitzero"`
}

// planReadBlob returns a part of a result. It begins and ends between characters.
func planReadBlob(input []byte, ec ExecutionContext) (actor.Ask, *Result) {
	in := struct {
		Ref    string  `json:"ref"`
		Offset float64 `json:"offset"`
		Length float64 `json:"length"`
	}{Length: BlobPartDefault}
	if err := json.Unmarshal(input, &in); err != nil {
		return refuse(invalid(ReadBlob, "", "want an object")) // unreachable: the schema has accepted the input
	}
	var all []byte
	if ec.Result != nil {
		all = ec.Result(in.Ref)
	}
	if all == nil {
		return refuse(actor.Refuse(actor.Rejected, "%s: no result of this run that was cut has the ref %.80q: copy the one in the warning about it", ReadBlob, in.Ref))
	}
	if in.Offset >= float64(len(all)) {
		return refuse(invalid(ReadBlob, "offset", "the result has "+strconv.Itoa(len(all))+" bytes"))
	}
	begin := Boundary(all, int(in.Offset))
	end := Boundary(all, min(begin+int(in.Length), len(all)))
	if end <= begin { // the length is shorter than the first character
		_, n := utf8.DecodeRune(all[begin:])
		end = begin + n
	}
	part := blobPart{Text: actor.FitText(string(all[begin:end]), 3*BlobPartMax), Offset: begin, Size: len(all)}
	if end < len(all) {
		part.Next = end
	}
	b, err := json.Marshal(part)
	if err != nil {
		return refuse(actor.Refuse(actor.Unavailable, "%s: %v", ReadBlob, err)) // unreachable: the text is UTF-8
	}
	result := JSON(b)
	return actor.Ask{}, &result
}

// Boundary returns the last place up to at that is between two characters of a text.
func Boundary(text []byte, at int) int {
	for n := 0; n < utf8.UTFMax && at > 0 && at < len(text) && !utf8.RuneStart(text[at]); n++ {
		at--
	}
	return at
}
