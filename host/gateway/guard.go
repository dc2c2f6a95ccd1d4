// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"
)

// Bounds of a request's head.
const (
	HeaderBytesMax = 16 << 10
	HeadersMax     = 100
	TargetBytesMax = 2 << 10
)

// guard finds what is wrong with the head of a request before anybody acts on
// what it says. One that two readers could see the end of in two places may be
// followed by another that only we see: the connection is then to be closed.
func (s *Server) guard(h *fasthttp.RequestHeader) (p *problem, hangUp bool) {
	if p := badFraming(string(h.Method()), string(h.Protocol()), h.RawHeaders()); p != nil {
		return p, true
	}
	if trailed(h) {
		return invalid(http.StatusBadRequest, "", "headers behind the body are not taken"), true
	}
	for _, look := range []func(*fasthttp.RequestHeader) *problem{badTarget, s.badHost, s.badOrigin, badMedia} {
		if p := look(h); p != nil {
			return p, false
		}
	}
	return nil, false
}

// early is the guard before a body is read: nothing is kept for a request that
// is refused anyway, nor, off loopback, for whom nobody knows.
func (s *Server) early(h *fasthttp.RequestHeader) *problem {
	p, _ := s.guard(h)
	if p == nil && !s.local.Load() && !s.known(h) {
		_, p = s.identify(h, "")
	}
	return p
}

// received says how the body of a request is to be read, now that its head is there.
func (s *Server) received(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	c := fasthttp.RequestConfig{ReadTimeout: s.config.BodyWithin}
	if n := h.ContentLength(); (n > 0 || n == -1) && s.early(h) != nil {
		// Nothing of it is to be read, nor asked for: to fasthttp it is too large,
		// and malformed says why.
		h.SetContentLength(BodyBytesMax + 1)
		h.Del(fasthttp.HeaderExpect)
	}
	// How a chunked body ends is fasthttp's to see, not ours; so nothing follows one.
	if h.ContentLength() == -1 {
		h.SetConnectionClose()
	}
	return c
}

// once are the headers that stand for themselves: with two of a kind, who reads
// the first and who reads the last understand two different requests.
var once = []string{"authorization", "connection", "content-encoding", "content-length", "content-type", "expect", "host", "idempotency-key",
	"last-event-id", "origin", "sec-fetch-site", "trailer", "transfer-encoding", "upgrade", "user-agent", "x-run-token"}

// badFraming finds in the raw head what two readers could understand in two ways.
// fasthttp refuses some of it by itself; here it does not depend on that.
func badFraming(method, protocol string, raw []byte) *problem {
	bad := func(format string, args ...any) *problem {
		return invalid(http.StatusBadRequest, "", fmt.Sprintf(format, args...))
	}
	old := protocol == "HTTP/1.0"
	if !old && protocol != "HTTP/1.1" {
		return bad("protocol %.20q: want HTTP/1.1", protocol)
	}
	seen := map[string]string{}
	count := 0
	for line := range bytes.SplitAfterSeq(raw, []byte("\n")) {
		text, ended := bytes.CutSuffix(line, []byte("\r\n"))
		switch {
		case len(line) == 0:
			continue // behind the last
		case !ended:
			return bad("a header line ends without CR and LF")
		case len(text) == 0:
			continue // the end of the head
		case text[0] == ' ' || text[0] == '\t':
			return bad("a header goes on in a second line")
		}
		if count++; count > HeadersMax {
			return invalid(http.StatusRequestHeaderFieldsTooLarge, "", fmt.Sprintf("want at most %d headers", HeadersMax))
		}
		rawName, value, colon := bytes.Cut(text, []byte(":"))
		name := strings.ToLower(string(rawName))
		switch {
		case !colon || name == "" || strings.ContainsFunc(name, notToken):
			return bad("a header line is no name, colon and value; no space stands before the colon")
		case bytes.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return bad("the header %.40s has control characters", name)
		case slices.Contains(once, strings.ReplaceAll(name, "_", "-")) && strings.Contains(name, "_"):
			return bad("the header %.40s is another's name to some readers", name)
		}
		if _, twice := seen[name]; twice && slices.Contains(once, name) {
			return bad("the header %.40s is there twice", name)
		}
		seen[name] = strings.Trim(string(value), " \t")
	}
	length, hasLength := seen["content-length"]
	coding, hasCoding := seen["transfer-encoding"]
	_, hasTrailer := seen["trailer"]
	expect, hasExpect := seen["expect"]
	_, hasHost := seen["host"]
	switch {
	case hasLength && hasCoding:
		return bad("want one Content-Length or one Transfer-Encoding")
	case hasLength && (length == "" || len(length) > 18 || strings.Trim(length, "0123456789") != ""):
		return bad("Content-Length: want a decimal number")
	case hasCoding && (coding != "chunked" || old):
		return bad("Transfer-Encoding: want chunked, in HTTP/1.1")
	case hasTrailer:
		return bad("headers behind the body are not taken")
	case hasExpect && expect != "100-continue":
		return invalid(http.StatusExpectationFailed, "", "Expect: want 100-continue")
	case !hasHost:
		return bad("the Host header is missing")
	case (hasCoding || strings.Trim(length, "0") != "") && !takesBody(method):
		return bad("a %.20s has no body", method)
	}
	return nil
}

func takesBody(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
}

func notToken(r rune) bool {
	return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
}

// trailed tells whether there are headers that the head does not have: fasthttp
// puts those behind a chunked body among the others, where one could pass for
// what the head has not said.
func trailed(h *fasthttp.RequestHeader) bool {
	if h.ContentLength() != -1 {
		return false
	}
	had := map[string]int{}
	for line := range bytes.SplitSeq(h.RawHeaders(), []byte("\n")) {
		name, _, _ := bytes.Cut(line, []byte(":"))
		had[strings.ToLower(string(name))]++
	}
	had["connection"]++ // received says it
	for name := range h.All() {
		lower := strings.ToLower(string(name))
		if had[lower]--; had[lower] < 0 {
			return true
		}
	}
	return false
}

// badTarget finds what no path or query of ours has: escapes above all. What is
// looked at here is what is routed by, byte for byte.
func badTarget(h *fasthttp.RequestHeader) *problem {
	target := h.RequestURI()
	if len(target) > TargetBytesMax {
		return invalid(http.StatusRequestURITooLong, "", fmt.Sprintf("want at most %d bytes of path and query", TargetBytesMax))
	}
	path, query, _ := bytes.Cut(target, []byte("?"))
	what := ""
	switch {
	case len(path) == 0 || path[0] != '/':
		what = "want a path that begins with /"
	case !legal(path, "/._:-"):
		what = "a path has letters, digits, '.', '_', ':', '-' and '/', and no escapes"
	case !legal(query, "._=&-"):
		what = "a query has letters, digits, '.', '_', '-', '=' and '&', and no escapes"
	default:
		for segment := range strings.SplitSeq(string(path[1:]), "/") {
			if segment == "." || segment == ".." || segment == "" && len(path) > 1 {
				what = "a path has no empty segments, and none that is . or .."
			}
		}
	}
	if what == "" {
		return nil
	}
	return invalid(http.StatusBadRequest, "", what)
}

func legal(b []byte, more string) bool {
	for _, c := range b {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte(more, c) >= 0) {
			return false
		}
	}
	return true
}

// badHost refuses names that are not ours: a page whose own name was made to
// lead here would otherwise read us as if we were its server.
func (s *Server) badHost(h *fasthttp.RequestHeader) *problem {
	host := string(h.Host())
	name, port, ok := splitHost(host)
	switch {
	case !ok:
		return invalid(http.StatusBadRequest, "Host", "Host: want a name or an address, and a port if need be")
	case isLoopback(name), slices.ContainsFunc(s.config.Hosts, func(own string) bool { return strings.EqualFold(own, name) || strings.EqualFold(own, name+":"+port) }):
		return nil
	case !s.local.Load() && len(s.config.Hosts) == 0:
		return nil
	}
	return newProblem(http.StatusForbidden, "forbidden_host", "forbidden host",
		fmt.Sprintf("the Host header names %.80q; want 127.0.0.1, localhost, [::1], or a name this server was given", host))
}

// splitHost takes a Host header apart, if it is one.
func splitHost(host string) (name, port string, ok bool) {
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host, port = host[:i], host[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '+' {
			return "", "", false
		}
	}
	if inner, six := strings.CutPrefix(host, "["); six {
		inner, closed := strings.CutSuffix(inner, "]")
		return inner, port, closed && net.ParseIP(inner) != nil && strings.Contains(inner, ":")
	}
	return host, port, host != "" && legal([]byte(host), ".-_")
}

func isLoopback(name string) bool {
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}

// badOrigin refuses what the page of another origin has its reader's browser send.
func (s *Server) badOrigin(h *fasthttp.RequestHeader) *problem {
	origin, site := string(h.Peek(fasthttp.HeaderOrigin)), string(h.Peek("Sec-Fetch-Site"))
	switch {
	case origin != "" && slices.Contains(s.config.Origins, origin):
		return nil
	case origin != "" && origin != "http://"+string(h.Host()):
		return newProblem(http.StatusForbidden, "forbidden_origin", "forbidden origin",
			fmt.Sprintf("pages of %.80q may not speak to this server", origin))
	case site != "" && site != "same-origin" && site != "none":
		return newProblem(http.StatusForbidden, "forbidden_origin", "forbidden origin",
			"pages of other sites may not speak to this server")
	}
	return nil
}

// badMedia refuses bodies that are not plain JSON: what a page can send without
// asking first is a form or text, and what is packed may be much larger than it
// looks. A program that calls its JSON a form, as curl does of -d, is understood:
// no browser sends one without saying whose page it is on.
func badMedia(h *fasthttp.RequestHeader) *problem {
	if len(h.ContentEncoding()) > 0 {
		return invalid(http.StatusUnsupportedMediaType, "Content-Encoding", "Content-Encoding: want the body as it is")
	}
	media, _, _ := strings.Cut(string(h.ContentType()), ";")
	media = strings.TrimSpace(media)
	if strings.EqualFold(media, "application/x-www-form-urlencoded") && !fromPage(h) {
		return nil
	}
	body := h.ContentLength() > 0 || h.ContentLength() == -1
	if (body || media != "") && !strings.EqualFold(media, "application/json") && takesBody(string(h.Method())) {
		return invalid(http.StatusUnsupportedMediaType, "Content-Type", fmt.Sprintf("Content-Type: want application/json, got %.80q", media))
	}
	return nil
}

// fromPage tells whether a browser may have sent the request for a page.
func fromPage(h *fasthttp.RequestHeader) bool {
	for _, name := range []string{fasthttp.HeaderOrigin, fasthttp.HeaderReferer, fasthttp.HeaderCookie, "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"} {
		if len(h.Peek(name)) > 0 {
			return true
		}
	}
	return false
}
