// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"log"
	"log/slog"
)

// redirectStandardLog sends the lines of the standard logger, which net/http and
// other packages use, to the server's log until restore is called.
func redirectStandardLog(to *slog.Logger) (restore func()) {
	out, flags, prefix := log.Writer(), log.Flags(), log.Prefix()
	log.SetOutput(standardLog{to})
	log.SetFlags(0)
	log.SetPrefix("")
	return func() {
		log.SetOutput(out)
		log.SetFlags(flags)
		log.SetPrefix(prefix)
	}
}

// standardLog logs the beginning of each line as a warning. A line may hold bytes
// of a peer, which MUST NOT reach the log, as a quotation or after a colon.
type standardLog struct{ to *slog.Logger }

const standardLogBytesMax = 120

// Write implements io.Writer.
func (l standardLog) Write(line []byte) (int, error) {
	text := line[:min(len(line), standardLogBytesMax)]
	if end := bytes.IndexFunc(text, func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '`' || c == '\'' }); end >= 0 {
		text = text[:end]
	}
	if end := bytes.Index(text, []byte(": ")); end >= 0 {
		text = text[:end]
	}
	l.to.Warn("standard log", "text", string(bytes.TrimSpace(text)))
	return len(line), nil
}
