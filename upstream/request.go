// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// Secret is a text that prints as ***: a key, a token.
type Secret string

// String hides it.
func (Secret) String() string { return "***" }

// GoString hides it too.
func (Secret) GoString() string { return "***" }

// Reveal is the text itself, for the one place that sends it.
func (s Secret) Reveal() string { return string(s) }

// Header is one header field.
type Header struct {
	Name   string // lower case in what we send
	Value  string
	Secret bool // never printed, and taken out of what comes back
}

// String is the field on one line.
func (h Header) String() string {
	if h.Secret {
		return h.Name + ": ***"
	}
	return h.Name + ": " + h.Value
}

// GoString hides what String hides.
func (h Header) GoString() string { return h.String() }

// Request is what a world sends. It follows no redirect, and adds no header
// that could change what the bytes mean.
type Request struct {
	Method  string
	URL     string
	Headers []Header
	Body    []byte
}

// String is the request on one line, without what is secret.
func (r Request) String() string { return fmt.Sprintf("%s %s, %d bytes", r.Method, r.URL, len(r.Body)) }

// redact takes the request's secrets out of a text that came back.
func (r Request) redact(text string) string {
	for _, h := range r.Headers {
		if !h.Secret {
			continue
		}
		for _, secret := range []string{h.Value, strings.TrimPrefix(h.Value, "Bearer ")} {
			if secret != "" {
				text = strings.ReplaceAll(text, secret, "***")
			}
		}
	}
	return text
}

// Bounds of a request's head.
const (
	URLBytesMax    = 2048
	HeaderBytesMax = 8 << 10 // one value
)

func post(base, path string, body []byte, headers []Header) (Request, *actor.Refusal) {
	return request("POST", base, path, body, append([]Header{{Name: "content-type", Value: "application/json"}}, headers...))
}

// request joins an endpoint and a path, and refuses an endpoint or a header
// that could be read as more than one.
func request(method, base, path string, body []byte, headers []Header) (Request, *actor.Refusal) {
	if err := CheckURL(base); err != nil {
		return Request{}, actor.Refuse(actor.Invalid, "endpoint: %v", err)
	}
	for _, h := range headers {
		if at := strings.IndexFunc(h.Value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }); at >= 0 {
			return Request{}, actor.Refuse(actor.Invalid, "header %s: a control character at byte %d", h.Name, at)
		}
		if len(h.Value) > HeaderBytesMax {
			return Request{}, actor.Refuse(actor.Invalid, "header %s: %d bytes are over %d", h.Name, len(h.Value), HeaderBytesMax)
		}
	}
	return Request{Method: method, URL: strings.TrimRight(base, "/") + path, Headers: headers, Body: body}, nil
}

// CheckURL says why a text is no endpoint: http or https, a host as ParseHost
// takes it, a path, and nothing else. Whether the host may be reached is Egress'
// to say, once it is known where that is.
func CheckURL(text string) error {
	if len(text) > URLBytesMax {
		return fmt.Errorf("%d bytes are over %d", len(text), URLBytesMax)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }) {
		return fmt.Errorf("it has blanks, control characters or backslashes")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("it is no URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("want http or https, got %.20q", u.Scheme)
	case u.Hostname() == "":
		return fmt.Errorf("it names no host")
	case u.User != nil:
		return fmt.Errorf("it has a user: give the key by itself")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(text, "#"):
		return fmt.Errorf("it has a query or a fragment")
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

// validTraceparent tells a W3C traceparent that may be sent on.
func validTraceparent(text string) bool {
	parts := strings.Split(text, "-")
	if len(parts) < 4 || len(parts[0]) != 2 || len(parts[1]) != 32 || len(parts[2]) != 16 || len(parts[3]) != 2 {
		return false
	}
	for _, p := range parts[:4] {
		if strings.Trim(p, "0123456789abcdef") != "" {
			return false
		}
	}
	zero := func(s string) bool { return strings.Trim(s, "0") == "" }
	return parts[0] != "ff" && (parts[0] != "00" || len(parts) == 4) && !zero(parts[1]) && !zero(parts[2])
}
