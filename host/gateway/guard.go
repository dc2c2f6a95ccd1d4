// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/valyala/fasthttp"
)

// Loopback says why an address is not served, if it is not.
func Loopback(listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("--listen %s: want host:port, like 127.0.0.1:8283", listen)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("--listen %s: there are no API keys yet, so only loopback is served; try 127.0.0.1:8283, and a tunnel to reach it from elsewhere", listen)
}

// guard finds what is wrong with a request before anybody reads what it says.
// One that is framed in two ways could be followed by another that we did not
// see; its connection is closed.
func guard(ctx *fasthttp.RequestCtx) (p *problem, hangUp bool) {
	if what := badFraming(&ctx.Request.Header); what != "" {
		return invalid(http.StatusBadRequest, "", what), true
	}
	if what := badTarget(ctx.Request.Header.RequestURI()); what != "" {
		return invalid(http.StatusBadRequest, "", what), false
	}
	host := string(ctx.Request.Header.Host())
	if !isLocal(host) {
		return newProblem(http.StatusForbidden, "forbidden_host", "forbidden host",
			fmt.Sprintf("the Host header names %.80q; want 127.0.0.1, localhost or [::1]", host)), false
	}
	if origin := string(ctx.Request.Header.Peek(fasthttp.HeaderOrigin)); origin != "" && origin != "http://"+host {
		return newProblem(http.StatusForbidden, "forbidden_origin", "forbidden origin",
			fmt.Sprintf("pages of %.80q may not speak to this server", origin)), false
	}
	return nil, false
}

func isLocal(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// badFraming finds headers about which two readers may disagree.
func badFraming(h *fasthttp.RequestHeader) string {
	if p := string(h.Protocol()); p != "HTTP/1.1" && p != "HTTP/1.0" {
		return fmt.Sprintf("protocol %.20q: want HTTP/1.1", p)
	}
	lengths, encodings := 0, 0
	for line := range bytes.SplitSeq(h.RawHeaders(), []byte("\n")) {
		if len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
			return "a header goes on in a second line"
		}
		name, _, _ := bytes.Cut(line, []byte(":"))
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			lengths++
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			encodings++
		}
	}
	if lengths+encodings > 1 {
		return "want one Content-Length or one Transfer-Encoding"
	}
	return ""
}

// badTarget finds what no path or query of ours has: escapes above all.
func badTarget(uri []byte) string {
	path, query, _ := bytes.Cut(uri, []byte("?"))
	legal := func(b []byte, more string) bool {
		for _, c := range b {
			if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte(more, c) >= 0) {
				return false
			}
		}
		return true
	}
	switch {
	case len(path) == 0 || path[0] != '/':
		return "want a path that begins with /"
	case !legal(path, "/._:-"):
		return "a path has letters, digits, '.', '_', ':', '-' and '/', and no escapes"
	case !legal(query, "._=&-"):
		return "a query has letters, digits, '.', '_', '-', '=' and '&', and no escapes"
	}
	for segment := range bytes.SplitSeq(path[1:], []byte("/")) {
		if s := string(segment); s == "." || s == ".." || s == "" && len(path) > 1 {
			return "a path has no empty segments, and none that is . or .."
		}
	}
	return ""
}
