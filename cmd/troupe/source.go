// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/host/prompts"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/nearest"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/internal/service"
)

// ServerFlags selects the server that a command calls.
type ServerFlags struct {
	Server string `env:"TROUPE_SERVER" default:"http://127.0.0.1:8283" help:"Server URL (${default})."`
	Key    string `env:"TROUPE_KEY" help:"API key. Prefer the environment: other users can see arguments."`
	CA     string `env:"TROUPE_CA" name:"ca" type:"path" placeholder:"FILE" help:"With an https URL: file in PEM with a further certificate authority, or with the server's own certificate."`

	ctx context.Context // ends the requests of a command that catches signals; nil: nothing does
}

// Validate implements kong's validation.
func (a ServerFlags) Validate() error { return checkKey(a.Key) }

// checkKey returns an error for a key that is none of Troupe: a server on loopback ignores
// bearers of other services. The error does not quote the key.
func checkKey(key string) error {
	if key != "" && !strings.HasPrefix(key, "troupe_") && !strings.HasPrefix(key, "troupe-run.") {
		return errors.New("--key: want one of `troupe keys create`, which begins with troupe_; check the variable TROUPE_KEY too")
	}
	return nil
}

// UserFlags selects a server, and the user whose runs and sessions a command is about.
type UserFlags struct {
	ServerFlags
	User string `placeholder:"NAME" help:"User whose runs and sessions the command is about; needs the scope operator, unless it is the user of the key or the key is of keys create --act-as-user."`
}

// Validate returns an error for a name that is not that of a user or a namespace.
func (u UserFlags) Validate() error {
	if err := u.ServerFlags.Validate(); err != nil || u.User == "" {
		return err
	}
	if _, err := actor.FindNamespace(u.User); err != nil {
		return fmt.Errorf("--user: %w", err)
	}
	return nil
}

// namespace returns the namespace of the user, or ingress.EveryUser.
func (u UserFlags) namespace() string {
	if u.User == "" || u.User == ingress.EveryUser {
		return u.User
	}
	namespace, _ := actor.FindNamespace(u.User) // Validate has checked it
	return namespace
}

// client returns a client whose requests are about the user.
func (u UserFlags) client() client {
	c := u.ServerFlags.client()
	c.flags, c.namespace = u, u.namespace()
	return c
}

// SourceFlags selects a server, or a store that no server uses: in a data folder or a database.
type SourceFlags struct {
	UserFlags
	Data    string `type:"existingdir" xor:"store" help:"Read this data folder instead; no server may be using it."`
	Store   string `xor:"store" placeholder:"URL" help:"Read the store in this PostgreSQL database instead; no server may be using it."`
	Damaged bool   `help:"With --data: read the intact part of a damaged folder."`

	remedy string // for a folder that a server uses; "": insteadOfData
}

// source returns the runs of a server or a data folder as JSON.
type source interface {
	runs(q url.Values) ([]byte, error) // the parameters of GET /v1/runs
	run(id actor.CallID) ([]byte, error)
	events(id actor.CallID, after uint64, wait time.Duration) ([]byte, error)
	prompts(id actor.CallID, after uint64, limit int) ([]byte, error)
	steps(id actor.CallID, after uint64, limit int, prompts bool) ([]byte, error)
	usage(q url.Values) ([]byte, error) // the parameters of GET /v1/usage
	close() error
}

// fromServer reports whether a server is selected.
func (s SourceFlags) fromServer() bool { return s.Data == "" && s.Store == "" }

func (s SourceFlags) open() (source, error) {
	if s.Data == "" && s.Damaged {
		return nil, errors.New("--damaged requires --data")
	}
	if s.fromServer() {
		c := s.client()
		c.readsData = true
		return c, nil
	}
	view := node.View{Tenant: cmp.Or(s.namespace(), actor.DefaultTenant), Registry: true}
	if s.Store != "" { // whose prompts are in the data folder of its server
		p, err := postgres.Open(s.Store, "", postgres.Options{ReadOnly: true, Idle: true})
		if inUse, ok := errors.AsType[postgres.InUseError](err); ok {
			return nil, fmt.Errorf("--store: the store is in use by %s: ask its server instead, with --server URL in place of --store", inUse.Owner)
		} else if err != nil {
			return nil, fmt.Errorf("--store: %w", err)
		}
		view.Log = p
		return closedStore{p, view, ""}, nil
	}
	d, err := disk.Open(s.Data, "", disk.Options{ReadOnly: true, Damaged: s.Damaged})
	if err != nil {
		return nil, storeError(s.Data, err, cmp.Or(s.remedy, insteadOfData))
	}
	view.Log = d
	return closedStore{d, view, s.Data}, nil
}

// closedStore reads a store that no server uses.
type closedStore struct {
	opened io.Closer
	view   node.View
	dir    string // data folder; "" if the store is in a database
}

func (f closedStore) close() error { return f.opened.Close() }

func (f closedStore) runs(q url.Values) ([]byte, error) {
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil {
		return nil, err
	}
	list, r := ingress.ParseRunList(nil, f.view.Tenant, queryParam(q))
	if r != nil {
		return nil, r
	}
	if list.Tenant == ingress.EveryUser {
		found, err := f.view.EveryRun(command.EveryRunQuery{Filter: list.Filter, From: list.From, Before: list.Before, Limit: limit})
		return list.AppendJSON(nil, &found.Page, found.From), err
	}
	found, err := f.view.Runs(command.RunsQuery{Filter: list.Filter, Before: list.Before, Limit: limit})
	return list.AppendJSON(nil, &found.Page, ""), err
}

func (f closedStore) usage(q url.Values) ([]byte, error) {
	list, r := ingress.ParseUsageList(nil, f.view.Tenant, actor.Time(time.Now().UnixNano()), queryParam(q))
	if r != nil {
		return nil, r
	}
	page, err := f.view.Usage(gateway.UsageQuery(&list, command.UsageRowsMax))
	return gateway.AppendUsage(nil, &list, &page), err
}

func (f closedStore) run(id actor.CallID) ([]byte, error) {
	r, err := f.view.Run(id)
	return r.AppendJSON(nil), err
}

func (f closedStore) events(id actor.CallID, after uint64, _ time.Duration) ([]byte, error) {
	page, err := f.view.Events(command.EventsQuery{Run: id, After: after, Limit: gateway.EventsMax, Strict: true})
	return page.AppendJSON(nil), err
}

func (f closedStore) prompts(id actor.CallID, after uint64, limit int) ([]byte, error) {
	if f.dir == "" {
		return nil, errors.New("--store: the database has no recorded prompts: they are in the data folder of its server; ask the server")
	}
	owner, err := f.view.Owner(id)
	if err != nil {
		return nil, err
	}
	page, err := prompts.Read(filepath.Join(f.dir, node.PromptsFolder), owner.Actor, id, after, limit, time.Time{})
	found := node.Prompts(id, prompts.Off, &page)
	return found.AppendJSON(nil), err
}

func (f closedStore) steps(id actor.CallID, after uint64, limit int, prompts bool) ([]byte, error) {
	page, err := f.view.Steps(command.StepsQuery{Run: id, After: after, Limit: limit, Prompts: prompts})
	if err != nil {
		return nil, err
	}
	return json.Marshal(page)
}

// defaultServer is the server of commands without --server.
const defaultServer = "http://127.0.0.1:8283"

// url returns the address of the server without a final slash.
func (a ServerFlags) url() string { return strings.TrimSuffix(cmp.Or(a.Server, defaultServer), "/") }

// client calls a server over HTTP.
type client struct {
	guessing    bool // a request for the names of agents, whose own errors suggest none
	server, key string
	http        *http.Client // nil: http.DefaultClient
	trust       *tls.Config  // nil: the authorities of the system
	invalid     error        // of --ca, returned by each request
	flags       UserFlags
	readsData   bool   // the command can read a data folder instead
	user        string // user that requests act for; "": that of the key
	namespace   string // value of the parameter user of requests for runs and sessions

	ctx context.Context // of the requests without one of their own; nil: nothing ends them early
}

// context returns the context of a request without one of its own.
func (c client) context() context.Context {
	if c.ctx == nil {
		return context.Background()
	}
	return c.ctx
}

func (a ServerFlags) client() client {
	c := client{server: a.url(), key: a.Key, flags: UserFlags{ServerFlags: a}, ctx: a.ctx}
	if a.CA == "" {
		return c
	}
	if c.trust, c.invalid = readAuthorities(a.CA); c.invalid != nil {
		return c
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = c.trust
	c.http = &http.Client{Transport: transport}
	return c
}

// authoritiesBytesMax is the maximum size of a file of certificates in bytes.
const authoritiesBytesMax = 1 << 20

// readAuthorities returns a configuration that trusts the certificates of a file, in addition
// to the authorities of the system.
func readAuthorities(path string) (*tls.Config, error) {
	text, err := service.ReadFile(path, authoritiesBytesMax)
	if err != nil {
		return nil, fmt.Errorf("--ca: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // a system without authorities
	}
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--ca %s: want certificates in PEM", path)
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}

// send sends a request.
func (c client) send(r *http.Request) (*http.Response, error) {
	return cmp.Or(c.http, http.DefaultClient).Do(r)
}

// newRequest returns a request with the API key, if one is set, and further headers
// as names and values.
func (c client) newRequest(ctx context.Context, method, path string, body []byte, header ...string) (*http.Request, error) {
	if c.invalid != nil {
		return nil, c.invalid
	}
	if u, err := url.Parse(c.server); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--server %s: want an address like %s", c.server, defaultServer)
	}
	if u, _ := url.Parse(c.server); u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("--server: want an address without user, password and query, like %s; the key is that of --key or TROUPE_KEY", defaultServer)
	}
	if c.namespace != "" {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		path += separator + "user=" + c.namespace // names have no characters that need an escape
	}
	r, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("--server %s: %w; want an address like %s", c.server, err, defaultServer)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	if c.user != "" {
		r.Header.Set("X-User-Id", c.user)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r, nil
}

func (c client) runs(q url.Values) ([]byte, error)   { return c.get("/v1/runs?" + encodeQuery(q)) }
func (c client) usage(q url.Values) ([]byte, error)  { return c.get("/v1/usage?" + encodeQuery(q)) }
func (c client) run(id actor.CallID) ([]byte, error) { return c.get("/v1/runs/" + id.String()) }
func (c client) close() error                        { return nil }

func (c client) events(id actor.CallID, after uint64, wait time.Duration) ([]byte, error) {
	return c.get(fmt.Sprintf("/v1/runs/%s/events?after=%d&limit=%d&wait_ms=%d", id, after, gateway.EventsMax, wait.Milliseconds()))
}

func (c client) prompts(id actor.CallID, after uint64, limit int) ([]byte, error) {
	return c.get(fmt.Sprintf("/v1/runs/%s/prompts?after=%d&limit=%d", id, after, limit))
}

func (c client) steps(id actor.CallID, after uint64, limit int, prompts bool) ([]byte, error) {
	flag := 0
	if prompts {
		flag = 1
	}
	return c.get(fmt.Sprintf("/v1/runs/%s/steps?after=%d&limit=%d&prompts=%d", id, after, limit, flag))
}

func (c client) get(path string) ([]byte, error) {
	_, body, err := c.do(c.context(), http.MethodGet, path, nil)
	return body, err
}

// encodeQuery returns the parameters as a query. Times keep their colons and lists their commas, because a
// server accepts no escapes.
func encodeQuery(q url.Values) string {
	return strings.NewReplacer("%3A", ":", "%2C", ",").Replace(q.Encode())
}

// allOf gets all pages of a list, such as /v1/agents, and returns their elements, at least an empty list.
func allOf[T any](c client, path string) ([]T, error) {
	all, q := []T{}, url.Values{"limit": {strconv.Itoa(gateway.NamesMax)}}
	for {
		body, err := c.get(path + "?" + encodeQuery(q))
		if err != nil {
			return nil, err
		}
		var page map[string]jsontext.Value
		var elements []T
		next := ""
		if err = json.Unmarshal(body, &page); err == nil && page["next_cursor"] != nil {
			err = json.Unmarshal(page["next_cursor"], &next)
		}
		if list := page[strings.TrimPrefix(path, "/v1/")]; err == nil && list != nil {
			err = json.Unmarshal(list, &elements)
		}
		all = append(all, elements...)
		switch {
		case err != nil || next == "":
			return all, err
		case next == q.Get("cursor"):
			return nil, fmt.Errorf("server %s: the pages of %s do not end; is it a troupe server?", c.server, path)
		}
		q.Set("cursor", next)
	}
}

func (c client) post(path string, body any) (status int, answer []byte, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	return c.do(c.context(), http.MethodPost, path, b)
}

// responseBytesMax is the maximum response size in bytes. No response of a Troupe
// server is larger.
const responseBytesMax = 64 << 20

// do sends a request. A response with a problem is returned as an error with the
// problem's text.
func (c client) do(ctx context.Context, method, path string, body []byte, header ...string) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, gateway.AnswerTimeout+time.Minute)
	defer cancel()
	r, err := c.newRequest(ctx, method, path, body, header...)
	if err != nil {
		return 0, nil, err
	}
	response, err := c.send(r)
	if err != nil {
		return 0, nil, c.connectionError(err)
	}
	defer response.Body.Close()
	if answer, err = io.ReadAll(io.LimitReader(response.Body, responseBytesMax)); err != nil {
		return 0, nil, c.connectionError(err)
	}
	if response.StatusCode >= 400 {
		return response.StatusCode, answer, c.problem(response.StatusCode, answer)
	}
	return response.StatusCode, answer, nil
}

func (c client) connectionError(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		remedy := "or choose another with --server"
		if c.readsData {
			remedy = "choose another with --server, or read a data folder with --data"
		}
		return fmt.Errorf("no server answers at %s: start one with `troupe serve`, %s", c.server, remedy)
	}
	if strings.Contains(err.Error(), "HTTP response to HTTPS client") {
		return fmt.Errorf("server %s: it has no TLS: use --server http%s", c.server, strings.TrimPrefix(c.server, "https"))
	}
	if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
		return fmt.Errorf("server %s: %w: name the file of its certificate authority with --ca", c.server, err)
	}
	return fmt.Errorf("server %s: %w", c.server, err)
}

// problem is the problem+json body of a failed request.
type problem struct {
	status int
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	By     string `json:"reported_code"`
	Run    string `json:"run_id"`
	Retry  int64  `json:"retry_after"` // seconds; 0: the request need not be repeated
	meant  string // name of the agent that the request probably means
	body   []byte
	flags  UserFlags
}

// Error returns the sentence of the problem and a command to type next. The sentences
// of the server name requests and headers, which are replaced by commands and flags.
func (p *problem) Error() string {
	text := p.Code + ": "
	detail, _, _ := strings.Cut(p.Detail, "; see GET ")
	detail, _, _ = strings.Cut(detail, "; GET ")
	detail += reportedCode(p.By)
	switch {
	case p.status == http.StatusUnauthorized:
		detail, _, _ = strings.Cut(detail, "; see `troupe keys")
		if strings.Contains(detail, "Authorization") {
			detail = "this request needs an API key"
		}
		return text + detail + "; set the variable TROUPE_KEY to a valid key or pass --key (to make one: " + hint("keys create", nil, []string{"--data", "DIR"}) + ")"
	case p.Run != "":
		return text + cmp.Or(detail, notAnswered) + " (see: " + p.flags.hint("runs show", []string{p.Run}) + ")"
	case p.Code == "agent_not_found" && strings.Contains(p.Detail, "GET /v1/agents"):
		if p.meant != "" {
			detail += "; did you mean " + p.meant
		}
		return text + detail + " (see: " + p.flags.ServerFlags.hint("agents list", nil) + ")"
	case p.status == http.StatusNotFound && strings.Contains(p.Detail, "GET /v1/tools"):
		return text + detail + " (see: " + p.flags.ServerFlags.hint("tools list", nil) + ")"
	case p.status == http.StatusNotFound && strings.Contains(p.Detail, "GET /v1/approvals"):
		return text + detail + p.flags.otherApprovals()
	case p.status == http.StatusNotFound && strings.Contains(p.Detail, "GET /v1/sessions"):
		return text + detail + " (see: " + p.flags.hint("sessions list", nil) + ")"
	case p.status == http.StatusNotFound && strings.Contains(p.Detail, "GET /v1/runs"):
		return text + detail + " (see: " + p.flags.hint("runs list", nil) + ")" + p.flags.otherRuns()
	}
	return text + p.Detail + reportedCode(p.By)
}

// otherRuns returns how an operator finds a run of another user, whose commands need the flag too; "" with that flag.
func (u UserFlags) otherRuns() string {
	if u.User != "" {
		return ""
	}
	u.User = ingress.EveryUser
	return "; the run of another user needs --user NAME and the scope operator (see: " + u.hint("runs list", nil) + ")"
}

// problem returns the body of a failed response as an error.
func (c client) problem(status int, body []byte) error {
	p := &problem{status: status, body: body, flags: c.flags}
	if json.Unmarshal(body, p) != nil || p.Code == "" {
		return fmt.Errorf("%s answered %d: %.200s; is it a troupe server? Choose another with --server", c.server, status, body)
	}
	if _, name, ok := strings.Cut(p.Detail, "no agent is named "); ok && p.Code == "agent_not_found" && !c.guessing {
		name, _, _ = strings.Cut(name, ";")
		p.meant = c.nearestAgent(strings.TrimSpace(name))
	}
	return p
}

// nearestAgent returns the agent of the server whose name is nearest to a name, or "".
func (c client) nearestAgent(name string) string {
	c.guessing = true
	all, err := allOf[agentView](c, "/v1/agents")
	if err != nil {
		return "" // the error itself matters more
	}
	var names []string
	for _, a := range all {
		names = append(names, a.ID)
	}
	return nearest.Of(name, names)
}

// storeError adds the next step to the error of a data folder that cannot be used.
func storeError(dir string, err error, remedy string) error {
	switch damage := new(disk.DamageError); {
	case errors.As(err, &damage):
		return fmt.Errorf("%w; to see what is lost: %s", err, hint("doctor", []string{dir}, nil))
	case errors.Is(err, disk.ErrNoStore) && node.Place(dir) != "":
		return fmt.Errorf("the store of folder %s is in %s: ask its server with --server URL, or read it with `troupe runs list --store URL` while no server uses it; docs/sql.md has queries", dir, node.Place(dir))
	case errors.Is(err, disk.ErrNoStore):
		return fmt.Errorf("%w; want the folder that `troupe serve --data` uses", err)
	}
	return inUseError(dir, err, remedy)
}
