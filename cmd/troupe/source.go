// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/node"
)

// ServerFlags selects the server that a command calls.
type ServerFlags struct {
	Server string `env:"TROUPE_SERVER" default:"http://127.0.0.1:8283" help:"Server URL (${default})."`
	Key    string `env:"TROUPE_KEY" help:"API key. Prefer the environment: other users can see arguments."`
}

// SourceFlags selects a server, or a data folder that no server uses.
type SourceFlags struct {
	ServerFlags
	Data    string `type:"existingdir" help:"Read this data folder instead; no server may be using it."`
	Damaged bool   `help:"With --data: read the intact part of a damaged folder."`
}

// source returns the runs of a server or a data folder as JSON.
type source interface {
	runs(limit int) ([]byte, error)
	run(id actor.CallID) ([]byte, error)
	events(id actor.CallID, after uint64, wait time.Duration) ([]byte, error)
	close() error
}

func (s SourceFlags) open() (source, error) {
	if s.Data == "" {
		if s.Damaged {
			return nil, errors.New("--damaged requires --data")
		}
		return s.ServerFlags.client(), nil
	}
	d, err := disk.Open(s.Data, "", disk.Options{ReadOnly: true, Damaged: s.Damaged})
	if err != nil {
		return nil, inUseError(s.Data, err, insteadOfData)
	}
	return dataDir{d, node.View{KV: d}}, nil
}

// dataDir reads a store that no server uses.
type dataDir struct {
	disk *disk.Disk
	view node.View
}

func (f dataDir) close() error { return f.disk.Close() }

func (f dataDir) runs(limit int) ([]byte, error) {
	list, err := f.view.Runs(limit)
	return list.AppendJSON(nil), err
}

func (f dataDir) run(id actor.CallID) ([]byte, error) {
	r, err := f.view.Run(id)
	return r.AppendJSON(nil), err
}

func (f dataDir) events(id actor.CallID, after uint64, _ time.Duration) ([]byte, error) {
	page, err := f.view.Events(command.EventsQuery{Run: id, After: after, Limit: gateway.EventsMax, Strict: true})
	return page.AppendJSON(nil), err
}

// client calls a server over HTTP.
type client struct {
	server, key string
	http        *http.Client // nil: http.DefaultClient
}

func (a ServerFlags) client() client {
	return client{server: strings.TrimSuffix(a.Server, "/"), key: a.Key}
}

// authorize adds the API key to the request if one is set.
func (c client) authorize(r *http.Request) {
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
}

func (c client) runs(limit int) ([]byte, error) {
	return c.get(fmt.Sprintf("/v1/runs?limit=%d", limit))
}
func (c client) run(id actor.CallID) ([]byte, error) { return c.get("/v1/runs/" + id.String()) }
func (c client) close() error                        { return nil }

func (c client) events(id actor.CallID, after uint64, wait time.Duration) ([]byte, error) {
	return c.get(fmt.Sprintf("/v1/runs/%s/events?after=%d&limit=%d&wait_ms=%d", id, after, gateway.EventsMax, wait.Milliseconds()))
}

func (c client) get(path string) ([]byte, error) {
	_, body, err := c.do(http.MethodGet, path, nil)
	return body, err
}

func (c client) post(path string, body any) (status int, answer []byte, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	return c.do(http.MethodPost, path, b)
}

// responseBytesMax is the maximum response size in bytes. No response of a Troupe
// server is larger.
const responseBytesMax = 64 << 20

// do sends a request. A response with a problem is returned as an error with the
// problem's text.
func (c client) do(method, path string, body []byte) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), gateway.AnswerTimeout+time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, fmt.Errorf("--server %s: want an address like http://127.0.0.1:8283", c.server)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	c.authorize(r)
	response, err := cmp.Or(c.http, http.DefaultClient).Do(r)
	if err != nil {
		return 0, nil, c.connectionError(err)
	}
	defer response.Body.Close()
	if answer, err = io.ReadAll(io.LimitReader(response.Body, responseBytesMax)); err != nil {
		return 0, nil, c.connectionError(err)
	}
	if response.StatusCode >= 400 {
		return response.StatusCode, answer, parseProblem(response.StatusCode, answer)
	}
	return response.StatusCode, answer, nil
}

func (c client) connectionError(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("no server answers at %s: start one with `troupe serve`, or choose another with --server; `troupe runs` and `troupe keys` can also use a data folder with --data", c.server)
	}
	return fmt.Errorf("server %s: %w", c.server, err)
}

// problem is the problem+json body of a failed request.
type problem struct {
	status int
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	Run    string `json:"run_id"`
	body   []byte
}

func (p *problem) Error() string {
	text := fmt.Sprintf("%s: %s", p.Code, p.Detail)
	if p.Run != "" {
		text += fmt.Sprintf(" (see: troupe runs show %s)", p.Run)
	}
	return text
}

func parseProblem(status int, body []byte) error {
	p := &problem{status: status, body: body}
	if json.Unmarshal(body, p) != nil || p.Code == "" {
		return fmt.Errorf("the server answered %d: %.200s", status, body)
	}
	return p
}
