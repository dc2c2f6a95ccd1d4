// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Bounds of a tool that an HTTP server performs.
const (
	ToolURLBytesMax    = 8 << 10                                      // URL with the arguments
	ToolResultBytesMax = actor.MessageBytesMax - len(actor.MediaJSON) // body of a result
	statusQuoteMax     = 1 << 10                                      // text of an error response quoted in a refusal
)

// HTTPTool is a tool that an HTTP server performs.
//
// A {name} in the path or the query of the URL is replaced with the escaped argument of that
// name. It cannot change the host or the structure of the path. Without Body, the other
// arguments are the JSON body, or parameters of the query of a GET or DELETE.
type HTTPTool struct {
	Name    string
	URL     string
	Method  string   // GET, POST, PUT, PATCH or DELETE; "" means POST
	Headers []Header // in addition to those of every request, or in place of them
	// Body is the template of a JSON body. A string that is exactly {name} stands for the
	// argument of that name; null for an absent one.
	Body []byte
	// Batch means that one request performs several calls: its body is the list of BatchBody.
	Batch bool
	// Idempotent means that the tool may be performed twice. Other tools are asked again
	// only if no byte of the request was sent. Exception: as HTTP permits, a GET is also
	// repeated after the server closed a connection in use before, without a response.
	Idempotent bool
}

// ToolInput is the input of one call of a tool.
type ToolInput struct {
	Arguments []byte // JSON object, which satisfies the schema of the tool; of a batch, its BatchBody
	Key       string // idempotency key, the same for all attempts; "" sends none
	Trace     string // see actor.Call.Trace; an invalid one is omitted

	// Identity is sent in headers and for placeholders {{user}}, {{session}}, {{agent}} and {{run}} of URL, headers
	// and body; nil: the server does not get the user.
	Identity *Identity
	Signed   string // form of Identity that the server signed; "": none
}

var toolMethods = []string{"GET", "POST", "PUT", "PATCH", "DELETE"}

func (t HTTPTool) method() string { return cmp.Or(t.Method, "POST") }

// Check returns an error that describes the first invalid field, or nil.
func (t HTTPTool) Check() error {
	_, err := t.parse()
	return err
}

// parse checks all fields and returns the template of the URL.
func (t HTTPTool) parse() (urlTemplate, error) {
	if !slices.Contains(toolMethods, t.method()) {
		return urlTemplate{}, fmt.Errorf("method: want one of %s, got %.20q", strings.Join(toolMethods, ", "), t.Method)
	}
	template, err := parseURLTemplate(t.URL)
	if err != nil {
		return urlTemplate{}, fmt.Errorf("url: %w", err)
	}
	for _, h := range t.Headers {
		if lower := strings.ToLower(h.Name); slices.Contains(connectionHeaders, lower) || strings.HasPrefix(lower, "proxy-") || strings.HasPrefix(strings.ReplaceAll(lower, "_", "-"), identityPrefix) {
			return urlTemplate{}, fmt.Errorf("headers: %.80q is reserved: remove it", h.Name)
		}
	}
	if len(t.Body) > 0 && (depthExceededAt(t.Body) >= 0 || !jsontext.Value(t.Body).IsValid()) {
		return urlTemplate{}, errors.New("body: want one JSON value")
	}
	return template, nil
}

// connectionHeaders are the headers that a tool cannot declare.
var connectionHeaders = []string{"accept-encoding", "connection", "content-encoding", "content-length", "expect", "host", "idempotency-key", "keep-alive",
	"te", "trailer", "transfer-encoding", "upgrade"}

// FixedURL returns the part of the URL that no argument changes: up to the first segment
// of the path with a placeholder, without the query. All requests of the tool go to a path
// below it, so permission to send a secret to it covers them.
func (t HTTPTool) FixedURL() (string, error) {
	template, err := parseURLTemplate(t.URL)
	return template.prefix(), err
}

// Request returns the request that performs the tool.
func (t HTTPTool) Request(in ToolInput) (Request, *actor.Refusal) {
	invalid := func(err error) (Request, *actor.Refusal) {
		return Request{}, actor.Refuse(actor.Invalid, "tool %s: %v", t.Name, err)
	}
	template, err := t.parse()
	if err != nil {
		return invalid(err)
	}
	args := &arguments{} // those of a batch are in its body only
	if !t.Batch {
		if args, err = parseArguments(in.Arguments); err != nil {
			return invalid(fmt.Errorf("arguments: %w", err))
		}
	}
	args.identity = in.Identity
	declared := t.Headers
	if in.Identity != nil {
		declared = in.Identity.fillHeaders(declared)
	}
	r := Request{Method: t.method(), Headers: []Header{{Name: "accept", Value: "application/json, text/*;q=0.9, */*;q=0.1"}}}
	if in.Key != "" {
		r.Headers = append(r.Headers, Header{Name: "idempotency-key", Value: in.Key})
	}
	inBody := len(t.Body) > 0 || r.Method != "GET" && r.Method != "DELETE"
	var refusal *actor.Refusal
	if r.URL, refusal = template.fill(args, !inBody); refusal != nil {
		refusal.Detail = "tool " + t.Name + ": " + refusal.Detail
		return Request{}, refusal
	}
	if inBody {
		r.Headers = append(r.Headers, Header{Name: "content-type", Value: "application/json"})
		if t.Batch {
			r.Body = in.Arguments
		} else if len(t.Body) == 0 {
			r.Body = args.object()
		} else if r.Body, err = fillBody(t.Body, args); err != nil {
			return invalid(err)
		}
	}
	r.Headers = slices.DeleteFunc(append(r.Headers, traceHeaders(in.Trace)...), func(own Header) bool {
		return slices.ContainsFunc(t.Headers, func(h Header) bool { return strings.EqualFold(h.Name, own.Name) })
	})
	r.Headers = append(r.Headers, declared...)
	if in.Identity != nil {
		r.Headers = append(r.Headers, in.Identity.headers()...)
		if in.Signed != "" {
			r.Headers = append(r.Headers, Header{Name: IdentityHeader, Value: in.Signed, Secret: true})
		}
	}
	if refusal := checkHeaders(r.Headers); refusal != nil {
		refusal.Detail = "tool " + t.Name + ": " + refusal.Detail
		return Request{}, refusal
	}
	return r, nil
}

// Exchange returns the exchange that performs the tool.
func (t HTTPTool) Exchange(in ToolInput, deadline actor.Time, patience AttemptLimits) (ExchangeConfig, *actor.Refusal) {
	request, refusal := t.Request(in)
	name := "tool " + t.Name
	patience.Head, patience.Idle = orDefault(patience.Head, agentTimeoutDefault), orDefault(patience.Idle, agentTimeoutDefault)
	return ExchangeConfig{Upstream: name, Request: request, Safe: t.Idempotent, Tool: true, Deadline: deadline, AttemptLimits: patience,
		NewDecoder: func(contentType string) (Decoder, *Failure) {
			return newToolDecoder(name, request.secrets(), contentType), nil
		},
	}, refusal
}

// ToolDecoder decodes the result of a tool, without the secrets of the request. The tool has been
// performed, so each body is a result: JSON, in its strict form; else text; else a description of
// the content. Of more than ToolResultBytesMax it is the head, as text with a warning.
type ToolDecoder struct {
	name    string
	secrets Secrets // of the request
	media   string
	charset string
	body    []byte // at most ToolResultBytesMax
	cut     bool   // the body is longer
	result  *actor.Part
}

func newToolDecoder(name string, secrets Secrets, contentType string) *ToolDecoder {
	return &ToolDecoder{name: name, secrets: secrets, media: mediaType(contentType), charset: charsetOf(contentType)}
}

// charsetOf returns the parameter charset of a content type, or "".
func charsetOf(contentType string) string {
	for parameter := range strings.SplitSeq(contentType, ";") {
		if name, value, ok := strings.Cut(parameter, "="); ok && strings.EqualFold(strings.TrimSpace(name), "charset") {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
}

func isText(media string) bool { return isJSON(media) || strings.HasPrefix(media, "text/") }

// Decode consumes the next bytes of the body. There are no deltas.
func (d *ToolDecoder) Decode(b []byte) ([]Delta, *Failure) {
	if d.result != nil {
		return nil, nil
	}
	room := ToolResultBytesMax - len(d.body)
	d.body = append(d.body, b[:min(len(b), room)]...)
	if len(b) > room {
		d.cut = true
		d.end()
	}
	return nil, nil
}

// End reports the end of the body.
func (d *ToolDecoder) End() ([]Delta, *Failure) {
	if d.result == nil {
		d.end()
	}
	return nil, nil
}

func (d *ToolDecoder) end() {
	if !d.cut && (isJSON(d.media) || d.media == "") && depthExceededAt(d.body) < 0 {
		if strict, err := StrictJSON(d.body); err == nil {
			redacted := []byte(d.secrets.redact(string(strict)))
			if len(redacted) <= ToolResultBytesMax && jsontext.Value(redacted).IsValid() { // a secret can be a number
				d.result = &actor.Part{Media: actor.MediaJSON, Bytes: redacted}
				return
			}
		}
	}
	text := readableText(d.body, d.charset)
	if !isText(d.media) && !isReadable(text, d.cut) {
		size := fmt.Sprintf("%d bytes", len(d.body))
		if d.cut {
			size = "more than " + size
		}
		text = DescribeContent(d.media, size)
	}
	if text = d.secrets.redact(text); d.cut {
		text = d.secrets.cutEnd(text)
	}
	if len(text) > ToolResultBytesMax { // replacements can be longer
		d.cut = true
	}
	d.result = &actor.Part{Media: actor.MediaText, Bytes: []byte(actor.FitText(text, ToolResultBytesMax))}
}

// DescribeContent returns the text that stands for content which is no text.
func DescribeContent(media, size string) string {
	return "[" + actor.FitText(cmp.Or(media, "content without a type"), mediaBytesMax) + ", " + size + "]"
}

// isReadable reports whether content without a type of text is text. The last character of a head may
// be incomplete.
func isReadable(text string, cut bool) bool {
	if cut {
		text = text[:max(len(text)-len("\uFFFD")*utf8.UTFMax, 0)]
	}
	return !strings.ContainsFunc(text, func(c rune) bool {
		return c == utf8.RuneError || c == 0x7f || c < ' ' && !strings.ContainsRune("\t\n\f\r\x1b", c)
	})
}

// HasFinish returns false: only the end of the body shows that a result is complete.
func (d *ToolDecoder) HasFinish() bool { return false }

// Done reports whether the result is complete.
func (d *ToolDecoder) Done() bool { return d.result != nil }

// Completion returns a zero value: a tool has a Result.
func (d *ToolDecoder) Completion() Completion { return Completion{} }

// Warnings names what the result lacks.
func (d *ToolDecoder) Warnings() []string {
	if !d.cut || d.result == nil {
		return nil
	}
	return []string{fmt.Sprintf("%s answers with more than %d bytes, and these are the first", d.name, ToolResultBytesMax)}
}

// Result returns the complete result, or nil.
func (d *ToolDecoder) Result() *actor.Part { return d.result }

// toolFailure returns the failure for the response of a tool with a status that is not
// 2xx. Once means that the tool is not idempotent.
func toolFailure(name string, once bool, request Request, status int, headers []Header, body []byte, now actor.Time) *Failure {
	f := &Failure{Class: Refused}
	reason, secrets := actor.Rejected, request.secrets()
	switch {
	case status/100 == 3:
		return fail(Refused, reason, "%s answers %d%s", name, status, describeRedirect(request.URL, lookup(headers, "location"), secrets))
	case status == 429:
		f.Class, reason = Throttled, actor.Busy
	case status == 408 || status == 425 || status == 503 || status == 529:
		f.Class, reason = Throttled, actor.Unavailable
	case status == 501 || status == 505:
		reason = actor.Unavailable
	case status >= 500 || status < 300:
		f.Class, reason = Broken, actor.Unavailable
	}
	f.Refusal = actor.Refuse(reason, "%s answers %d%s", name, status, describeBody(headers, body, secrets))
	if f.Class == Broken && once {
		f.Refusal.Detail += "; it may have been performed"
	}
	if f.Class != Refused {
		f.After = RetryAfter(headers, now)
		f.Refusal.RetryAfter = f.After
	}
	if reason == actor.Busy {
		f.Refusal.Scope = actor.ScopeCallee
	}
	return f
}

// describeBody returns the text of an error response, to be appended to its status.
func describeBody(headers []Header, body []byte, secrets Secrets) string {
	contentType := lookup(headers, "content-type")
	switch {
	case len(body) == 0:
		return ""
	case !isText(mediaType(contentType)):
		return fmt.Sprintf(" with %d bytes of %q", len(body), secrets.quote(mediaType(contentType), mediaBytesMax))
	}
	text := secrets.redact(string(body))
	if len(body) == errorBytesMax {
		text = secrets.cutEnd(text)
	}
	return ": " + actor.FitText(strings.TrimSpace(text), statusQuoteMax)
}

func describeRedirect(from, location string, secrets Secrets) string {
	base, err := url.Parse(from)
	if location == "" || err != nil {
		return ", which is no result"
	}
	const remedy = "redirects are not followed, so declare the final URL"
	to, err := base.Parse(location)
	switch {
	case err != nil:
		return ", a redirect without a valid URL: " + remedy
	case to.Scheme == base.Scheme && strings.EqualFold(to.Host, base.Host):
		return fmt.Sprintf(", a redirect to %q of the same host: %s", secrets.quote(to.EscapedPath(), mediaBytesMax), remedy)
	default:
		return fmt.Sprintf(", a redirect to another host, %q: %s", secrets.quote(to.Scheme+"://"+to.Host, mediaBytesMax), remedy)
	}
}
