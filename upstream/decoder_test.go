// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the transcripts in testdata")

// offeredTools are the tools of each prompt in the transcripts.
var offeredTools = []upstream.ToolSpec{
	{Name: "call_agent", Schema: `{"type":"object"}`},
	{Name: "browser.open", Schema: `{"type":"object"}`},
}

func newDecoder(kind, media string) (upstream.Decoder, *upstream.Failure) {
	if kind == "agent" {
		d, failure := upstream.NewAgentDecoder("agent helper", "run-1", nil, media)
		if failure != nil {
			return nil, failure
		}
		return d, nil
	}
	d, failure := upstream.NewModelDecoder("model m", &upstream.Prompt{Tools: offeredTools}, nil, media)
	if failure != nil {
		return nil, failure
	}
	return d, nil
}

// decoded is the complete output of a decoder.
type decoded struct {
	deltas  []upstream.Delta
	failure *upstream.Failure
	answer  upstream.Completion
	done    bool

	warnings []string
}

// decodeAll decodes a response split at the given offsets.
func decodeAll(kind, media string, body []byte, cuts ...int) (h decoded) {
	d, failure := newDecoder(kind, media)
	if failure != nil {
		return decoded{failure: failure}
	}
	from := 0
	for _, end := range append(cuts, len(body)) {
		piece := append([]byte(nil), body[from:end]...)
		from = end
		deltas, failure := d.Decode(piece)
		clear(piece) // the decoder must not retain the piece
		h.deltas, h.failure = append(h.deltas, deltas...), failure
	}
	deltas, failure := d.End()
	h.deltas, h.failure = append(h.deltas, deltas...), failure
	h.answer, h.done, h.warnings = d.Completion(), d.Done(), d.Warnings()
	return h
}

func (h decoded) String() string {
	var b strings.Builder
	for _, d := range h.deltas {
		if d.State != "" {
			fmt.Fprintf(&b, "state %s %s\n", d.State, d.Detail)
		} else {
			fmt.Fprintf(&b, "delta %q\n", d.Text)
		}
	}
	if f := h.failure; f != nil {
		fmt.Fprintf(&b, "%s: %s: %s\n", f.Class, f.Refusal.Reason, f.Refusal.Detail)
	}
	for _, c := range h.answer.Calls {
		fmt.Fprintf(&b, "call %s %s %s\n", c.ID, c.Name, c.Arguments)
		if c.Kept != "" {
			fmt.Fprintf(&b, "     kept %s\n", c.Kept)
		}
		if _, refusal := c.Input(); refusal != nil {
			fmt.Fprintf(&b, "     %s\n", refusal.Detail)
		}
	}
	if h.answer.Kept != "" {
		fmt.Fprintf(&b, "kept %s\n", h.answer.Kept)
	}
	if h.done {
		fmt.Fprintf(&b, "done %s", h.answer.Finish)
		if u := h.answer.Usage; u.Known {
			fmt.Fprintf(&b, ", %d in, %d out, %d in all", u.Input, u.Output, u.Total)
		}
		fmt.Fprintf(&b, ", model %q\n", h.answer.Model)
	}
	for _, w := range h.warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}

// check returns an error if the output violates an invariant that holds for any
// input.
func (h decoded) check() error {
	var text strings.Builder
	for _, d := range h.deltas {
		text.WriteString(d.Text)
		if d == (upstream.Delta{}) {
			return fmt.Errorf("empty delta")
		}
	}
	switch {
	case text.String() != h.answer.Text && h.failure == nil:
		return fmt.Errorf("got deltas %q, want the answer %q", text.String(), h.answer.Text)
	case !strings.HasPrefix(h.answer.Text, text.String()):
		return fmt.Errorf("got deltas %q, want a prefix of the answer %q", text.String(), h.answer.Text)
	case h.done == (h.failure != nil) || h.done == (h.answer.Finish == upstream.NoFinish):
		return fmt.Errorf("inconsistent end: done %v, finish %s, failure %v", h.done, h.answer.Finish, h.failure)
	case h.failure != nil && (h.failure.Class == 0 || h.failure.Refusal.Detail == "" || !utf8.ValidString(h.failure.Refusal.Detail)):
		return fmt.Errorf("invalid failure %v", h.failure)
	case (!h.done || h.answer.Text != "") && h.warnings != nil:
		return fmt.Errorf("unexpected warnings %q", h.warnings)
	case !h.done && h.answer.Calls != nil:
		return fmt.Errorf("incomplete answer with tool calls %v", h.answer.Calls)
	}
	b := h.answer.Encode()
	if len(b) > actor.MessageBytesMax {
		return fmt.Errorf("encoded answer of %d bytes exceeds the maximum", len(b))
	}
	again, err := upstream.DecodeCompletion(b)
	if err != nil || !reflect.DeepEqual(again, h.answer) {
		return fmt.Errorf("%+v encodes to %s and decodes to %+v, %v", h.answer, b, again, err)
	}
	return nil
}

// TestDecodersAcrossChunkBoundaries decodes the transcripts in testdata/answers,
// split at every offset. The first line of a transcript is its title, the second
// the kind of upstream and the content type. Lines of the body start with '|'. The
// expected output follows the line "----".
func TestDecodersAcrossChunkBoundaries(t *testing.T) {
	files, _ := filepath.Glob("testdata/answers/*.txt")
	foreign, _ := filepath.Glob("../test/foreign/models/*.txt") // answers that other clients read
	agents, _ := filepath.Glob("../test/foreign/agents/*.txt")
	foreign = append(foreign, agents...)
	if files = append(files, foreign...); len(agents) < 15 || len(foreign) < 35 {
		t.Fatalf("got %d transcripts, want at least 35, of them 15 of agents", len(foreign))
	}
	bytesCut := 0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, _ := strings.Cut(string(text), "----\n")
			kind, media, body := parseTranscript(t, input)
			whole := decodeAll(kind, media, body)
			if got := whole.String(); *rewrite {
				os.WriteFile(file, []byte(input+"----\n"+got), 0o644)
			} else if got != want {
				t.Errorf("%s\ndecodes to\n%swant\n%s", input, got, want)
			}
			allCuts := make([]int, 0, len(body))
			for cut := range body {
				allCuts = append(allCuts, cut)
				if got := decodeAll(kind, media, body, cut); !sameApartFromChunks(got, whole) {
					t.Fatalf("split at %d: got\n%swant\n%s", cut, got, whole)
				}
			}
			if got := decodeAll(kind, media, body, allCuts...); !sameApartFromChunks(got, whole) {
				t.Fatalf("byte by byte: got\n%swant\n%s", got, whole)
			}
			if err := whole.check(); err != nil {
				t.Error(err)
			}
			bytesCut += len(body)
		})
	}
	t.Logf("%d answers, split at %d offsets", len(files), bytesCut)
}

func sameApartFromChunks(a, b decoded) bool { return a.String() == b.String() }

func parseTranscript(t *testing.T, input string) (kind, media string, body []byte) {
	lines := strings.Split(strings.TrimSuffix(input, "\n"), "\n")
	if len(lines) < 2 || !strings.HasPrefix(lines[0], "# ") {
		t.Fatalf("no transcript: %q", input)
	}
	kind, media, _ = strings.Cut(lines[1], " ")
	special := strings.NewReplacer("<CR>", "\r", "<BOM>", "\uFEFF", "<FF>", "\xff")
	for _, line := range lines[2:] {
		line, ok := strings.CutPrefix(line, "|")
		if !ok {
			t.Fatalf("%q: want a line of the body", line)
		}
		body = append(body, special.Replace(strings.TrimPrefix(line, " "))+"\n"...)
	}
	return kind, media, body
}

func TestOversizedAnswersAreRefused(t *testing.T) {
	chunk := func(content string) string {
		return `data: {"choices":[{"index":0,"delta":{"content":"` + content + `"}}]}` + "\n\n"
	}
	event := func(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }
	k := strings.Repeat("x", 1<<10)
	control := strings.Repeat(`\u0001`, 1<<10)
	args := `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"` + k + `"}}]}}]}` + "\n\n"
	for _, c := range []struct{ kind, media, body, want string }{
		{"model", "text/event-stream", strings.Repeat(chunk(k), 513), "output exceeds 524288 bytes"},
		{"model", "text/event-stream", strings.Repeat(args, 513), "tool call 0: more than 524288 bytes of arguments"},
		{"model", "text/event-stream", "data: " + strings.Repeat("x", 1<<20), "a line is longer than 1048576 bytes"},
		{"model", "text/event-stream", strings.Repeat("data: "+k+"\n", 1025), "an event has more than 1048576 bytes"},
		{"model", "text/event-stream", strings.Repeat(": "+k+"\n", 17<<10), "a stream is longer than 16777216 bytes"},
		{"model", "text/event-stream", strings.Repeat(chunk(control), 400) + `data: {"choices":[{"index":0,"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n", "output exceeds 524288 bytes"},
		{"model", "application/json", strings.Repeat(" ", 4<<20) + " ", "response exceeds 4194304 bytes"},
		{"agent", "text/event-stream", strings.Repeat(event("delta", `{"text":"`+k+`"}`), 513), "output exceeds 524288 bytes"},
		{"agent", "text/event-stream", strings.Repeat(event("delta", `{"text":"`+control+`"}`), 400) + event("done", "{}"), "output exceeds 524288 bytes"},
		{"agent", "text/event-stream", event("state", `{"state":"`+k+`"}`), "want a state of 1 to 256 bytes"},
		{"agent", "text/event-stream", event("state", `{"state":"s","detail":"`+strings.Repeat(k, 4)+`"}`), "detail of 4098 bytes exceeds the maximum of 4096"},
		{"agent", "text/event-stream", strings.Repeat(event("nonsense", k), 17<<10), "a stream is longer than 16777216 bytes"},
	} {
		h := decodeAll(c.kind, c.media, []byte(c.body), len(c.body)/3, len(c.body)/2)
		if h.failure == nil || !strings.Contains(h.failure.Refusal.Detail, c.want) {
			t.Errorf("%s of %d bytes: got failure %v, want %q", c.kind, len(c.body), h.failure, c.want)
			continue
		}
		if giant := !strings.Contains(c.want, "want a state") && !strings.Contains(c.want, "detail") && !strings.Contains(c.want, "tool call"); giant && h.failure.Class != upstream.Refused {
			t.Errorf("%s: got class %s, want refused", c.want, h.failure.Class)
		}
		if err := h.check(); err != nil {
			t.Errorf("%s: %v", c.want, err)
		}
	}
}

func TestDecoderRejectsContentType(t *testing.T) {
	for _, kind := range []string{"model", "agent"} {
		if _, failure := newDecoder(kind, "text/html; charset=utf-8"); failure == nil || failure.Class != upstream.Broken || !strings.Contains(failure.Refusal.Detail, `"text/html"`) {
			t.Errorf("%s: got failure %v, want one for text/html", kind, failure)
		}
		if _, failure := newDecoder(kind, " Text/Event-Stream ; charset=utf-8"); failure != nil {
			t.Errorf("%s: %v", kind, failure.Refusal)
		}
	}
}

// FuzzAnswers decodes the same bytes whole and split. The outputs MUST be equal,
// and end as an answer or a failure.
func FuzzAnswers(f *testing.F) {
	files, _ := filepath.Glob("testdata/answers/*.txt")
	for i, file := range files {
		text, _ := os.ReadFile(file)
		input, _, _ := strings.Cut(string(text), "----\n")
		lines := strings.SplitN(input, "\n", 3)
		f.Add([]byte(strings.ReplaceAll(strings.ReplaceAll(lines[2], "\n| ", "\n"), "\n|\n", "\n\n")), strings.HasPrefix(lines[1], "agent"), strings.Contains(lines[1], "json"), i)
	}
	f.Fuzz(func(t *testing.T, body []byte, agent, json bool, cut int) {
		kind, media := "model", "text/event-stream"
		if agent {
			kind = "agent"
		} else if json {
			media = "application/json"
		}
		whole := decodeAll(kind, media, body)
		if err := whole.check(); err != nil {
			t.Fatal(err)
		}
		if got := decodeAll(kind, media, body, clamp(cut, len(body))); !sameApartFromChunks(got, whole) {
			t.Errorf("split at %d: got\n%swant\n%s", clamp(cut, len(body)), got, whole)
		}
	})
}

// FuzzAssembler checks that each call has a name and an id of its own, and that no byte of
// arguments is lost or doubled.
func FuzzAssembler(f *testing.F) {
	f.Add([]byte{0, 1, 1, 2, 0, 0, 0, 3, 1, 2, 2, 1, 255, 1, 1, 1})
	f.Add([]byte{255, 1, 1, 1, 255, 0, 0, 2, 255, 2, 1, 1})
	names := []string{"", "a", "b", "call_1"}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		var a upstream.Assembler
		size := 0
		for ; len(bytes) >= 4; bytes = bytes[4:] {
			fragment := upstream.Fragment{Index: int(int8(bytes[0])), ID: names[bytes[1]%4], Name: names[bytes[2]%4], Arguments: strings.Repeat("x", int(bytes[3]))}
			if a.Add(fragment) != nil {
				return
			}
			size += len(fragment.Arguments)
		}
		calls, err := a.Calls()
		if err != nil {
			return
		}
		ids := map[string]bool{}
		for _, c := range calls {
			if size -= len(c.Arguments); c.Name == "" || c.ID == "" || ids[c.ID] {
				t.Errorf("%+v", calls)
			}
			ids[c.ID] = true
		}
		if size != 0 {
			t.Errorf("%+v: %d bytes of arguments are missing", calls, size)
		}
	})
}

func drawText(t *rapid.T, what string) string {
	return strings.ToValidUTF8(rapid.StringN(0, 40, 200).Draw(t, what), "\uFFFD")
}

func drawName(t *rapid.T, what string) string {
	return rapid.StringMatching(`[a-z][a-z0-9._-]{0,11}`).Draw(t, what)
}

func drawCompletion(t *rapid.T) upstream.Completion {
	c := upstream.Completion{Text: drawText(t, "text"), Finish: upstream.Finish(rapid.IntRange(1, 4).Draw(t, "finish")), Model: drawName(t, "model")}
	for i := range rapid.IntRange(0, 3).Draw(t, "calls") {
		c.Calls = append(c.Calls, upstream.ToolCall{ID: fmt.Sprint("id-", i), Name: rapid.SampledFrom(offeredTools).Draw(t, "tool").Name, Arguments: drawText(t, "arguments")})
	}
	if rapid.Bool().Draw(t, "usage") {
		in, out := rapid.Int64Range(0, 1<<30).Draw(t, "in"), rapid.Int64Range(1, 1<<30).Draw(t, "out")
		c.Usage = upstream.Usage{Known: true, Input: in, Output: out, Total: in + out}
	}
	return c
}

// TestAppendStreamRoundTrip decodes the output of AppendStream, and encodes the
// result for a journal.
func TestAppendStreamRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCompletion(t)
		body := upstream.AppendStream(nil, c, rapid.IntRange(1, 30).Draw(t, "cut"))
		h := decodeAll("model", "text/event-stream", body, rapid.IntRange(0, len(body)).Draw(t, "at"))
		if h.failure != nil || !reflect.DeepEqual(h.answer, c) {
			t.Fatalf("%s\ndecodes to %+v, %v\nwant %+v", body, h.answer, h.failure, c)
		}
		if err := h.check(); err != nil {
			t.Fatal(err)
		}
		// Every prefix that lacks the end MUST be detected as incomplete.
		half := body[:rapid.IntRange(0, len(body)-len("data: [DONE]\n\n")).Draw(t, "half")]
		h = decodeAll("model", "text/event-stream", half)
		if h.done && h.answer.Text != c.Text {
			t.Fatalf("%s\ndecodes to the complete answer %q", half, c.Text)
		}
		if err := h.check(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDecodeCompletionIsStrict(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{``, "want JSON, got nothing"},
		{`{"text":"a"`, "unexpected end"},
		{`{"text":"a","text":"b"}`, "duplicate"},
		{`{"text":"a","more":1}`, "unknown member"},
		{`{"text":7}`, "wrong type"},
		{`{"text":"a"} {}`, "byte 13"},
		{strings.Repeat("[", 65), "byte 64: nests deeper than 64 levels"},
		{strings.Repeat(" ", 1<<20) + "{}", "exceed the maximum"},
	} {
		if _, err := upstream.DecodeCompletion([]byte(c.line)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40s: got error %v, want %q", c.line, err, c.want)
		}
	}
	// Brackets inside a string do not count as nesting, even if the string contains
	// escaped quotes and backslashes.
	deep := `\"` + strings.Repeat("[{", 99) + `\\`
	if c, err := upstream.DecodeCompletion([]byte(`{"text":"` + deep + `"}`)); err != nil || strings.Count(c.Text, "[") != 99 {
		t.Errorf("brackets in a string: got %+v, error %v", c, err)
	}
}

// An error names the member at fault. A secret in that name is hidden although its
// slash and its tilde are escaped in the JSON pointer of the error.
func TestSecretInMemberNameIsHidden(t *testing.T) {
	const secret = "sk/top~secret/1"
	d, failure := upstream.NewAgentDecoder("agent helper", "run-1", upstream.Secrets{secret}, "text/event-stream")
	if failure != nil {
		t.Fatal(failure)
	}
	_, failure = d.Decode([]byte("event: delta\ndata: {\"" + secret + "\":{\"a\":}}\n\n"))
	if failure == nil {
		t.Fatal("a member without a value was accepted")
	}
	if text := failure.Refusal.Detail; !strings.Contains(text, "***") || strings.Contains(text, "top") {
		t.Errorf("got %q, want *** instead of the secret", text)
	}
}
