// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
)

// logText is a log handler for people. A line has the time of day, the level, the message and
// the attributes. Values that could be taken for other lines or attributes are quoted.
type logText struct {
	slog.Handler // formats the attributes into line
	line         *logLine
}

// logLine is the line that a logText and the handlers derived from it format.
type logLine struct {
	mu   sync.Mutex
	attr bytes.Buffer
	out  io.Writer
}

func newLogText(out io.Writer, level slog.Level) slog.Handler {
	line := &logLine{out: out}
	return logText{slog.NewTextHandler(&line.attr, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			return slog.Attr{}
		}
		return a
	}}), line}
}

// Handle implements slog.Handler.
func (h logText) Handle(ctx context.Context, r slog.Record) error {
	h.line.mu.Lock()
	defer h.line.mu.Unlock()
	h.line.attr.Reset()
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	line := r.Time.AppendFormat(nil, "15:04:05 ")
	line = append(line, r.Level.String()...)
	line = append(line, ' ')
	line = append(line, oneLine(r.Message)...)
	if attr := h.line.attr.Bytes(); len(attr) > 1 { // more than the end of the line
		line = append(line, ' ', ' ')
	}
	_, err := h.line.out.Write(append(line, h.line.attr.Bytes()...))
	return err
}

// WithAttrs implements slog.Handler.
func (h logText) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logText{h.Handler.WithAttrs(attrs), h.line}
}

// WithGroup implements slog.Handler.
func (h logText) WithGroup(name string) slog.Handler {
	return logText{h.Handler.WithGroup(name), h.line}
}
