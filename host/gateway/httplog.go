// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
)

// httpLog sends the log of fasthttp to the server's log, without text that a
// client has sent: an error may quote its request.
type httpLog struct{ to *slog.Logger }

// Printf implements fasthttp.Logger. Errors of connections, which clients can
// cause at will, are logged at level debug.
func (l httpLog) Printf(format string, args ...any) {
	level := slog.LevelWarn
	if strings.HasPrefix(format, "error when serving connection") {
		level = slog.LevelDebug
	}
	if !l.to.Enabled(context.Background(), level) {
		return
	}
	safe := make([]any, len(args))
	for i, arg := range args {
		switch arg.(type) {
		case int, net.Addr, *net.OpError: // numbers, addresses and system errors
			safe[i] = arg
		default:
			safe[i] = fmt.Sprintf("%T", arg)
		}
	}
	l.to.Log(context.Background(), level, "HTTP server", "text", fmt.Sprintf(format, safe...))
}
