// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
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
	query "github.com/troupe-run/troupe/internal/command"
	nodes "github.com/troupe-run/troupe/internal/node"
)

// At is where a command looks: at a server, or into a data folder that nobody serves.
type At struct {
	Server string `env:"TROUPE_SERVER" default:"http://127.0.0.1:8283" help:"The server to ask (${default})."`
	Key    string `env:"TROUPE_KEY" help:"The API key to show it; better given in the environment, where nobody sees it."`
}

// Source is At, with the folder as the other possibility.
type Source struct {
	At
	Data    string `type:"existingdir" help:"Read this data folder instead, while no server holds it."`
	Damaged bool   `help:"With --data: read what is left of a folder that troupe doctor finds damaged."`
}

// source shows runs as JSON, wherever they are.
type source interface {
	runs(limit int) ([]byte, error)
	run(id actor.CallID) ([]byte, error)
	events(id actor.CallID, after uint64, wait time.Duration) ([]byte, error)
	close() error
}

func (s Source) open() (source, error) {
	if s.Data == "" {
		if s.Damaged {
			return nil, errors.New("--damaged is of a folder: name it with --data")
		}
		return s.At.client(), nil
	}
	d, err := disk.Open(s.Data, "", disk.Options{ReadOnly: true, Damaged: s.Damaged})
	if err != nil {
		return nil, holder(s.Data, err)
	}
	return folder{d, nodes.View{KV: d}}, nil
}

// folder is a store that nobody serves.
type folder struct {
	disk *disk.Disk
	view nodes.View
}

func (f folder) close() error { return f.disk.Close() }

func (f folder) runs(limit int) ([]byte, error) {
	list, err := f.view.Runs(limit)
	return list.AppendJSON(nil), err
}

func (f folder) run(id actor.CallID) ([]byte, error) {
	r, err := f.view.Run(id)
	return r.AppendJSON(nil), err
}

func (f folder) events(id actor.CallID, after uint64, _ time.Duration) ([]byte, error) {
	page, err := f.view.Events(query.EventsQuery{Run: id, After: after, Limit: gateway.EventsMax, Strict: true})
	return page.AppendJSON(nil), err
}

// client speaks with a server.
type client struct{ server, key string }

func (a At) client() client { return client{strings.TrimSuffix(a.Server, "/"), a.Key} }

// authorize shows the server the key, if there is one.
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

// answerBytesMax is more than any answer of ours has.
const answerBytesMax = 64 << 20

// do asks the server; an answer that is a problem is an error in its words.
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
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, c.unreachable(err)
	}
	defer response.Body.Close()
	if answer, err = io.ReadAll(io.LimitReader(response.Body, answerBytesMax)); err != nil {
		return 0, nil, c.unreachable(err)
	}
	if response.StatusCode >= 400 {
		return response.StatusCode, answer, problemOf(response.StatusCode, answer)
	}
	return response.StatusCode, answer, nil
}

func (c client) unreachable(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("no server answers at %s: start one with `troupe serve`, name another with --server, or read a folder that nobody serves with --data", c.server)
	}
	return fmt.Errorf("server %s: %w", c.server, err)
}

// problem is what a server refuses with.
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

func problemOf(status int, body []byte) error {
	p := &problem{status: status, body: body}
	if json.Unmarshal(body, p) != nil || p.Code == "" {
		return fmt.Errorf("the server answered %d: %.200s", status, body)
	}
	return p
}
