// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"fmt"
	"github.com/troupe-run/troupe/ingress"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"
)

// Bounds of the head of a request.
const (
	HeaderBytesMax = 16 << 10
	HeadersMax     = 100
	TargetBytesMax = 2 << 10
)

// validateHead validates the head of a request before any other use of it. It
// sets hangUp if two HTTP parsers could disagree about the end of the request: a
// smuggled request may follow, so the connection MUST be closed.
func (s *Server) validateHead(h *fasthttp.RequestHeader) (p *problem, hangUp bool) {
	present, p := checkFraming(h.Method(), h.Protocol(), h.RawHeaders())
	if p != nil {
		return p, true
	}
	if hasTrailers(h) {
		return invalid(http.StatusBadRequest, "", "trailers are not supported"), true
	}
	if p = checkTarget(h); p == nil {
		p = s.checkHost(h)
	}
	if p == nil && present&(1<<singletonOrigin|1<<singletonSite) != 0 {
		p = s.checkOrigin(h)
	}
	if p == nil {
		p = checkMediaType(h)
	}
	return p, false
}

// validateBeforeBody validates the head before the body is read, and checks the scope of
// the route. It returns the caller. No memory is allocated for the body of a request that
// it refuses.
//
// The scope is that for which the caller is authorized. It is empty if the route has to authorize the
// request: the table knows no such path, the client is the owner of the data folder, who may present a
// key as whose holder he acts then, or the body may name a run.
func (s *Server) validateBeforeBody(h *fasthttp.RequestHeader, owner bool) (by *caller, scope ingress.Scope, p *problem) {
	if p, _ := s.validateHead(h); p != nil {
		return nil, "", p
	}
	path, _, _ := bytes.Cut(h.RequestURI(), questionMark)
	scope, known := s.table.scope(h.Method(), path)
	switch {
	case owner:
		return &ownerCaller, "", nil
	case !known && (s.onLoopback.Load() && !s.config.KeysRequired || s.hasCredential(h)): // no such path
		return &publicCaller, "", nil
	case !known:
		by, p = s.authorize(h, scope, nil)
		return by, "", p
	case scope == scopeRunToken && !hasRunToken(h):
		by, p = forwardedRuns{s}.authorizeHead(h)
		return by, "", p
	}
	by, p = s.authorize(h, scope, nil)
	return by, scope, p
}

// headerReceived configures how fasthttp reads the body, once the head has
// arrived.
func (s *Server) headerReceived(h *fasthttp.RequestHeader, owner bool) fasthttp.RequestConfig {
	c := fasthttp.RequestConfig{ReadTimeout: s.config.BodyTimeout, MaxRequestBodySize: bodyMax(h)}
	if n := bodyLength(h); n > 0 && !(bodyAdmission{s}).admit(h, n, owner) {
		// The body MUST NOT be read, and the client MUST NOT get a 100 Continue. An
		// oversized length makes fasthttp reject the request, and handleReadError sends
		// the actual reason.
		h.SetContentLength(bodyMax(h) + 1)
		if len(h.Peek(fasthttp.HeaderExpect)) > 0 {
			h.Set(fasthttp.HeaderExpect, "refused") // handleReadError validates the head again
		}
	}
	// fasthttp alone detects the end of a chunked body, and the gateway cannot
	// verify it. So the connection is closed after the answer.
	if h.ContentLength() == -1 {
		h.SetConnectionClose()
	}
	return c
}

// singletonHeaders lists the headers that must not be repeated. If such a
// header is repeated, a parser that uses its first value and a parser that uses
// its last value see different requests.
var singletonHeaders = [...]string{"authorization", "connection", "content-encoding", "content-length", "content-type", "expect", "host", "idempotency-key",
	"last-event-id", "origin", "sec-fetch-site", "trailer", "transfer-encoding", "upgrade", "user-agent", "x-run-token", "x-user-id"}

// Indexes into singletonHeaders of the headers that this file examines.
const (
	singletonLength  = 3
	singletonExpect  = 5
	singletonHost    = 6
	singletonOrigin  = 9
	singletonSite    = 10
	singletonTrailer = 11
	singletonCoding  = 12
)

// singletonIndex returns the index of a name in singletonHeaders, or -1. It
// ignores case and treats '_' as '-', as some parsers do.
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

// checkFraming rejects a raw head that two parsers could interpret differently.
// It makes all checks itself, including those that fasthttp makes too. It
// returns the set of singleton headers that are present, as a bit mask.
func checkFraming(method, protocol, raw []byte) (present uint32, p *problem) {
	http10 := string(protocol) == "HTTP/1.0"
	if !http10 && string(protocol) != "HTTP/1.1" {
		return 0, malformed("protocol %.20q is not supported: want HTTP/1.1", protocol)
	}
	var values [len(singletonHeaders)][]byte // of the headers that are present
	for count := 0; len(raw) > 0; {
		end := bytes.IndexByte(raw, '\n')
		if end < 1 || raw[end-1] != '\r' {
			return 0, malformed("a header line does not end with CR LF")
		}
		line := raw[:end-1]
		if raw = raw[end+1:]; len(line) == 0 {
			continue // the end of the head
		}
		if line[0] == ' ' || line[0] == '\t' {
			return 0, malformed("folded header lines are not supported")
		}
		if count++; count > HeadersMax {
			return 0, invalid(http.StatusRequestHeaderFieldsTooLarge, "", fmt.Sprintf("want at most %d headers", HeadersMax))
		}
		colon := bytes.IndexByte(line, ':')
		if colon < 1 || !consistsOf(line[:colon], &nameBytes) {
			return 0, malformed("malformed header line: want name, colon and value, without a space before the colon")
		}
		name, value := line[:colon], line[colon+1:]
		if !consistsOf(value, &valueBytes) {
			return 0, malformed("the header %.40s contains control characters", bytes.ToLower(name))
		}
		switch index := singletonIndex(name); {
		case index < 0:
		case bytes.IndexByte(name, '_') >= 0:
			return 0, malformed("the header %.40s is ambiguous: use dashes instead of underscores", bytes.ToLower(name))
		case values[index] != nil:
			return 0, malformed("the header %.40s is a duplicate", bytes.ToLower(name))
		default:
			values[index], present = trimBlanks(value), present|1<<index
		}
	}
	length, coding, expect := values[singletonLength], values[singletonCoding], values[singletonExpect]
	switch {
	case length != nil && coding != nil:
		return 0, malformed("want one Content-Length or one Transfer-Encoding")
	case length != nil && (len(length) == 0 || len(length) > 18 || len(bytes.Trim(length, "0123456789")) > 0):
		return 0, malformed("Content-Length: want a decimal number")
	case coding != nil && (string(coding) != "chunked" || http10):
		return 0, malformed("Transfer-Encoding: want chunked, in HTTP/1.1")
	case values[singletonTrailer] != nil:
		return 0, malformed("trailers are not supported")
	case expect != nil && string(expect) != "100-continue":
		return 0, invalid(http.StatusExpectationFailed, "", "Expect: want 100-continue")
	case values[singletonHost] == nil:
		return 0, malformed("the Host header is missing")
	case (coding != nil || len(bytes.Trim(length, "0")) > 0) && !allowsBody(method):
		return 0, malformed("a %.20s request must not have a body", method)
	}
	return present, nil
}

// trimBlanks returns value without leading and trailing blanks; the result is not
// nil.
func trimBlanks(value []byte) []byte {
	for len(value) > 0 && (value[0] == ' ' || value[0] == '\t') {
		value = value[1:]
	}
	for n := len(value); n > 0 && (value[n-1] == ' ' || value[n-1] == '\t'); n-- {
		value = value[:n-1]
	}
	return value
}

// malformed returns the problem for a head that cannot be parsed unambiguously.
func malformed(format string, args ...any) *problem {
	return invalid(http.StatusBadRequest, "", fmt.Sprintf(format, args...))
}

func allowsBody(method []byte) bool {
	return string(method) == http.MethodPost || string(method) == http.MethodPut || string(method) == http.MethodPatch
}

// byteSet is a set of bytes.
type byteSet [256]bool

// nameBytes and valueBytes are the bytes allowed in the name and value of a
// header.
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

// hasTrailers reports whether the request has headers that are missing in its
// head. fasthttp adds the trailers of a chunked body to the headers, where a
// trailer could pass for a header of the head.
func hasTrailers(h *fasthttp.RequestHeader) bool {
	if h.ContentLength() != -1 {
		return false
	}
	inHead := map[string]int{}
	for line := range bytes.SplitSeq(h.RawHeaders(), []byte("\n")) {
		name, _, _ := bytes.Cut(line, []byte(":"))
		inHead[strings.ToLower(string(name))]++
	}
	inHead["connection"]++ // added by headerReceived
	for name := range h.All() {
		lower := strings.ToLower(string(name))
		if inHead[lower]--; inHead[lower] < 0 {
			return true
		}
	}
	return false
}

// checkTarget rejects paths and queries with bytes that no route uses. Among
// these are all percent escapes. The bytes checked here are exactly the bytes
// that are routed.
func checkTarget(h *fasthttp.RequestHeader) *problem {
	target := h.RequestURI()
	if len(target) > TargetBytesMax {
		return invalid(http.StatusRequestURITooLong, "", fmt.Sprintf("want at most %d bytes of path and query", TargetBytesMax))
	}
	path, query, _ := bytes.Cut(target, questionMark)
	if pageOf(path) != "" {
		path = path[:len(path)-1]
	}
	detail := ""
	switch {
	case len(path) == 0 || path[0] != '/':
		detail = "want a path that begins with /"
	case !consistsOf(path, &pathBytes):
		detail = "the path may contain only letters, digits, '.', '_', ':', '-' and '/', and no escapes"
	case !consistsOf(query, &queryBytes):
		detail = "the query may contain only letters, digits, '.', '_', ':', '-', '*', ',', '=' and '&', and no escapes"
	default:
		for from, i := 1, 1; i <= len(path); i++ {
			if i < len(path) && path[i] != '/' {
				continue
			}
			segment := path[from:i]
			if from = i + 1; string(segment) == "." || string(segment) == ".." || len(segment) == 0 && len(path) > 1 {
				detail = "the path must not contain empty segments, . or .."
			}
		}
		if whole := bytes.TrimRight(path, "/"); len(path) > 1 && len(whole) == len(path)-1 {
			detail = fmt.Sprintf("the path must not end with /: want %.200s", whole)
		}
	}
	if detail == "" {
		return nil
	}
	return invalid(http.StatusBadRequest, "", detail)
}

var questionMark = []byte("?")

// Bytes allowed in paths, in queries and in host names.
var pathBytes, queryBytes, hostBytes = alphanumericAnd("/._:-"), alphanumericAnd("._:=&*,-"), alphanumericAnd(".-_")

// alphanumericAnd returns the set of ASCII letters, digits and the bytes of the
// argument more.
func alphanumericAnd(more string) (of byteSet) {
	for c := range of {
		b := byte(c)
		of[c] = 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || strings.IndexByte(more, b) >= 0
	}
	return of
}

// checkHost rejects host names other than those of this server. It prevents DNS
// rebinding: a web page whose name resolves to this address could otherwise
// read the answers. Off loopback it accepts every name if Config.Hosts is
// empty.
func (s *Server) checkHost(h *fasthttp.RequestHeader) *problem {
	if last := s.lastHost.Load(); last != nil && string(h.Host()) == last.text {
		return nil
	}
	host := string(h.Host())
	name, port, ok := splitHost(host)
	switch {
	case !ok:
		return invalid(http.StatusBadRequest, "Host", "Host: want a name or an address, with an optional port")
	case isLoopback(name), slices.ContainsFunc(s.config.Hosts, func(own string) bool { return strings.EqualFold(own, name) || strings.EqualFold(own, name+":"+port) }),
		!s.onLoopback.Load() && len(s.config.Hosts) == 0:
		own := s.port.Load()
		s.lastHost.Store(&seenHost{host, own, s.isLocalHost(h.Host())})
		return nil
	}
	return newProblem(http.StatusForbidden, "forbidden_host", "forbidden host",
		fmt.Sprintf("the Host header names %.80q: want 127.0.0.1, localhost, [::1], or a name configured with --hosts", host))
}

// splitHost splits a Host header into name and port. It reports ok = false if the
// header is malformed.
func splitHost(host string) (name, port string, ok bool) {
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host, port = host[:i], host[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '+' {
			return "", "", false
		}
	}
	if inner, ipv6 := strings.CutPrefix(host, "["); ipv6 {
		inner, closed := strings.CutSuffix(inner, "]")
		return inner, port, closed && net.ParseIP(inner) != nil && strings.Contains(inner, ":")
	}
	return host, port, host != "" && consistsOf([]byte(host), &hostBytes)
}

func isLoopback(name string) bool {
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}

// checkOrigin rejects requests that a browser sends for a page of another origin.
func (s *Server) checkOrigin(h *fasthttp.RequestHeader) *problem {
	scheme := "http://"
	if s.tls != nil {
		scheme = "https://"
	}
	origin, site := string(h.Peek(fasthttp.HeaderOrigin)), string(h.Peek("Sec-Fetch-Site"))
	switch {
	case origin != "" && slices.Contains(s.config.Origins, origin):
		return nil
	case origin != "" && origin != scheme+string(h.Host()):
		return newProblem(http.StatusForbidden, "forbidden_origin", "forbidden origin",
			fmt.Sprintf("requests from pages of %.80q are not allowed; the flag --origin of the server allows them", origin))
	case site != "" && site != "same-origin" && site != "none":
		return newProblem(http.StatusForbidden, "forbidden_origin", "forbidden origin",
			"requests from pages of other sites are not allowed")
	}
	return nil
}

// checkMediaType rejects bodies that are not plain JSON. A page can send forms
// and text to another origin without a preflight request, and a compressed body
// may be far larger than its length. JSON labelled as a form, as curl -d sends
// it, is accepted: browsers always add a header that identifies the page.
func checkMediaType(h *fasthttp.RequestHeader) *problem {
	if len(h.ContentEncoding()) == 0 && string(h.ContentType()) == "application/json" {
		return nil
	}
	if len(h.ContentEncoding()) > 0 {
		return invalid(http.StatusUnsupportedMediaType, "Content-Encoding", "Content-Encoding: want an unencoded body")
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

// fromBrowser reports whether a browser may have sent the request for a page.
func fromBrowser(h *fasthttp.RequestHeader) bool {
	for _, name := range []string{fasthttp.HeaderOrigin, fasthttp.HeaderReferer, fasthttp.HeaderCookie, "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"} {
		if len(h.Peek(name)) > 0 {
			return true
		}
	}
	return false
}
