// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/troupe-run/troupe/tools"
)

// BenchmarkCall alternates between a call of a tool over HTTP and one with the bare SDK, and prints the
// quantiles of both.
func BenchmarkCall(b *testing.B) {
	server := testServer("")
	h := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	defer h.Close()
	s, err := Open(Options{Servers: map[string]Config{"web": {URL: h.URL}}, Dir: b.TempDir(), Transport: http.DefaultTransport, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	s.Start(func(context.Context, []tools.Tool) error { return nil })
	registry := tools.NewRegistry()
	for _, t := range s.Tools() {
		if err := registry.Register(t); err != nil {
			b.Fatal(err)
		}
	}
	echo, ok := registry.Tool("web.echo")
	if !ok {
		b.Fatal(names(s.Tools()))
	}
	bare, err := sdk.NewClient(&sdk.Implementation{Name: "bench", Version: "1"}, nil).Connect(b.Context(), &sdk.StreamableClientTransport{Endpoint: h.URL, HTTPClient: &http.Client{}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer bare.Close()
	var ours, theirs []time.Duration
	for b.Loop() {
		begin := time.Now()
		if r := echo.Handler(b.Context(), []byte(`{"text":"hello"}`)); r.Refusal != nil {
			b.Fatal(r.Refusal)
		}
		middle := time.Now()
		if _, err := bare.CallTool(b.Context(), &sdk.CallToolParams{Name: "echo", Arguments: map[string]string{"text": "hello"}}); err != nil {
			b.Fatal(err)
		}
		ours, theirs = append(ours, middle.Sub(begin)), append(theirs, time.Since(middle))
	}
	for name, all := range map[string][]time.Duration{"ours": ours, "bare": theirs} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds()), "µs-p50-"+name)
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "µs-p99-"+name)
	}
}
