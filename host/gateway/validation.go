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

// validateHead finds what is wrong with the head of a request before anybody acts on
// what it says. One that two readers could see the end of in two places may be
// followed by another that only we see: the connection is then to be closed.
func (s *Server) validateHead(h *fasthttp.RequestHeader) (p *problem, hangUp bool) {
	there, p := checkFraming(h.Method(), h.Protocol(), h.RawHeaders())
	if p != nil {
		return p, true
	}
	if hasTrailers(h) {
		return invalid(http.StatusBadRequest, "", "headers behind the body are not taken"), true
	}
	if p = checkTarget(h); p == nil {
		p = s.checkHost(h)
	}
	if p == nil && there&(1<<singletonOrigin|1<<singletonSite) != 0 {
		p = s.checkOrigin(h)
	}
	if p == nil {
		p = checkMediaType(h)
	}
	return p, false
}

// validateBeforeBody is the guard before a body is read: nothing is kept for a request that
// is refused anyway, nor, off loopback, for whom nobody knows.
func (s *Server) validateBeforeBody(h *fasthttp.RequestHeader) *problem {
	p, _ := s.validateHead(h)
	if p == nil && !s.onLoopback.Load() && !s.hasCredential(h) {
		_, p = s.authorize(h, "", nil)
	}
	return p
}

// headerReceived says how the body of a request is to be read, now that its head is there.
func (s *Server) headerReceived(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	c := fasthttp.RequestConfig{ReadTimeout: s.config.BodyTimeout}
	if n := h.ContentLength(); (n > 0 || n == -1) && s.validateBeforeBody(h) != nil {
		// Nothing of it is to be read, nor asked for: to fasthttp it is too large,
		// and unreadable says why.
		h.SetContentLength(BodyBytesMax + 1)
		h.Del(fasthttp.HeaderExpect)
	}
	// How a chunked body ends is fasthttp's to see, not ours; so nothing follows one.
	if h.ContentLength() == -1 {
		h.SetConnectionClose()
	}
	return c
}

// singletonHeaders are the headers that stand for themselves: with two of a kind, who reads
// the first and who reads the last understand two different requests.
var singletonHeaders = [...]string{"authorization", "connection", "content-encoding", "content-length", "content-type", "expect", "host", "idempotency-key",
	"last-event-id", "origin", "sec-fetch-site", "trailer", "transfer-encoding", "upgrade", "user-agent", "x-run-token"}

// Those of them that are looked at here, by their places.
const (
	singletonLength  = 3
	singletonExpect  = 5
	singletonHost    = 6
	singletonOrigin  = 9
	singletonSite    = 10
	singletonTrailer = 11
	singletonCoding  = 12
)

// singletonIndex is the place of a name in once, in whatever case, or -1. Some readers
// take _ for -, so it is the same here.
func singletonIndex(name []byte) int {
	for i := range singletonHeaders {
		if len(singletonHeaders[i]) == len(name) && equalHeaderName(name, singletonHeaders[i]) {
			return i
		}
	}
	return -1
}

func equalHeaderName(name []byte, lower string) bool {
	for i, c := range name {
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c == '_':
			c = '-'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// checkFraming finds in the raw head what two readers could understand in two ways.
// fasthttp refuses some of it by itself; here it does not depend on that. Of once it
// tells which are there.
func checkFraming(method, protocol, raw []byte) (there uint32, p *problem) {
	old := string(protocol) == "HTTP/1.0"
	if !old && string(protocol) != "HTTP/1.1" {
		return 0, malformed("protocol %.20q: want HTTP/1.1", protocol)
	}
	var values [len(singletonHeaders)][]byte // of those that are there
	for count := 0; len(raw) > 0; {
		end := bytes.IndexByte(raw, '\n')
		if end < 1 || raw[end-1] != '\r' {
			return 0, malformed("a header line ends without CR and LF")
		}
		line := raw[:end-1]
		if raw = raw[end+1:]; len(line) == 0 {
			continue // the end of the head
		}
		if line[0] == ' ' || line[0] == '\t' {
			return 0, malformed("a header goes on in a second line")
		}
		if count++; count > HeadersMax {
			return 0, invalid(http.StatusRequestHeaderFieldsTooLarge, "", fmt.Sprintf("want at most %d headers", HeadersMax))
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 || !consistsOf(line[:colon], &nameBytes) {
			return 0, malformed("a header line is no name, colon and value; no space stands before the colon")
		}
		name, value := line[:colon], line[colon+1:]
		if !consistsOf(value, &valueBytes) {
			return 0, malformed("the header %.40s has control characters", bytes.ToLower(name))
		}
		switch at := singletonIndex(name); {
		case at < 0:
		case bytes.IndexByte(name, '_') >= 0:
			return 0, malformed("the header %.40s is another's name to some readers", bytes.ToLower(name))
		case values[at] != nil:
			return 0, malformed("the header %.40s is there twice", bytes.ToLower(name))
		default:
			values[at], there = trimBlanks(value), there|1<<at
		}
	}
	length, coding, expect := values[singletonLength], values[singletonCoding], values[singletonExpect]
	switch {
	case length != nil && coding != nil:
		return 0, malformed("want one Content-Length or one Transfer-Encoding")
	case length != nil && (len(length) == 0 || len(length) > 18 || len(bytes.Trim(length, "0123456789")) > 0):
		return 0, malformed("Content-Length: want a decimal number")
	case coding != nil && (string(coding) != "chunked" || old):
		return 0, malformed("Transfer-Encoding: want chunked, in HTTP/1.1")
	case values[singletonTrailer] != nil:
		return 0, malformed("headers behind the body are not taken")
	case expect != nil && string(expect) != "100-continue":
		return 0, invalid(http.StatusExpectationFailed, "", "Expect: want 100-continue")
	case values[singletonHost] == nil:
		return 0, malformed("the Host header is missing")
	case (coding != nil || len(bytes.Trim(length, "0")) > 0) && !allowsBody(method):
		return 0, malformed("a %.20s has no body", method)
	}
	return there, nil
}

// trimBlanks is a value without what stands around it; never nil.
func trimBlanks(value []byte) []byte {
	for len(value) > 0 && (value[0] == ' ' || value[0] == '\t') {
		value = value[1:]
	}
	for n := len(value); n > 0 && (value[n-1] == ' ' || value[n-1] == '\t'); n-- {
		value = value[:n-1]
	}
	return value
}

// malformed is a head that nobody reads further.
func malformed(format string, args ...any) *problem {
	return invalid(http.StatusBadRequest, "", fmt.Sprintf(format, args...))
}

func allowsBody(method []byte) bool {
	return string(method) == http.MethodPost || string(method) == http.MethodPut || string(method) == http.MethodPatch
}

// A set of bytes.
type byteSet [256]bool

// nameBytes are what a header's name is made of, valueBytes what its value is.
var nameBytes, valueBytes = func() (name, value byteSet) {
	for c := range name {
		b := byte(c)
		name[c] = 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b < 0x80 && strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0
		value[c] = b >= ' ' && b != 0x7f || b == '\t'
	}
	return name, value
}()

func consistsOf(text []byte, of *byteSet) bool {
	for _, c := range text {
		if !of[c] {
			return false
		}
	}
	return true
}

// hasTrailers tells whether there are headers that the head does not have: fasthttp
// puts those behind a chunked body among the others, where one could pass for
// what the head has not said.
func hasTrailers(h *fasthttp.RequestHeader) bool {
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

// checkTarget finds what no path or query of ours has: escapes above all. What is
// looked at here is what is routed by, byte for byte.
func checkTarget(h *fasthttp.RequestHeader) *problem {
	target := h.RequestURI()
	if len(target) > TargetBytesMax {
		return invalid(http.StatusRequestURITooLong, "", fmt.Sprintf("want at most %d bytes of path and query", TargetBytesMax))
	}
	path, query, _ := bytes.Cut(target, questionMark)
	what := ""
	switch {
	case len(path) == 0 || path[0] != '/':
		what = "want a path that begins with /"
	case !consistsOf(path, &pathBytes):
		what = "a path has letters, digits, '.', '_', ':', '-' and '/', and no escapes"
	case !consistsOf(query, &queryBytes):
		what = "a query has letters, digits, '.', '_', '-', '=' and '&', and no escapes"
	default:
		for from, i := 1, 1; i <= len(path); i++ {
			if i < len(path) && path[i] != '/' {
				continue
			}
			segment := path[from:i]
			if from = i + 1; string(segment) == "." || string(segment) == ".." || len(segment) == 0 && len(path) > 1 {
				what = "a path has no empty segments, and none that is . or .."
			}
		}
	}
	if what == "" {
		return nil
	}
	return invalid(http.StatusBadRequest, "", what)
}

var questionMark = []byte("?")

// What paths, queries and the names of hosts are made of.
var pathBytes, queryBytes, hostBytes = alphanumericAnd("/._:-"), alphanumericAnd("._=&-"), alphanumericAnd(".-_")

// alphanumericAnd is letters, digits and some more.
func alphanumericAnd(more string) (of byteSet) {
	for c := range of {
		b := byte(c)
		of[c] = 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || strings.IndexByte(more, b) >= 0
	}
	return of
}

// checkHost refuses names that are not ours: a page whose own name was made to
// lead here would otherwise read us as if we were its server.
func (s *Server) checkHost(h *fasthttp.RequestHeader) *problem {
	if last := s.lastHost.Load(); last != nil && string(h.Host()) == *last {
		return nil
	}
	host := string(h.Host())
	name, port, ok := splitHost(host)
	switch {
	case !ok:
		return invalid(http.StatusBadRequest, "Host", "Host: want a name or an address, and a port if need be")
	case isLoopback(name), slices.ContainsFunc(s.config.Hosts, func(own string) bool { return strings.EqualFold(own, name) || strings.EqualFold(own, name+":"+port) }),
		!s.onLoopback.Load() && len(s.config.Hosts) == 0:
		s.lastHost.Store(&host)
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
	return host, port, host != "" && consistsOf([]byte(host), &hostBytes)
}

func isLoopback(name string) bool {
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}

// checkOrigin refuses what the page of another origin has its reader's browser send.
func (s *Server) checkOrigin(h *fasthttp.RequestHeader) *problem {
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

// checkMediaType refuses bodies that are not plain JSON: what a page can send without
// asking first is a form or text, and what is packed may be much larger than it
// looks. A program that calls its JSON a form, as curl does of -d, is understood:
// no browser sends one without saying whose page it is on.
func checkMediaType(h *fasthttp.RequestHeader) *problem {
	if len(h.ContentEncoding()) == 0 && string(h.ContentType()) == "application/json" {
		return nil
	}
	if len(h.ContentEncoding()) > 0 {
		return invalid(http.StatusUnsupportedMediaType, "Content-Encoding", "Content-Encoding: want the body as it is")
	}
	media, _, _ := strings.Cut(string(h.ContentType()), ";")
	media = strings.TrimSpace(media)
	if strings.EqualFold(media, "application/x-www-form-urlencoded") && !fromBrowser(h) {
		return nil
	}
	body := h.ContentLength() > 0 || h.ContentLength() == -1
	if (body || media != "") && !strings.EqualFold(media, "application/json") && allowsBody(h.Method()) {
		return invalid(http.StatusUnsupportedMediaType, "Content-Type", fmt.Sprintf("Content-Type: want application/json, got %.80q", media))
	}
	return nil
}

// fromBrowser tells whether a browser may have sent the request for a page.
func fromBrowser(h *fasthttp.RequestHeader) bool {
	for _, name := range []string{fasthttp.HeaderOrigin, fasthttp.HeaderReferer, fasthttp.HeaderCookie, "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"} {
		if len(h.Peek(name)) > 0 {
			return true
		}
	}
	return false
}
