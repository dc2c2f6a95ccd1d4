// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
)

// An answer of a model goes to the client of the proxy byte for byte, whatever this program makes of it for its own agents.
// Only what stock clients fail on is left out: comments, also those that became data, and what is no JSON at the end. An
// error that precedes all text is no stream: the client gets it with its status.
func TestForeignAnswersArePassedByteForByte(t *testing.T) {
	files, _ := filepath.Glob("../../test/foreign/models/*.txt")
	passed := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		input, _, _ := strings.Cut(string(text), "----\n")
		lines := strings.Split(strings.TrimSuffix(input, "\n"), "\n")
		_, media, _ := strings.Cut(lines[1], " ")
		var body strings.Builder
		for _, line := range lines[2:] {
			body.WriteString(strings.NewReplacer("<CR>", "\r", "<BOM>", "\uFEFF", "<FF>", "\xff").Replace(strings.TrimPrefix(strings.TrimPrefix(line, "|"), " ")) + "\n")
		}
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		if strings.HasPrefix(name, "error_code") {
			continue
		}
		streams := strings.Contains(body.String(), "data:")
		want := strings.NewReplacer(": hello\n\n", "", "data: : keepalive\n\n", "", "data:\n\n", "", "data: {\"x-groq\":\n\n", "").Replace(strings.TrimLeft(body.String(), "\n"))
		passed++
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, Config{Models: oneModel("http://models.example/v1")}, func(w http.ResponseWriter, _ *http.Request) {
					w.Header()["Content-Type"] = nil
					if media != "" {
						w.Header().Set("Content-Type", media)
					}
					_, _ = io.WriteString(w, body.String())
				})
				passed, out := chat(t.Context(), t, w.Outbound, strings.Replace(streamed, "}]", `}],"stream_options":{"include_usage":true}`, 1))
				if got := passed + string(out.Tail); got != want || out.Streams != streams {
					t.Errorf("got\n%q\nwant\n%q\n%v, stream %v", got, want, out.Refusal, out.Streams)
				}
				w.close()
			})
		})
	}
	if passed < 20 {
		t.Errorf("%d answers, want at least 20", passed)
	}
}
