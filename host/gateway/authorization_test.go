// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fasthttp/router"
	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// The tables of this file are written by hand from docs/api.md. They MUST NOT
// use the table or the constants of the product: an oracle made of them would
// accept every mistake in them.

// rights maps each right to the scope that grants it, as the section
// Authentication of docs/api.md states. The scope admin grants all of them.
var rights = map[string]string{
	"send messages":   callOrRun,
	"send signals":    "call",
	"cancel":          "call",
	"see agents":      "read",
	"see runs":        "read",
	"see events":      "read",
	"see metrics":     "read",
	"create agents":   "agents",
	"register agents": "agents",
	"delete agents":   "agents",
	"send heartbeats": "agents",
	"manage keys":     "admin",
	"make backups":    "admin",

	"see health":    anyone,
	"act for a run": runToken,
}

const (
	anyone    = "anyone"            // no credential needed
	runToken  = "run token"         // the token of a run, which no key replaces
	callOrRun = "call or run token" // a presented token is used, and must be that of a run; without one the scope call is needed
)

// promisedRights are lines of docs/api.md from which rights is written. If one
// changes, rights and routeRights need the same change.
var promisedRights = []string{
	"| `call` | messages, signals, cancellation |",
	"| `read` | agents, runs, events, metrics |",
	"| `agents` | creation, registration and deletion of agents; heartbeats |",
	"| `admin` | everything, including keys and backups |",
	"Such a request has all scopes but `admin`; a bearer that does not begin with `troupe_` is ignored there.",
	"A message with `x-run-token`, or with a bearer that begins with `troupe-run.`, needs no key but a valid token, as `:invoke` does.",
	"The Unix socket `SOCKET` in that folder admits its owner only, without a key and with all scopes.",
}

// routeRight is a route, the right that it needs, and a request that succeeds
// and has an effect.
type routeRight struct {
	route, right string
	path, body   string // {run}, {doomed} and {key} are replaced by a run that waits, an agent and a key
	status       int
}

var routeRights = []routeRight{
	{"GET /v1/agents", "see agents", "/v1/agents", "", 200},
	{"GET /v1/agents/{id}", "see agents", "/v1/agents/helper", "", 200},
	{"POST /v1/agents", "create agents", "/v1/agents", `{"name":"made"}`, 201},
	{"POST /v1/agents/register", "register agents", "/v1/agents/register", `{"agent_id":"registered","endpoint":"http://127.0.0.1:1"}`, 201},
	{"POST /v1/agents/{id}:heartbeat", "send heartbeats", "/v1/agents/outside:heartbeat", "", 200},
	{"DELETE /v1/agents/{id}", "delete agents", "/v1/agents/{doomed}", "", 200},
	{"POST /v1/agents/{id}/messages", "send messages", "/v1/agents/helper/messages", `{"content":"x"}`, 200},
	{"POST /v1/agents/{id}:invoke", "act for a run", "/v1/agents/helper:invoke", `{"message":"x"}`, 200},
	{"GET /v1/runs", "see runs", "/v1/runs", "", 200},
	{"GET /v1/runs/{id}", "see runs", "/v1/runs/{run}", "", 200},
	{"GET /v1/runs/{id}/events", "see events", "/v1/runs/{run}/events", "", 200},
	{"POST /v1/runs/{id}:signal", "send signals", "/v1/runs/{run}:signal", `{"name":"go"}`, 200},
	{"POST /v1/runs/{id}:cancel", "cancel", "/v1/runs/{run}:cancel", "", 200},
	{"GET /v1/keys", "manage keys", "/v1/keys", "", 200},
	{"POST /v1/keys", "manage keys", "/v1/keys", `{"scopes":["admin"]}`, 201},
	{"DELETE /v1/keys/{id}", "manage keys", "/v1/keys/{key}", "", 200},
	{"POST /v1/backups", "make backups", "/v1/backups", `{"name":"backup"}`, 201},
	{"GET /metrics", "see metrics", "/metrics", "", 200},
	{"GET /healthz", "see health", "/healthz", "", 200},
	{"GET /readyz", "see health", "/readyz", "", 200},
}

// credential is what a request presents to be authorized.
type credential struct {
	name    string
	headers []string
	query   string
	scopes  []string // scopes of its valid key
	run     bool     // it has the token of an open run
	noRun   bool     // it has a run token that is not one
	local   bool     // it counts as a user of this machine
	owner   bool     // it counts as the owner of the data folder
}

// mayUse returns the status of a refusal, or 0 if the credential has the right.
func (c credential) mayUse(right string) int {
	scope := rights[right]
	switch {
	case scope != callOrRun:
	case c.run:
		return 0
	case c.noRun:
		return 401
	default:
		scope = "call"
	}
	switch {
	case scope == anyone, scope == runToken && c.run, scope != runToken && scope != "admin" && c.local, scope != runToken && c.owner:
		return 0
	case scope == runToken || len(c.scopes) == 0:
		return 401
	case slices.Contains(c.scopes, scope) || slices.Contains(c.scopes, "admin"):
		return 0
	}
	return 403
}

// authorization is a node with its keys, tokens and a gateway that prepares
// requests for the gateways under test.
type authorization struct {
	*testGateway
	keys     []ingress.Key
	texts    map[string]string // by scopes, separated by commas
	expired  string
	revoked  string
	token    string // of an open run
	run      string // a run that waits
	sessions int    // sessions of such runs so far
	doomed   int    // agents to delete so far
	backups  atomic.Int32
}

func newAuthorization(t *testing.T) *authorization {
	m := &authorization{texts: map[string]string{}}
	seed := byte(0)
	add := func(expires actor.Time, scopes ...string) string {
		var list []ingress.Scope
		for _, scope := range scopes {
			list = append(list, ingress.Scope(scope))
		}
		seed++
		key, text := newTestKey(t, seed, expires, list...)
		m.keys = append(m.keys, key)
		return text
	}
	for _, scopes := range []string{"call", "read", "agents", "admin", "call,read", "call,agents", "read,agents", "call,read,agents", "call,read,agents,admin"} {
		m.texts[scopes] = add(0, strings.Split(scopes, ",")...)
	}
	m.expired = add(1, "call", "read", "agents", "admin")
	m.revoked = add(0, "admin")
	m.keys = m.keys[:len(m.keys)-1]
	m.testGateway = startGatewayWith(t, Config{Keys: new(Keys), Backup: func(name string) (string, error) { m.backups.Add(1); return name, nil }})
	m.server.config.Keys.Set(m.keys)
	tokens, ended := make(chan string, 1), make(chan struct{})
	agent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/invoke" {
			tokens <- r.Header.Get("x-run-token")
			<-ended
		}
	}))
	t.Cleanup(agent.Close)
	t.Cleanup(func() { close(ended) })
	m.prepare("POST", "/v1/agents/register", `{"agent_id":"outside","endpoint":"`+agent.URL+`"}`)
	m.openStream("POST", "/v1/agents/outside/messages", `{"content":"x","timeout_ms":300000}`)
	m.token = <-tokens
	return m
}

// prepare sends a request that must succeed, as an administrator.
func (m *authorization) prepare(method, path, body string) string {
	m.Helper()
	status, _, answer := m.do(method, path, body, "Authorization", "Bearer "+m.texts["admin"])
	if status >= 300 {
		m.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	m.server.config.Keys.Set(m.keys) // a change of keys makes the registry announce its own, which replace these
	return answer
}

func (m *authorization) decode(answer string, v any) {
	m.Helper()
	if err := json.Unmarshal([]byte(answer), v); err != nil {
		m.Fatal(answer, err)
	}
}

// serveAgain starts another gateway for the node.
func (m *authorization) serveAgain(wrap func(net.Listener) net.Listener) *testGateway {
	m.Helper()
	s := New(m.server.node, slog.New(slog.DiscardHandler), m.server.config)
	s.wrongKeys.now = patientClock()
	return m.serve(s, wrap)
}

// request returns method, path and body of a request that succeeds, and creates
// what the request changes. An agent belongs to its creator, here the credential.
func (m *authorization) request(d *testGateway, r routeRight, c credential) (method, path, body string) {
	var key struct {
		ID string `json:"key_id"`
	}
	switch path = r.path; {
	case strings.Contains(path, "{run}"):
		var response messageResponse
		m.decode(m.prepare("POST", "/v1/agents/coordinator/messages", fmt.Sprintf(`{"content":"xyzzy","session":"s-%d"}`, m.sessions)), &response)
		m.sessions, m.run = m.sessions+1, response.Run
	case strings.Contains(path, "{doomed}"):
		m.doomed++
		agent := fmt.Sprintf(`{"name":"doomed-%d"}`, m.doomed)
		status := 0
		if c.name != "" {
			status, _, _ = d.do("POST", "/v1/agents"+c.query, agent, c.headers...)
			m.server.config.Keys.Set(m.keys)
		}
		if status != 201 { // the row of POST /v1/agents reports it
			m.prepare("POST", "/v1/agents", agent)
		}
	case strings.Contains(path, "{key}"):
		m.decode(m.prepare("POST", "/v1/keys", `{"scopes":["read"]}`), &key)
	}
	method, _, _ = strings.Cut(r.route, " ")
	return method, strings.NewReplacer("{run}", m.run, "{doomed}", fmt.Sprint("doomed-", m.doomed), "{key}", key.ID).Replace(path), r.body
}

// state returns all that the requests of routeRights can change.
func (m *authorization) state() string {
	var agents struct {
		Agents []agentResponse `json:"agents"`
	}
	var list struct {
		Runs []struct {
			ID     string `json:"run_id"`
			Status string `json:"status"`
		} `json:"runs"`
	}
	keys := m.server.config.Keys.Count()
	m.server.config.Keys.Set(m.keys)
	m.decode(m.prepare("GET", "/v1/agents", ""), &agents)
	m.decode(m.prepare("GET", "/v1/runs?limit=200", ""), &list)
	text := fmt.Sprintf("%d keys, %d backups, runs %v, agents", keys, m.backups.Load(), list.Runs)
	for _, a := range agents.Agents {
		text += " " + a.ID
	}
	return text
}

// check sends the request of a route with each credential and returns what
// contradicts the credential's rights. At first it sends all requests that must
// be refused, which must change nothing.
func (m *authorization) check(d *testGateway, r routeRight, credentials []credential) (faults []string) {
	fault := func(c credential, format string, args ...any) {
		faults = append(faults, r.route+" with "+c.name+": "+fmt.Sprintf(format, args...))
	}
	method, path, body := m.request(d, r, credential{})
	before := m.state()
	for _, c := range credentials {
		want := c.mayUse(r.right)
		if want == 0 {
			continue
		}
		code := map[int]string{401: `"code":"unauthorized"`, 403: `"code":"forbidden_scope"`}[want]
		status, headers, answer := d.do(method, path+c.query, body, c.headers...)
		if status != want || !strings.Contains(answer, code) || want == 403 && !strings.Contains(answer, strings.TrimSuffix(rights[r.right], " or run token")) {
			fault(c, "%d %s, want %d", status, answer, want)
		}
		if (want == 401) != (headers.Get("Www-Authenticate") == "Bearer") {
			fault(c, "%d with WWW-Authenticate: %s", status, headers.Get("Www-Authenticate"))
		}
	}
	if after := m.state(); after != before {
		faults = append(faults, fmt.Sprintf("%s: refused requests changed %s to %s", r.route, before, after))
	}
	for _, c := range credentials {
		if c.mayUse(r.right) != 0 {
			continue
		}
		method, path, body := m.request(d, r, c)
		status, _, answer := d.do(method, path+c.query, body, c.headers...)
		m.server.config.Keys.Set(m.keys)
		if status != r.status && !(r.status == 201 && status == 200) { // 200: it existed
			fault(c, "%d %s, want %d", status, answer, r.status)
		}
	}
	return faults
}

// credentials returns credentials for a gateway on which each request needs a
// key. Headers that no key accompanies grant nothing.
func (m *authorization) credentials() []credential {
	bearer := func(text string) []string { return []string{"Authorization", "Bearer " + text} }
	admin, other := m.texts["admin"], m.texts["call,read,agents,admin"]
	id := strings.LastIndex(admin, "_")
	mint := func(secret byte) string {
		return ingress.MintToken(bytes.Repeat([]byte{secret}, ingress.SecretBytes), actor.NewCallID(1, 2, 3), actor.NewID("outside", "main"))
	}
	list := []credential{
		{name: "nothing"},
		{name: "expired key", headers: bearer(m.expired)},
		{name: "revoked key", headers: bearer(m.revoked)},
		{name: "truncated key", headers: bearer(admin[:len(admin)-1])},
		{name: "longer key", headers: bearer(admin + "0")},
		{name: "key without its last half", headers: bearer(admin[:len(admin)/2])},
		{name: "prefix of a key", headers: bearer("troupe_")},
		{name: "id without secret", headers: bearer(admin[:id+1])},
		{name: "secret of another key", headers: bearer(admin[:id] + other[strings.LastIndex(other, "_"):])},
		{name: "id of another key", headers: bearer(other[:strings.LastIndex(other, "_")] + admin[id:])},
		{name: "upper case key", headers: bearer(strings.ToUpper(admin))},
		{name: "key without scheme", headers: []string{"Authorization", admin}},
		{name: "scheme Basic", headers: []string{"Authorization", "Basic " + admin}},
		{name: "scheme Token", headers: []string{"Authorization", "Token " + admin}},
		{name: "scheme Bearer without space", headers: []string{"Authorization", "Bearer" + admin}},
		{name: "bearer of another service", headers: bearer("sk-0123456789abcdef0123456789abcdef")},
		{name: "bearer undefined", headers: bearer("undefined")},
		{name: "header X-Api-Key", headers: []string{"X-Api-Key", admin}},
		{name: "header Proxy-Authorization", headers: []string{"Proxy-Authorization", "Bearer " + admin}},
		{name: "cookie", headers: []string{"Cookie", "key=" + admin + "; authorization=Bearer " + admin}},
		{name: "query parameter", query: "?key=" + admin + "&access_token=" + admin},
		{name: "forged principal", headers: []string{"X-Scopes", "admin", "X-Scope", "admin", "X-Admin", "true", "X-User", "local", "X-Principal", "local", "X-Remote-User", "root"}},
		{name: "forged origin", headers: []string{"X-Forwarded-For", "127.0.0.1", "Forwarded", "for=127.0.0.1", "X-Real-Ip", "127.0.0.1", "X-Forwarded-Host", "localhost", "True-Client-Ip", "127.0.0.1"}},
		{name: "forged method", headers: []string{"X-Http-Method-Override", "GET", "X-Original-Url", "/healthz", "X-Rewrite-Url", "/healthz"}},
		{name: "run token of another server", headers: []string{"x-run-token", mint('x')}, noRun: true},
		{name: "bearer run token of another server", headers: bearer(mint('x')), noRun: true},
		{name: "truncated run token", headers: []string{"x-run-token", m.token[:len(m.token)-2]}, noRun: true},
		{name: "truncated run token and scope call", headers: append(bearer(m.texts["call"]), "x-run-token", m.token[:len(m.token)-2]), noRun: true, scopes: []string{"call"}},
		{name: "run token and scope call", headers: append(bearer(m.texts["call"]), "x-run-token", m.token), run: true, scopes: []string{"call"}},
		{name: "run token without its prefix", headers: []string{"x-run-token", m.token[1:]}, noRun: true},
		{name: "run token in a cookie", headers: []string{"Cookie", "x-run-token=" + m.token}},
		{name: "run token in the query", query: "?x-run-token=" + m.token},
		{name: "key as run token", headers: []string{"x-run-token", admin}, noRun: true},
		{name: "run token", headers: []string{"x-run-token", m.token}, run: true},
		{name: "bearer run token", headers: bearer(m.token), run: true},
		{name: "run token and scope read", headers: append(bearer(m.texts["read"]), "x-run-token", m.token), run: true, scopes: []string{"read"}},
		{name: "run token and expired key", headers: append(bearer(m.expired), "x-run-token", m.token), run: true},
		{name: "lower case scheme", headers: []string{"Authorization", "bearer " + m.texts["read"]}, scopes: []string{"read"}},
		{name: "scope call, forged admin", headers: append(bearer(m.texts["call"]), "X-Scopes", "admin"), scopes: []string{"call"}},
		{name: "scope agents behind a proxy", headers: append(bearer(m.texts["agents"]), "X-Forwarded-For", "192.0.2.1"), scopes: []string{"agents"}},
	}
	for _, scopes := range slices.Sorted(maps.Keys(m.texts)) {
		list = append(list, credential{name: "scopes " + scopes, headers: bearer(m.texts[scopes]), scopes: strings.Split(scopes, ",")})
	}
	return list
}

// localCredentials returns credentials for a gateway on loopback, where a user
// of this machine needs no key.
func (m *authorization) localCredentials() []credential {
	bearer := func(text string) []string { return []string{"Authorization", "Bearer " + text} }
	list := []credential{
		{name: "nothing", local: true},
		{name: "forged principal", headers: []string{"X-User", "stranger", "X-Scopes", ""}, local: true},
		{name: "run token", headers: []string{"x-run-token", m.token}, run: true, local: true},
		{name: "truncated run token", headers: []string{"x-run-token", m.token[:len(m.token)-2]}, noRun: true, local: true},
		{name: "truncated bearer run token", headers: bearer(m.token[:len(m.token)-2]), noRun: true, local: true},
		{name: "expired key", headers: bearer(m.expired)},
		{name: "revoked key", headers: bearer(m.revoked)},
		{name: "scope call", headers: bearer(m.texts["call"]), scopes: []string{"call"}},
		{name: "scope read", headers: bearer(m.texts["read"]), scopes: []string{"read"}},
		{name: "scope agents", headers: bearer(m.texts["agents"]), scopes: []string{"agents"}},
		{name: "scope admin", headers: bearer(m.texts["admin"]), scopes: []string{"admin"}},
	}
	for _, text := range []string{"sk-0123456789abcdef", "undefined"} {
		list = append(list, credential{name: "bearer " + text[:5], headers: bearer(text), local: true})
	}
	for _, header := range []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Server", "X-Forwarded-Port", "X-Real-IP",
		"X-Client-IP", "True-Client-IP", "CF-Connecting-IP"} {
		list = append(list,
			credential{name: "proxy with " + header, headers: []string{header, "192.0.2.1"}},
			credential{name: "proxy with an empty " + header, headers: []string{header, ""}},
			credential{name: "proxy with " + header + " and scope read", headers: append(bearer(m.texts["read"]), header, "127.0.0.1"), scopes: []string{"read"}})
	}
	return list
}

// ownerCredentials returns credentials for the socket in the data folder.
func (m *authorization) ownerCredentials() []credential {
	return []credential{
		{name: "nothing", owner: true},
		{name: "run token", headers: []string{"x-run-token", m.token}, run: true, owner: true},
		{name: "truncated run token", headers: []string{"x-run-token", m.token[:len(m.token)-2]}, noRun: true, owner: true},
		{name: "forged origin", headers: []string{"X-Forwarded-For", "192.0.2.1"}, owner: true},
		{name: "revoked key", headers: []string{"Authorization", "Bearer " + m.revoked}},
		{name: "scope read", headers: []string{"Authorization", "Bearer " + m.texts["read"]}, scopes: []string{"read"}},
	}
}

func offLoopback(l net.Listener) net.Listener { return offLoopbackListener{l} }

// For each route and each credential: the request succeeds if the credential
// has the right that docs/api.md demands, and is otherwise refused without
// effect.
func TestAuthorizationMatrix(t *testing.T) {
	m := newAuthorization(t)
	remote := m.serveAgain(offLoopback)
	local := m.serveAgain(func(l net.Listener) net.Listener { return l })
	cells := 0
	for _, r := range routeRights {
		for _, fault := range m.check(remote, r, m.credentials()) {
			t.Error(fault)
		}
		for _, fault := range m.check(local, r, m.localCredentials()) {
			t.Error("on loopback: " + fault)
		}
		for _, fault := range m.check(m.owner(), r, m.ownerCredentials()) {
			t.Error("on the owner's socket: " + fault)
		}
		cells += len(m.credentials()) + len(m.localCredentials()) + len(m.ownerCredentials())
	}
	if t.Logf("%d cells", cells); cells < 400 {
		t.Errorf("%d cells", cells)
	}
}

// A gateway whose routes require something else fails the matrix at each of
// them.
func TestAuthorizationMatrixFindsWrongScopes(t *testing.T) {
	m := newAuthorization(t)
	credentials := m.credentials()
	product := maps.Clone(routeScopes)
	defer func() { routeScopes = product }()
	for wrong, means := range map[ingress.Scope]string{scopePublic: anyone, scopeRunToken: runToken, scopeCallOrRun: callOrRun, "call": "call", "read": "read", "agents": "agents", "admin": "admin"} {
		routeScopes = map[string]ingress.Scope{}
		for route := range product {
			routeScopes[route] = wrong
		}
		d := m.serveAgain(offLoopback)
		for _, r := range routeRights {
			if rights[r.right] != means && len(m.check(d, r, credentials)) == 0 {
				t.Errorf("%s with the requirement %s passes", r.route, wrong)
			}
		}
	}
}

// The table of this test, docs/api.md and the router have the same routes. No
// other method and no other spelling of a path reaches one.
func TestAuthorizationMatrixHasAllRoutes(t *testing.T) {
	m := newAuthorization(t)
	d := m.serveAgain(offLoopback)
	bearer := []string{"Authorization", "Bearer " + m.texts["call,read,agents,admin"]}
	var want, served, documented []string
	for _, r := range routeRights {
		want = append(want, r.route)
	}
	methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"}
	for method, paths := range d.server.router.List() {
		for _, path := range paths {
			if _, _, answer := d.do(method, strings.Replace(path, "{id}", "x:unknown", 1), "", bearer...); strings.Contains(answer, "unknown action") {
				_, verbs, _ := strings.Cut(answer, "to the id: ")
				verbs, _, _ = strings.Cut(verbs, `"`)
				for _, verb := range strings.Split(verbs, ", ") {
					served = append(served, method+" "+path+verb)
				}
				continue
			}
			served = append(served, method+" "+path)
		}
	}
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, quoted := range strings.Split(string(page), "`") {
		method, path, _ := strings.Cut(quoted, " ")
		if slices.Contains(methods, method) && strings.HasPrefix(path, "/") && !strings.ContainsAny(path, "\n ") {
			path, _, _ = strings.Cut(path, "?")
			documented = append(documented, method+" "+path)
		}
	}
	for _, list := range []*[]string{&want, &served, &documented} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	if !slices.Equal(served, want) {
		t.Errorf("the router serves %q, want %q", served, want)
	}
	if !slices.Equal(documented, want) {
		t.Errorf("docs/api.md has %q, want %q", documented, want)
	}
	for _, line := range promisedRights {
		if !strings.Contains(string(page), line+"\n") {
			t.Errorf("docs/api.md lacks the line %s, from which rights is written", line)
		}
	}
	reaches := func(method, path string) bool {
		return slices.ContainsFunc(want, func(route string) bool {
			pattern := regexp.QuoteMeta(route)
			match, _ := regexp.MatchString("^"+strings.ReplaceAll(pattern, regexp.QuoteMeta("{id}"), "[^/]+")+"$", method+" "+path)
			return match
		})
	}
	for _, r := range routeRights {
		method, path, _ := strings.Cut(r.route, " ")
		path = strings.Replace(path, "{id}", "helper", 1)
		for _, other := range methods {
			if status, _, answer := d.do(other, path, "", bearer...); !reaches(other, path) && status != 405 && (status != 404 || other != "HEAD" && !strings.Contains(answer, `"code":"not_found"`)) {
				t.Errorf("%s %s: %d %s, want 405 or 404", other, path, status, answer)
			}
		}
		user := credential{headers: []string{"Authorization", "Bearer " + m.texts["call,read"]}, scopes: []string{"call", "read"}}
		for _, spelling := range []string{path + "/", "/" + path, "/." + path, "/v1/.." + path, strings.ToUpper(path), path + "%20", path + "%00", path + ";a=b", "/%2e" + path} {
			if status, _, answer := d.do(method, spelling, "", user.headers...); status < 400 && user.mayUse(r.right) != 0 {
				t.Errorf("%s %s: %d %s", method, spelling, status, answer)
			}
		}
	}
}

func TestRouteWithoutScopePanics(t *testing.T) {
	defer func() {
		if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "no entry") {
			t.Errorf("got %v, want a panic", p)
		}
	}()
	s := New(nil, slog.New(slog.DiscardHandler), Config{})
	s.addRoute(router.New(), "GET", "/v1/secrets", s.getMetrics)
}
