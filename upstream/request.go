// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
)

// Secret is a key or token that prints as ***.
type Secret string

// String returns *** instead of the secret.
func (Secret) String() string { return "***" }

// GoString returns *** too, for %#v.
func (Secret) GoString() string { return "***" }

// Reveal returns the secret. Only the code that sends it may call Reveal.
func (s Secret) Reveal() string { return string(s) }

// Header is one header field.
type Header struct {
	Name   string // lower case in requests
	Value  string
	Secret bool // never printed, and redacted from responses
}

// String returns the field on one line, with a secret value hidden.
func (h Header) String() string {
	if h.Secret {
		return h.Name + ": ***"
	}
	return h.Name + ": " + h.Value
}

// GoString hides secrets like String, for %#v.
func (h Header) GoString() string { return h.String() }

// Request is an HTTP request for the host to send. The host MUST NOT follow
// redirects or add headers that change the meaning of the body.
type Request struct {
	Method  string
	URL     string
	Headers []Header
	Body    []byte
	hidden  Secrets // further ones than those of the headers
}

// String returns the request on one line, without headers, secrets and body.
func (r Request) String() string {
	return fmt.Sprintf("%s %s, %d bytes", r.Method, r.hidden.redact(r.URL), len(r.Body))
}

// secrets returns the secrets of the request, to be removed from texts of the
// upstream.
func (r Request) secrets() Secrets {
	var all Secrets
	for _, h := range r.Headers {
		if h.Secret {
			all = append(all, h.Value, strings.TrimPrefix(h.Value, "Bearer "))
		}
	}
	return append(all, r.hidden...)
}

// EgressHeader marks each request that a server sends to a model, an agent or a tool. A
// server refuses decisions about tool calls in such a request: an agent may choose the tool
// and its arguments. The value is the mark of the server, which begins no run for a request of
// its own.
const EgressHeader = "x-troupe-egress"

// Secrets are the secrets of a request. An upstream may quote them.
type Secrets []string

// redact replaces the secrets in a text of the upstream, also with other letter case and
// with the escapes of JSON. The text may be a part of JSON.
func (s Secrets) redact(text string) string {
	for _, secret := range s {
		if secret != "" {
			text = redactOne(text, secret)
		}
	}
	return text
}

// cutEnd returns a text of which the rest was not read without its end, in which the begin of a secret
// is not recognized.
func (s Secrets) cutEnd(text string) string {
	longest := 0
	for _, secret := range s {
		longest = max(longest, escapeBytesMax*len(secret))
	}
	return text[:max(len(text)-longest, 0)]
}

func redactOne(text, secret string) string {
	var out []byte
	from := 0 // bytes before it are in out
	for at := 0; at < len(text); {
		n := max(quotedBytes(text[at:], secret, false), quotedBytes(text[at:], secret, true))
		if n == 0 {
			at++
			continue
		}
		out = append(append(out, text[from:at]...), "***"...)
		at += n
		from = at
	}
	if from == 0 {
		return text
	}
	return string(append(out, text[from:]...))
}

// quotedBytes returns the number of bytes at the start of a text that are a secret in any
// letter case, 0 if it starts otherwise.
func quotedBytes(text, secret string, escaped bool) (n int) {
	for _, want := range secret {
		got, size := utf8.DecodeRuneInString(text[n:])
		if escaped && got == '\\' {
			got, size = unescape(text[n:])
		}
		if size == 0 || unicode.ToLower(got) != unicode.ToLower(want) {
			return 0
		}
		n += size
	}
	return n
}

// escapeBytesMax is the maximum number of bytes that one byte has as escapes of JSON.
const escapeBytesMax = len(`\u0000`)

// unescape returns the character of the JSON escape at the start of a text, and its size.
func unescape(text string) (c rune, size int) {
	hex := func(text string) rune {
		if len(text) < escapeBytesMax || text[:2] != `\u` {
			return utf8.RuneError
		}
		v, err := strconv.ParseUint(text[2:escapeBytesMax], 16, 16)
		if err != nil {
			return utf8.RuneError
		}
		return rune(v)
	}
	if c = hex(text); utf16.IsSurrogate(c) {
		return utf16.DecodeRune(c, hex(text[escapeBytesMax:])), 2 * escapeBytesMax
	}
	switch {
	case c != utf8.RuneError:
		return c, escapeBytesMax
	case len(text) >= 2 && strings.Contains(`"\/`, text[1:2]):
		return rune(text[1]), 2
	case strings.HasPrefix(text, `\t`): // the only control character of headers
		return '\t', 2
	}
	return utf8.RuneError, 1
}

// quote returns a text of the upstream, without secrets, in at most limit bytes. The
// order matters: a truncated secret would not be recognized.
func (s Secrets) quote(text string, limit int) string {
	return actor.FitText(s.redact(text), limit)
}

var pointerUnescaper = strings.NewReplacer("~1", "/", "~0", "~")

// quoteError returns the text of an error of unmarshal, which may quote names that
// the upstream chose.
func (s Secrets) quoteError(err error) string {
	if e, ok := err.(*jsonError); ok {
		return (&jsonError{e.at, s.redact(pointerUnescaper.Replace(e.path)), e.problem}).Error()
	}
	return s.redact(err.Error())
}

// Bounds of the head of a request.
const (
	URLBytesMax    = 2048
	HeaderBytesMax = 8 << 10 // size of one value
)

func post(base, path string, body []byte, headers []Header) (Request, *actor.Refusal) {
	return request("POST", base, path, body, append([]Header{{Name: "content-type", Value: "application/json"}}, headers...))
}

// request joins an endpoint and a path. It rejects an endpoint or header with more
// than one interpretation, such as a header value with a line break.
func request(method, base, path string, body []byte, headers []Header) (Request, *actor.Refusal) {
	if err := CheckModelURL(base); err != nil {
		return Request{}, actor.Refuse(actor.Invalid, "endpoint: %v", err)
	}
	if refusal := checkHeaders(headers); refusal != nil {
		return Request{}, refusal
	}
	base, query, hasQuery := strings.Cut(base, "?")
	to := strings.TrimRight(base, "/") + path
	if hasQuery {
		to += "?" + query
	}
	return Request{Method: method, URL: to, Headers: headers, Body: body}, nil
}

// checkHeaders refuses a header with more than one interpretation.
func checkHeaders(headers []Header) *actor.Refusal {
	for _, h := range headers {
		if h.Name == "" || strings.Trim(h.Name, letterBytes+digitBytes+"-_") != "" {
			return actor.Refuse(actor.Invalid, "header %.80q: want a name of letters, digits, '-' and '_'", h.Name)
		}
		if at := strings.IndexFunc(h.Value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }); at >= 0 {
			return actor.Refuse(actor.Invalid, "header %s: control character at byte %d", h.Name, at)
		}
		if len(h.Value) > HeaderBytesMax {
			return actor.Refuse(actor.Invalid, "header %s: %d bytes exceed the maximum of %d", h.Name, len(h.Value), HeaderBytesMax)
		}
	}
	return nil
}

// exampleURL is the endpoint shown in error messages.
const exampleURL = "http://127.0.0.1:9001"

// CheckURL returns an error unless text is an endpoint: http or https, a host that
// ParseHost accepts, a path, and nothing else. Whether the host may be reached is
// decided by Egress after name resolution.
func CheckURL(text string) error {
	err := CheckModelURL(text)
	if err == nil && strings.Contains(text, "?") {
		return fmt.Errorf("contains a query")
	}
	return err
}

// CheckModelURL is CheckURL for the endpoint of a model, which may have a query.
func CheckModelURL(text string) error {
	if len(text) > URLBytesMax {
		return fmt.Errorf("%d bytes exceed the maximum of %d", len(text), URLBytesMax)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }) {
		return fmt.Errorf("contains blanks, control characters or backslashes")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("invalid URL; want one like %s", exampleURL)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("want http or https, got %.20q; write it like %s", u.Scheme, exampleURL)
	case u.Hostname() == "":
		return fmt.Errorf("missing host")
	case u.User != nil:
		return fmt.Errorf("contains a user: configure the key separately")
	case u.Fragment != "" || strings.Contains(text, "#"):
		return fmt.Errorf("contains a fragment")
	}
	host := u.Host
	if text := u.Port(); text != "" {
		if port, ok := parseDigits(text); !ok || port < 1 || port > 65535 {
			return fmt.Errorf("port %.20q: want 1 to 65535", text)
		}
		host = strings.TrimSuffix(host, ":"+text)
	}
	if _, _, err := ParseHost(host); err != nil {
		return fmt.Errorf("host %.80q: %w", host, err)
	}
	return nil
}

// Bounds of the headers that a configuration adds to the requests of a model.
const (
	HeadersMax         = 16
	HeaderNameBytesMax = 64
)

// reservedHeaders are the headers with a meaning of their own, which a configuration
// cannot set.
var reservedHeaders = []string{"accept", "accept-encoding", "authorization", "connection", "content-encoding", "content-length", "content-type", "cookie",
	"expect", "host", "keep-alive", "te", "traceparent", "tracestate", "trailer", "transfer-encoding", "upgrade", "user-agent", EgressHeader}

// CheckHeaderName returns an error unless a configuration may set the header.
func CheckHeaderName(name string) error {
	switch lower := strings.ToLower(name); {
	case name == "" || len(name) > HeaderNameBytesMax || strings.Trim(lower, letterBytes+digitBytes+"-_") != "":
		return fmt.Errorf("%.80q: want the name of a header: 1 to %d letters, digits, '-' and '_'", name, HeaderNameBytesMax)
	case lower == "authorization":
		return fmt.Errorf("%s is reserved: set key_env, the name of the variable with the key", name)
	case slices.Contains(reservedHeaders, lower) || strings.HasPrefix(lower, "proxy-"):
		return fmt.Errorf("%s is reserved: remove it", name)
	}
	return nil
}
