// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"strconv"

	"github.com/valyala/fasthttp"
)

// keyRequired returns the reason why a request needs an API key, or "". A request
// on loopback needs none if its client is a process of this machine: no proxy
// header is present, the protocol is HTTP/1.1, and Host names this server on
// loopback. A proxy that adds no header and speaks HTTP/1.1 cannot be recognized;
// Config.KeysRequired covers it.
func (s *Server) keyRequired(h *fasthttp.RequestHeader) string {
	switch {
	case !s.onLoopback.Load(), s.config.KeysRequired:
		return "this request needs an API key: send the header Authorization: Bearer troupe_…"
	case isProxied(h.RawHeaders()):
		return "this request was forwarded by a proxy, so it needs an API key"
	case !h.IsHTTP11(): // nginx forwards so unless it is configured otherwise
		return "this request is in HTTP/1.0, as a proxy sends it, so it needs an API key"
	case !s.isLocalHost(h.Host()):
		return "the Host header is not a loopback name with the port of this server, so this request needs an API key"
	}
	return ""
}

// proxyHeaders lists, in lower case, the headers that proxies add. Names that begin
// with one of proxyPrefixes belong to it too.
var proxyHeaders = [...]string{"forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-remote-ip",
	"client-ip", "proxy-client-ip", "wl-proxy-client-ip", "x-proxyuser-ip", "x-varnish", "x-azure-clientip", "x-appengine-user-ip",
	"cf-connecting-ip", "cf-ray", "true-client-ip", "fastly-client-ip", "fly-client-ip", "cloudfront-viewer-address", "cdn-loop"}

// proxyPrefixes are the beginnings of names such as X-Forwarded-For, X-Original-For
// and X-Envoy-External-Address.
var proxyPrefixes = [...]string{"x-forwarded", "x-original-", "x-envoy-"}

// isProxied reports whether a line of the raw head has the name of a header that
// proxies add. The value is irrelevant: a client may send an empty line of the
// same name before that of the proxy.
func isProxied(raw []byte) bool {
	for len(raw) > 0 {
		end := bytes.IndexByte(raw, '\n')
		if end < 0 {
			end = len(raw) - 1
		}
		if isProxyHeader(raw[:end]) {
			return true
		}
		raw = raw[end+1:]
	}
	return false
}

// isProxyHeader reports whether a header line has a name of proxyHeaders. It
// ignores case and treats '_' as '-'.
func isProxyHeader(line []byte) bool {
	if len(line) == 0 {
		return false
	}
	switch line[0] | 0x20 {
	case 'c', 'f', 'p', 't', 'v', 'w', 'x': // the first letters of all names
	default:
		return false
	}
	name := line[:max(bytes.IndexByte(line, ':'), 0)]
	for i := range proxyPrefixes {
		if n := len(proxyPrefixes[i]); len(name) >= n && equalHeaderName(name[:n], proxyPrefixes[i]) {
			return true
		}
	}
	for i := range proxyHeaders {
		if len(name) == len(proxyHeaders[i]) && equalHeaderName(name, proxyHeaders[i]) {
			return true
		}
	}
	return false
}

// seenHost is an accepted Host header. local reports whether it is a loopback name
// with the port of this server, which a request over the owner's socket may precede.
type seenHost struct {
	text  string
	port  uint32
	local bool
}

// isLocalHost reports whether a Host header is a loopback name with the port of
// this server. A missing port means that of the scheme.
func (s *Server) isLocalHost(host []byte) bool {
	own := s.port.Load()
	if last := s.lastHost.Load(); last != nil && last.port == own && string(host) == last.text {
		return last.local
	}
	name, port, ok := splitHost(string(host))
	if port == "" {
		if port = "80"; s.tls != nil {
			port = "443"
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return ok && err == nil && uint32(n) == own && isLoopback(name)
}

// isForeignBearer reports whether an Authorization header has a bearer token that
// is not an API key of Troupe. Clients made for other services always send one.
func isForeignBearer(header []byte) bool {
	scheme := []byte("Bearer")
	if len(header) < len(scheme) || !bytes.EqualFold(header[:len(scheme)], scheme) {
		return false
	}
	token := header[len(scheme):]
	if len(token) > 0 && token[0] != ' ' && token[0] != '\t' {
		return false
	}
	return !bytes.HasPrefix(bytes.Trim(token, " \t"), []byte("troupe_"))
}
