// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"log/slog"
	"regexp"
	"testing"
)

func TestLogText(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newLogText(&out, slog.LevelInfo))
	log.Debug("not shown")
	log.Info("serving", "url", "http://127.0.0.1:1", "start_ms", 3)
	log.With("file", "a b.toml").WithGroup("g").Warn("two\nlines", "time", "x\ny")
	log.Error("bare")
	got := regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d `).ReplaceAllString(out.String(), "TIME ")
	want := "TIME INFO serving  url=http://127.0.0.1:1 start_ms=3\n" +
		"TIME WARN two\\nlines  file=\"a b.toml\" g.time=\"x\\ny\"\n" +
		"TIME ERROR bare\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
