// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// parseAll parses a stream split at the given offsets.
func parseAll(stream string, limits upstream.StreamLimits, cuts ...int) ([]runs.Frame, string) {
	p := upstream.NewParser(limits)
	var all []runs.Frame
	from := 0
	for _, end := range append(cuts, len(stream)) {
		piece := []byte(stream[from:end])
		from = end
		events, refusal := p.Parse(piece)
		all = append(all, events...)
		clear(piece) // the parser must not retain the piece
		if refusal != nil {
			return all, refusal.Detail
		}
	}
	return all, ""
}

// referenceParse is a naive implementation of the standard, for a complete text
// without limits.
func referenceParse(stream string) (events []runs.Frame) {
	stream = strings.TrimPrefix(stream, "\uFEFF")
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(stream, "\n")
	var e runs.Frame
	var data []string
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			if data != nil {
				e.Data = strings.Join(data, "\n")
				events = append(events, e)
			}
			e, data = runs.Frame{}, nil
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "event":
			e.Name = value
		case field == "data":
			data = append(data, value)
		case field == "id" && !strings.Contains(value, "\x00"):
			e.ID = value
		}
	}
	return events
}

func TestParserFollowsStandard(t *testing.T) {
	one := func(name, id, data string) runs.Frame { return runs.Frame{Name: name, ID: id, Data: data} }
	for _, c := range []struct {
		stream string
		want   []runs.Frame
	}{
		{"", nil},
		{"data: a\n\n", []runs.Frame{one("", "", "a")}},
		{"data:a\n\ndata:  b\n\n", []runs.Frame{one("", "", "a"), one("", "", " b")}},
		{"data: a\r\n\r\ndata: b\r\rdata: c\n\n", []runs.Frame{one("", "", "a"), one("", "", "b"), one("", "", "c")}},
		{"data: a\r\ndata: b\n\r\n", []runs.Frame{one("", "", "a\nb")}},
		{"\uFEFFdata: a\n\n", []runs.Frame{one("", "", "a")}},
		{"\n\uFEFFdata: a\n\n", nil},
		{"event: done\nid: 7\ndata: {}\n\n", []runs.Frame{one("done", "7", "{}")}},
		{"id: 7\nid\ndata\n\n", []runs.Frame{one("", "", "")}},
		{"id: a\x00b\ndata: x\n\n", []runs.Frame{one("", "", "x")}},
		{": ping\n\n:\n\ndata: x\n: in between\ndata: y\n\n", []runs.Frame{one("", "", "x\ny")}},
		{"event: lost\n\ndata: x\n\n", []runs.Frame{one("", "", "x")}},
		{"data: a\n\ndata: never ended", []runs.Frame{one("", "", "a")}},
		{"data: a\n\ndata: never dispatched\n", []runs.Frame{one("", "", "a")}},
		{"data:\ndata:\n\n", []runs.Frame{one("", "", "\n")}},
		{"Data: x\nother: y\n\n", nil},
		{"data: a:b: c\n\n", []runs.Frame{one("", "", "a:b: c")}},
		{"data: \xff\n\n", []runs.Frame{one("", "", "\xff")}},
	} {
		for cut := 0; cut <= len(c.stream); cut++ {
			if got, refusal := parseAll(c.stream, upstream.StreamLimits{}, cut); refusal != "" || !reflect.DeepEqual(got, c.want) {
				t.Fatalf("%q split at %d: got %q, %q, want %q", c.stream, cut, got, refusal, c.want)
			}
		}
		if got := referenceParse(c.stream); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: the reference parses %q", c.stream, got)
		}
	}
}

func TestParserLimits(t *testing.T) {
	limits := upstream.StreamLimits{Line: 8, Event: 5, Total: 40}
	for _, c := range []struct{ stream, want string }{
		{"data: ab\n\n", ""},
		{"data: abc\n\n", "event stream, byte 8: a line is longer than 8 bytes"},
		{"\r\ndata: abc", "event stream, byte 10: a line is longer than 8 bytes"},
		{"data: ab\ndata: cd\n\n", ""},
		{"data: ab\ndata: cd\ndata:e\n\n", "event stream, byte 25: an event has more than 5 bytes of data"},
		{strings.Repeat("\n", 40), ""},
		{strings.Repeat("\n", 41), "event stream, byte 40: a stream is longer than 40 bytes"},
		{strings.Repeat("\n", 36) + "data:x", "event stream, byte 40: a stream is longer than 40 bytes"},
		{strings.Repeat("\r\n", 21), "event stream, byte 40: a stream is longer than 40 bytes"},
		{strings.Repeat("\n", 35) + "data:\n", "event stream, byte 40: a stream is longer than 40 bytes"},
	} {
		for cut := 0; cut <= len(c.stream); cut++ {
			if _, got := parseAll(c.stream, limits, cut); got != c.want {
				t.Errorf("%q split at %d: got %q, want %q", c.stream, cut, got, c.want)
			}
		}
	}
	p := upstream.NewParser(limits)
	p.Parse([]byte("0123456789"))
	if events, refusal := p.Parse([]byte("\n\ndata:x\n\n")); events != nil || refusal == nil {
		t.Errorf("Parse continued after a refusal: %v, %v", events, refusal)
	}
}

func TestParserLastIDAndRetry(t *testing.T) {
	p := upstream.NewParser(upstream.StreamLimits{})
	for _, c := range []struct {
		stream, id string
		retry      time.Duration
	}{
		{"id: 7\ndata: a\n\n", "7", 0},
		{"data: b\n\n", "7", 0},
		{"id: 8\n", "7", 0},
		{"\n", "8", 0},
		{"retry: 2000\n", "8", 2 * time.Second},
		{"retry: 2e3\nretry:-1\nretry:\n", "8", 2 * time.Second},
		{"retry: 99999999999999999999999\n", "8", upstream.RetryMax},
		{"id\n\n", "", upstream.RetryMax},
	} {
		p.Parse([]byte(c.stream))
		if p.LastID() != c.id || p.Retry() != c.retry {
			t.Errorf("after %q: got id %q, retry %v", c.stream, p.LastID(), p.Retry())
		}
	}
}

func TestCommentsAndRetryAreNotEvents(t *testing.T) {
	b := runs.AppendComment(nil, "ping\r\ndata: not\rdata: this\n\ndata: either")
	b = runs.AppendRetry(b, 2*time.Second)
	b = runs.AppendRetry(b, -time.Second)
	p := upstream.NewParser(upstream.StreamLimits{})
	if events, refusal := p.Parse(b); events != nil || refusal != nil || p.Retry() != 0 {
		t.Errorf("%q: got %v, %v, retry %v, want no events", b, events, refusal, p.Retry())
	}
}

func TestAppendInvalidFramePanics(t *testing.T) {
	for _, e := range []runs.Frame{{Name: "a\nb"}, {Name: "a\rb"}, {ID: "1\n"}, {ID: "\x00"}, {Name: "\xff"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q was encoded", e)
				}
			}()
			e.Append(nil)
		}()
	}
}

// FuzzFrameInjection checks that an encoded frame decodes to exactly that frame,
// with the parser and the reference. Its data cannot start another event.
func FuzzFrameInjection(f *testing.F) {
	f.Add("delta", "7", "a\r\n\r\nevent: done\ndata: {}\n\n", "x")
	f.Add("", "", "", "\uFEFF")
	f.Add("x", " ", "\xff\r", "\n")
	f.Fuzz(func(t *testing.T, name, id, data, next string) {
		e := runs.Frame{Name: name, ID: id, Data: data}
		if e.Check() != nil {
			return
		}
		b := e.Append(nil)
		b = runs.AppendComment(b, next)
		b = runs.Frame{Data: next}.Append(b)
		plain := strings.NewReplacer("\r\n", "\n", "\r", "\n")
		want := []runs.Frame{e, {Data: next}}
		for i := range want {
			want[i].Data = plain.Replace(strings.ToValidUTF8(want[i].Data, "\uFFFD"))
		}
		if got, refusal := upstream.NewParser(upstream.StreamLimits{}).Parse(b); refusal != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q parses as %q, %v, want %q", b, got, refusal, want)
		}
		if got := referenceParse(string(b)); !reflect.DeepEqual(got, want) {
			t.Errorf("the reference parses %q as %q, want %q", b, got, want)
		}
		if !utf8.Valid(b) {
			t.Errorf("%q is not UTF-8", b)
		}
	})
}

func FuzzParserChunking(f *testing.F) {
	f.Add("data: a\r\n\r\nid: 7\nevent: x\rdata: b\n\n", 3, 9)
	f.Add("\uFEFFdata: a\n\n", 1, 2)
	f.Add(strings.Repeat("data: 0123456789\n", 20)+"\n", 100, 200)
	f.Fuzz(func(t *testing.T, stream string, a, b int) {
		a, b = clamp(a, len(stream)), clamp(b, len(stream))
		want := referenceParse(stream)
		got, refusal := parseAll(stream, upstream.StreamLimits{}, min(a, b), max(a, b))
		if refusal != "" || !reflect.DeepEqual(got, want) {
			t.Errorf("%q split at %d, %d: %q, %q; the reference: %q", stream, a, b, got, refusal, want)
		}
		tight := upstream.StreamLimits{Line: 16, Event: 32, Total: 128}
		whole, why := parseAll(stream, tight)
		cut, whyCut := parseAll(stream, tight, min(a, b), max(a, b))
		if why != whyCut || !reflect.DeepEqual(whole, cut) {
			t.Errorf("%q split at %d, %d: %q, %q; whole: %q, %q", stream, a, b, cut, whyCut, whole, why)
		}
	})
}

func clamp(n, most int) int { return max(0, min(n, most)) }

func BenchmarkParser(b *testing.B) {
	stream := bytes.Repeat([]byte(`data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":null}]}`+"\n\n"), 100)
	b.SetBytes(int64(len(stream)))
	for b.Loop() {
		p := upstream.NewParser(upstream.StreamLimits{})
		if events, _ := p.Parse(stream); len(events) != 100 {
			b.Fatal(fmt.Sprint(len(events)))
		}
	}
}
