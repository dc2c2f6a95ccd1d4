// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

func toolRequest(tool upstream.HTTPTool, arguments string) (upstream.Request, *actor.Refusal) {
	tool.Name = "t"
	return tool.Request(upstream.ToolInput{Arguments: []byte(arguments), Key: "k", Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
}

func TestToolRequest(t *testing.T) {
	for _, c := range []struct {
		method, url, body, arguments string
		want                         string // method, URL and body; or part of the refusal
	}{
		{"", "http://h/w", "", `{"city":"Graz", "n":1}`, `POST http://h/w {"city":"Graz","n":1}`},
		{"", "http://h/w", "", `{}`, `POST http://h/w {}`},
		{"PUT", "http://h/w/{city}", "", `{"city":"Graz","n":{"a":[1, 2]},"x":null}`, `PUT http://h/w/Graz {"n":{"a":[1,2]},"x":null}`},
		{"GET", "http://h/w", "", `{"city":"St. Pölten","n":1,"on":true,"x":null}`, `GET http://h/w?city=St.+P%C3%B6lten&n=1&on=true `},
		{"GET", "http://h/w?v=2", "", `{"tag":["a","b&c"],"o":{"a": 1},"mixed":[1,[2]]}`, `GET http://h/w?v=2&tag=a&tag=b%26c&o=%7B%22a%22%3A1%7D&mixed=%5B1%2C%5B2%5D%5D `},
		{"DELETE", "http://h/w/{id}?force={force}", "", `{"id":7,"reason":"x"}`, `DELETE http://h/w/7?reason=x `},
		{"GET", "http://h?q={q}", "", `{"q":"a=b&c#d?"}`, `GET http://h?q=a%3Db%26c%23d%3F `},
		{"GET", "https://h/a.{ext}/{x}-{y}", "", `{"ext":"b/c","x":"1","y":"?#%2f;"}`, `GET https://h/a.b%2Fc/1-%3F%23%252f%3B `},
		{"GET", "http://h/{a}", "", `{"a":"x\\y\u0000\n z"}`, `GET http://h/x%5Cy%00%0A%20z `},
		{"POST", "http://h/{a}", `{"q":"{a}","l":["{b}","{c}"],"{a}":"x{a}","n":"{absent}","z":null}`, `{"a":"v","b":{"x":1},"c":[1],"d":"unused"}`, `POST http://h/v {"q":"v","l":[{"x":1},[1]],"{a}":"x{a}","n":null,"z":null}`},
		{"GET", "http://h/", `"{a}"`, `{"a":"v"}`, `GET http://h/ "v"`},
		{"", "http://h/", `["{}","{","}","{a}b","{{a}}"]`, `{"a":"v"}`, `POST http://h/ ["{}","{","}","{a}b","{{a}}"]`},

		{"GET", "http://h/a/{x}/b", "", `{"x":".."}`, "path segments . or .."},
		{"GET", "http://h/a/{x}/b", "", `{"x":"."}`, "path segments . or .."},
		{"GET", "http://h/a/{x}", "", `{"x":"../../etc"}`, "path segments . or .."},
		{"GET", "http://h/a/{x}", "", `{"x":"b\\..\\c"}`, "path segments . or .."},
		{"GET", "http://h/a/{x}", "", `{"x":"b/..;v=1/c"}`, "path segments . or .."},
		{"GET", "http://h/a/{x}", "", `{"x":" .. "}`, "path segments . or .."},
		{"GET", "http://h/a/.{x}", "", `{"x":"."}`, "path segments . or .."},
		{"GET", "http://h/a/%2e{x}", "", `{"x":"."}`, "path segments . or .."},
		{"GET", "http://h/a/{x}{y}/b", "", `{"x":".","y":"."}`, "path segments . or .."},
		{"GET", "http://h/a/{x}/b", "", `{"x":""}`, "must not be empty"},
		{"GET", "http://h/a/{x}/b", "", `{}`, "the path of the URL needs it"},
		{"GET", "http://h/a/{x}/b", "", `{"x":null}`, "the path of the URL needs it"},
		{"GET", "http://h/a/{x}/b", "", `{"x":{"a":1}}`, "want a string, number or boolean"},
		{"GET", "http://h/a?key=1", "", `{"key":"2"}`, "sets this parameter"},
		{"GET", "http://h/a?%6bey=1", "", `{"key":"2"}`, "sets this parameter"},
		{"GET", "http://h/a/{x}", "", `{"x":"` + strings.Repeat("y", 10_000) + `"}`, "exceeds the maximum of 8192"},
		{"GET", "http://h/a", "", `{"x":1,"x":2}`, "duplicate"},
		{"GET", "http://h/a", "", `[1]`, "arguments"},
		{"GET", "http://h/a", "", `{"x":"\ud800"}`, "arguments"},

		{"GET", "http://{x}/a", "", `{"x":"h"}`, "no argument may choose them"},
		{"GET", "http://h:{x}/a", "", `{"x":"1"}`, "no argument may choose them"},
		{"GET", "{x}://h/a", "", `{"x":"http"}`, "no argument may choose them"},
		{"GET", "{x}", "", `{"x":"http://h"}`, "no argument may choose them"},
		{"GET", "http://h{x}", "", `{"x":".evil.example"}`, "no argument may choose them"},
		{"GET", "http://{x}@h/a", "", `{"x":"u"}`, "no argument may choose them"},
		{"GET", "http://u@h/{x}", "", `{"x":"u"}`, "contains a user"},
		{"GET", "http://h/{x}#f", "", `{"x":"u"}`, "fragment"},
		{"GET", "http://h/a/../{x}", "", `{"x":"u"}`, "the path segment . or .."},
		{"GET", "http://h/{x}/%2E%2e/", "", `{"x":"u"}`, "the path segment . or .."},
		{"GET", "http://h/{x", "", `{"x":"u"}`, "without a name and a }"},
		{"GET", "http://h/{}", "", `{"x":"u"}`, "without a name and a }"},
		{"GET", "http://h/{a/b}", "", `{"a/b":"u"}`, "without a name and a }"},
		{"GET", "http://h/x}", "", `{"x":"u"}`, "} without a {"},
		{"GET", "ftp://h/x", "", `{}`, "want http or https"},
		{"GET", "http://h/a b", "", `{}`, "blanks"},
		{"TRACE", "http://h/", "", `{}`, "method: want one of"},
		{"POST", "http://h/", `{"a":`, `{}`, "body: want one JSON value"},
		{"POST", "http://h/", `[` + strings.Repeat(`"{a}",`, 100) + `1]`, `{"a":"` + strings.Repeat("y", 1<<20) + `"}`, "body of more than"},
	} {
		r, refusal := toolRequest(upstream.HTTPTool{URL: c.url, Method: c.method, Body: []byte(c.body)}, c.arguments)
		if refusal != nil {
			if refusal.Reason != actor.Invalid || !strings.Contains(refusal.Detail, c.want) || !strings.HasPrefix(refusal.Detail, "tool t: ") {
				t.Errorf("%s %s %.80s: got %v, want %q", c.method, c.url, c.arguments, refusal, c.want)
			}
			continue
		}
		if got := fmt.Sprintf("%s %s %s", r.Method, r.URL, r.Body); got != c.want {
			t.Errorf("%s %.80s: got\n%.200s, want\n%s", c.url, c.arguments, got, c.want)
		}
	}
}

func TestToolHeaders(t *testing.T) {
	r, refusal := toolRequest(upstream.HTTPTool{URL: "http://h/", Headers: []upstream.Header{{Name: "authorization", Value: "secret", Secret: true}}}, `{}`)
	want := []upstream.Header{
		{Name: "accept", Value: "application/json, text/*;q=0.9, */*;q=0.1"}, {Name: "idempotency-key", Value: "k"}, {Name: "content-type", Value: "application/json"},
		{Name: "traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, {Name: "authorization", Value: "secret", Secret: true},
	}
	if refusal != nil || !slices.Equal(r.Headers, want) {
		t.Errorf("got %v %+v, want %+v", refusal, r.Headers, want)
	}
	r, refusal = toolRequest(upstream.HTTPTool{URL: "http://h/", Headers: []upstream.Header{{Name: "accept", Value: "text/csv"}, {Name: "user-agent", Value: "u"}}}, `{}`)
	want = append(want[1:4:4], upstream.Header{Name: "accept", Value: "text/csv"}, upstream.Header{Name: "user-agent", Value: "u"})
	if refusal != nil || !slices.Equal(r.Headers, want) {
		t.Errorf("got %v %+v, want %+v", refusal, r.Headers, want)
	}
	if r, refusal := toolRequest(upstream.HTTPTool{URL: "http://h/", Method: "GET"}, `{}`); refusal != nil || slices.ContainsFunc(r.Headers, func(h upstream.Header) bool { return h.Name == "content-type" }) {
		t.Errorf("a request without a body: %v %v", refusal, r.Headers)
	}
	for _, h := range []upstream.Header{{Name: "Idempotency-Key", Value: "1"}, {Name: "host", Value: "h"}, {Name: "content-length", Value: "1"}, {Name: "x y", Value: "1"},
		{Name: "proxy-x", Value: "1"}, {Name: "x", Value: "a\r\nb: c"}, {Name: "x", Value: strings.Repeat("y", upstream.HeaderBytesMax+1)}} {
		if _, refusal := toolRequest(upstream.HTTPTool{URL: "http://h/", Headers: []upstream.Header{h}}, `{}`); refusal == nil || refusal.Reason != actor.Invalid {
			t.Errorf("header %.40q: got %v, want Invalid", h.Name, refusal)
		}
	}
}

func TestFixedURLOfTool(t *testing.T) {
	for text, want := range map[string]string{
		"http://h:80":                "http://h:80",
		"http://h/a/b?c=d":           "http://h/a/b",
		"http://h/a/{x}/b":           "http://h/a",
		"http://h/a/b{x}":            "http://h/a",
		"http://h/{x}":               "http://h",
		"http://h/a?x={x}":           "http://h/a",
		"http://h/a/{x}/../../admin": "",
		"http://h{x}":                "",
	} {
		if got, err := (upstream.HTTPTool{URL: text}).FixedURL(); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%s: got %q %v, want %q", text, got, err, want)
		}
	}
}

// checkStructure checks that the URL of a request has the scheme, host, path and names of
// parameters of its template, and the arguments as its values.
func checkStructure(t interface{ Fatalf(string, ...any) }, x, y, z string) {
	arguments, err := json.Marshal(map[string]string{"x": x, "y": y, "z": z})
	if err != nil {
		t.Fatalf("%v", err)
	}
	var sent map[string]string // without invalid UTF-8
	if err := json.Unmarshal(arguments, &sent); err != nil {
		t.Fatalf("%v", err)
	}
	x, y = sent["x"], sent["y"]
	r, refusal := toolRequest(upstream.HTTPTool{Method: "GET", URL: "http://h.example:81/a/{x}/b-{y}?p={z}"}, string(arguments))
	if refusal != nil {
		if refusal.Reason != actor.Invalid {
			t.Fatalf("got %v, want Invalid", refusal)
		}
		return
	}
	u, err := url.Parse(r.URL)
	if err != nil || strings.ContainsFunc(r.URL, func(c rune) bool { return c <= ' ' || c > '~' }) {
		t.Fatalf("%q: %v", r.URL, err)
	}
	if u.Scheme != "http" || u.Host != "h.example:81" || u.User != nil || u.Fragment != "" || strings.Contains(r.URL, "#") {
		t.Fatalf("%q: got %+v", r.URL, u)
	}
	segments := strings.Split(u.EscapedPath(), "/")
	if len(segments) != 4 || segments[0] != "" || segments[1] != "a" {
		t.Fatalf("%q: got segments %q", r.URL, segments)
	}
	for i, want := range map[int]string{2: x, 3: "b-" + y} {
		if got, err := url.PathUnescape(segments[i]); err != nil || got != want || got == "" || got == "." || got == ".." {
			t.Fatalf("%q: segment %d is %q %v, want %q", r.URL, i, got, err, want)
		}
	}
	if q := u.Query(); len(q) != 1 || len(q["p"]) != 1 {
		t.Fatalf("%q: got query %q", r.URL, q)
	}
	if resolved := u.JoinPath(); !strings.HasPrefix(resolved.Path, "/a/") {
		t.Fatalf("%q: resolves to %q", r.URL, resolved.Path)
	}
}

func TestToolURLKeepsItsStructure(t *testing.T) {
	hostile := rapid.OneOf(rapid.String(), rapid.StringMatching(`[./\\%;?#&=@: a-c2eEfF\x00\r\n{}]{0,12}`), rapid.SampledFrom([]string{"..", ".", "/", "//evil.example", "@evil.example", "%2e%2e", "..%2f", `..\`, "?x=1", "#", "{x}", "\u2025", "\uff0e\uff0e"}))
	rapid.Check(t, func(t *rapid.T) {
		checkStructure(t, hostile.Draw(t, "x"), hostile.Draw(t, "y"), hostile.Draw(t, "z"))
	})
}

func FuzzToolURL(f *testing.F) {
	f.Add("..", "/", "&p=2")
	f.Add("a", "b", "c")
	f.Add("%2e%2e", `..\`, "#")
	f.Add("0", "\xe6", "0")
	f.Fuzz(func(t *testing.T, x, y, z string) { checkStructure(t, x, y, z) })
}

// FuzzToolTemplate checks that any template is refused or yields a URL of its own host.
func FuzzToolTemplate(f *testing.F) {
	f.Add("http://h/a/{x}?b={y}", `{"a":"{x}"}`, `{"x":"1","y":[2]}`)
	f.Add("http://h{x}", ``, `{"x":"1"}`)
	f.Add("https://[::1]:9/{x}{y}", `"{x}"`, `{"x":".","y":"."}`)
	f.Fuzz(func(t *testing.T, template, body, arguments string) {
		tool := upstream.HTTPTool{URL: template, Method: "DELETE", Body: []byte(body)}
		r, refusal := toolRequest(tool, arguments)
		if refusal != nil {
			if refusal.Reason != actor.Invalid {
				t.Fatalf("got %v, want Invalid", refusal)
			}
			return
		}
		fixed, err := tool.FixedURL()
		if err != nil || !strings.HasPrefix(r.URL, fixed) {
			t.Fatalf("%q does not begin with %q: %v", r.URL, fixed, err)
		}
		a, err := url.Parse(fixed)
		if err != nil {
			t.Fatal(err)
		}
		b, err := url.Parse(r.URL)
		if err != nil || a.Host != b.Host || a.Scheme != b.Scheme || b.User != nil || len(r.URL) > upstream.ToolURLBytesMax {
			t.Fatalf("%q became %q: %v", template, r.URL, err)
		}
		if len(r.Body) > 0 && !json.Valid(r.Body) {
			t.Fatalf("body %q", r.Body)
		}
	})
}

// performTool returns the answer of a tool to which a server responds with status 200.
func performTool(t *testing.T, tool upstream.HTTPTool, media, body string, last upstream.Input) actor.Answer {
	t.Helper()
	order, refusal := tool.Exchange(upstream.ToolInput{Arguments: []byte(`{}`)}, actor.Time(10*time.Second), upstream.AttemptLimits{})
	if refusal != nil {
		t.Fatal(refusal)
	}
	x, pace := upstream.NewExchange(order), upstream.NewBackoff(upstream.BackoffConfig{})
	ops := x.Step(1, upstream.Begin{}, pace, 0)
	ops = append(ops, x.Step(2, upstream.Head{Attempt: 1, Status: 200, Headers: []upstream.Header{{Name: "Content-Type", Value: media}}}, pace, 0)...)
	for piece := range slices.Chunk([]byte(body), 16<<10) {
		ops = append(ops, x.Step(3, upstream.Bytes{Attempt: 1, Bytes: piece}, pace, 0)...)
	}
	ops = append(ops, x.Step(4, last, pace, 0)...)
	if _, ok := ops[len(ops)-1].(upstream.Ended); !ok { // a retry
		ops = append(ops, x.Step(actor.Time(11*time.Second), upstream.Tick{}, pace, 0)...)
	}
	end, ok := ops[len(ops)-1].(upstream.Ended)
	if !ok {
		t.Fatalf("%s %.40q has not ended: %v", media, body, ops)
	}
	return end.Outcome.Answer()
}

// foreign returns a file of test/foreign.
func foreign(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../test/foreign", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Each body of a response with status 200 is a result, since the tool was performed.
func TestToolResults(t *testing.T) {
	deep := strings.Repeat("[", 65) + strings.Repeat("]", 65)
	full := strings.Repeat("x", upstream.ToolResultBytesMax)
	file := func(name string) string { return foreign(t, "tools/"+name) }
	for _, c := range []struct {
		media, body string
		want        string // media type and bytes
		cut         bool
	}{
		{"application/json; charset=utf-8", ` {"a": 1}` + "\n", `application/json {"a": 1}`, false},
		{"application/geo+json", `[]`, "application/json []", false},
		{"Text/HTML", "<p>", "text/plain <p>", false},
		{"", "", "text/plain ", false},
		{"application/json", "", "text/plain ", false},
		{"image/png", "", "text/plain ", false},
		{"text/plain", "", "text/plain ", false},
		{"application/json", file("half-emoji.json"), `application/json {"paid":true,"note":"thanks �"}`, false},
		{"application/json", file("latin-1.json"), `application/json {"paid":true,"to":"Z�rich"}`, false},
		{"text/plain", file("latin-1.txt"), "text/plain paid to Z�rich", false},
		{"text/plain; charset=ISO-8859-1", file("latin-1.txt"), "text/plain paid to Zürich", false},
		{"text/plain; charset=iso-8859-1", "Zürich", "text/plain Zürich", false},
		{"application/json", file("byte-order-mark.json"), `application/json {"paid": true}`, false},
		{"application/json", file("doubled-member.json"), `application/json {"paid":true,"receipt":{"n":2}}`, false},
		{"application/json", file("not-a-number.json"), `application/json {"paid":true,"rate":null,"limits":[null,null]}`, false},
		{"application/json", file("control-character.json"), `application/json {"paid":true,"note":"line one\nline two"}`, false},
		{"application/json", file("long-number.json"), "application/json " + strings.TrimSpace(file("long-number.json")), false},
		{"application/json", file("broken.json"), "text/plain " + file("broken.json"), false},
		{"application/json", file("two-values.json"), "text/plain " + file("two-values.json"), false},
		{"application/json", deep, "text/plain " + deep, false},
		{"application/xml", file("receipt.xml"), "text/plain " + file("receipt.xml"), false},
		{"", file("byte-order-mark.json"), `application/json {"paid": true}`, false},
		{"", "done", "text/plain done", false},
		{"", "\x00\x01", "text/plain [content without a type, 2 bytes]", false},
		{"image/png", file("image.png"), fmt.Sprintf("text/plain [image/png, %d bytes]", len(file("image.png"))), false},
		{"application/octet-stream", "done\n", "text/plain done\n", false},
		{"text/plain", full, "text/plain " + full, false},
		{"text/plain", full + "x", "text/plain " + full, true},
		{"application/json", `"` + full + `"`, `text/plain "` + full[1:], true},
		{"image/png", full + "\x00", "text/plain " + full, true},
		{"image/png", "\x00" + full, "text/plain [image/png, more than 1048560 bytes]", true},
	} {
		answer := performTool(t, upstream.HTTPTool{Name: "t", URL: "http://h/"}, c.media, c.body, upstream.End{Attempt: 1})
		switch {
		case answer.Refusal != nil:
			t.Errorf("%s %.40q: got %v, want %.80s", c.media, c.body, answer.Refusal, c.want)
		case len(answer.Parts) != 1 || actor.CheckParts(answer.Parts, actor.MessageBytesMax) != nil:
			t.Errorf("%s %.40q: got %d parts, %v", c.media, c.body, len(answer.Parts), actor.CheckParts(answer.Parts, actor.MessageBytesMax))
		case answer.Parts[0].Media+" "+string(answer.Parts[0].Bytes) != c.want || (len(answer.Warnings) > 0) != c.cut:
			t.Errorf("%s %.40q: got %s %.80q %q, want %.80s", c.media, c.body, answer.Parts[0].Media, answer.Parts[0].Bytes, answer.Warnings, c.want)
		}
	}
}

// What fails after the head of a response with status 2xx does not read as not performed, also of a
// tool that may be repeated.
func TestToolFailsAfterHead(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		tool := upstream.HTTPTool{Name: "t", URL: "http://h/", Idempotent: idempotent}
		for _, last := range []upstream.Input{upstream.Loss{Attempt: 1, Sent: true, Detail: "reset"}, upstream.Tick{}} {
			if answer := performTool(t, tool, "application/json", `{"a":`, last); answer.Refusal == nil || answer.Refusal.Reason != actor.Unknown {
				t.Errorf("idempotent %v, %T: got %v, want Unknown", idempotent, last, answer.Refusal)
			}
		}
	}
}
