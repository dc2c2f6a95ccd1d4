// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

const (
	// toolFloor is the maximum time in ns that an HTTP tool may add to its request.
	toolFloor = 200_000
	toolCalls = 10_000 // calls whose latencies are compared
	toolName  = "HTTP tool, added to its request"
)

// studyTool measures the time that a declared tool adds to its HTTP request.
func studyTool(b *bench) (rows []row, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // a failed request fails its client
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"degrees":21}`) //nolint:errcheck // likewise
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		err = errors.Join(err, server.Close())
		if e := <-served; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}()
	out, err := outbound.New(outbound.Config{Allow: upstream.AllowLoopback()})
	if err != nil {
		return nil, err
	}
	defer out.Close()
	const input = `{"city":"Graz"}`
	url := "http://" + listener.Addr().String() + "/w"
	op := runtime.Tool{Name: "weather.get", Input: []byte(input), Left: time.Minute,
		Context:  tools.NewContext(actor.Call{To: actor.NewID("a", "s")}, time.Minute, dispatcher.Asks{}),
		Declared: &tools.Declared{Name: "weather.get", Kind: tools.KindServer, Via: tools.ViaHTTP, URL: url}}
	ours := func(int, int) error {
		if answer := out.Tool(b.ctx, actor.EffectID{Step: 1}, op); answer.Refusal != nil {
			return answer.Refusal
		}
		return nil
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	theirs := func(int, int) error {
		response, err := client.Post(url, "application/json", bytes.NewReader([]byte(input)))
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if _, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
			return errors.Join(err, fmt.Errorf("status %d", response.StatusCode))
		}
		return nil
	}
	rounds, err := b.runRounds(comparison{name: toolName,
		ours:   func(n int) (time.Duration, error) { return runConcurrent(1, n, ours) },
		theirs: func(n int) (time.Duration, error) { return runConcurrent(1, n, theirs) }})
	if err != nil {
		return nil, err
	}
	r := latencyRow(toolName, "the request by net/http", addedCosts(rounds), atMost(toolFloor))
	r.Ratio = 0 // an added duration has no ratio
	n := toolCalls
	if b.quick {
		n = 100
	}
	slow, err := latencies(1, n, ours)
	if err != nil {
		return nil, err
	}
	fast, err := latencies(1, n, theirs)
	if err != nil {
		return nil, err
	}
	added := func(q float64) figure { return durationFigure(quantile(slow, q) - quantile(fast, q)) }
	r.addNote("%s calls each: ours p50 %v, p99 %v; counterpart p50 %v, p99 %v; added p50 %v, p99 %v", groupDigits(int64(n)),
		durationFigure(quantile(slow, 0.5)), durationFigure(quantile(slow, 0.99)), durationFigure(quantile(fast, 0.5)), durationFigure(quantile(fast, 0.99)), added(0.5), added(0.99))
	return []row{r}, nil
}
