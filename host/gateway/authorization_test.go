// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"iter"
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

	"github.com/go-json-experiment/json"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

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
	scope, forRuns := strings.CutSuffix(rights[right], " or run token")
	if scope == callNoRun {
		scope = "call"
	}
	switch {
	case scope == anyone:
		return 0
	case c.noRun:
		return 401
	case c.run && !forRuns && scope != runToken: // also together with a key
		return 403
	case c.run:
		return 0
	}
	switch {
	case scope != runToken && scope != "admin" && c.local, scope != runToken && c.owner:
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
	users    map[string]credential
	expired  string
	revoked  string
	token    string // of an open run
	run      string // a run that waits
	sessions int    // sessions of such runs so far
	session  string // session of the run of the token
	doomed   int    // agents and tools to delete so far
	approval string // a tool call that waits
	backups  atomic.Int32
}

func newAuthorization(t *testing.T, more ...actor.Definition) *authorization {
	m := &authorization{texts: map[string]string{}, users: map[string]credential{}, session: "of-token"}
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
	for _, scopes := range []string{"call", "read", "agents", "admin", "call,read", "call,agents", "read,agents", "call,read,agents", "call,read,agents,admin", "operator", "call,read,operator"} {
		m.texts[scopes] = add(0, strings.Split(scopes, ",")...)
	}
	m.expired = add(1, "call", "read", "agents", "admin")
	m.revoked = add(0, "admin")
	m.keys = m.keys[:len(m.keys)-1]
	for i, user := range []string{"alice", "bob"} {
		random := [ingress.KeyRandomBytes]byte(bytes.Repeat([]byte{byte(201 + i)}, ingress.KeyRandomBytes))
		key, text, r := ingress.NewKey(random, "", user, []ingress.Scope{"admin"}, 0, 0)
		if r != nil {
			t.Fatal(r)
		}
		m.keys = append(m.keys, key)
		m.users[user] = credential{name: user, headers: []string{"Authorization", "Bearer " + text}, scopes: []string{"admin"}}
	}
	held := new(Keys)
	held.Set(m.keys)
	m.testGateway = startGatewayWith(t, Config{Keys: held, Backup: func(name string) (string, error) { m.backups.Add(1); return name, nil }}, append(more, newBuyer())...)
	tokens, ended := make(chan string, 1), make(chan struct{})
	agent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/invoke" {
			select {
			case tokens <- r.Header.Get("x-run-token"):
			case <-ended:
			}
			<-ended
		}
	}))
	t.Cleanup(agent.Close)
	t.Cleanup(func() { close(ended) })
	m.prepare("POST", "/v1/agents/register", `{"agent_id":"outside","endpoint":"`+agent.URL+`","limits":{"invoke_timeout_ms":1800000}}`)
	m.prepare("POST", "/v1/agents", `{"name":"writer","provides":[{"code":"DOC_GENERATE","description":"Writes a document."}]}`)
	m.openStream("POST", "/v1/agents/outside/messages", `{"content":"x","timeout_ms":1800000,"session_id":"`+m.session+`"}`)
	m.token = <-tokens
	for _, policy := range []string{"require_approval", "block"} {
		name := map[string]string{"require_approval": "asked", "block": "blocked"}[policy]
		m.prepare("POST", "/v1/tools", `{"tool_name":"`+name+`","url":"http://127.0.0.1:1/","on_failure":"return_error","policy":"`+policy+`"}`)
	}
	return m
}

// prepare sends a request that must succeed, as an administrator.
func (m *authorization) prepare(method, path, body string) string {
	m.Helper()
	return m.prepareAs("", method, path, body)
}

// prepareAs is prepare for a user.
func (m *authorization) prepareAs(user, method, path, body string) string {
	m.Helper()
	headers := []string{"Authorization", "Bearer " + m.texts["admin"]}
	if user != "" {
		headers = []string{userHeader, user} // on loopback a client without key may name any user
	}
	status, _, answer := m.do(method, path, body, headers...)
	if status >= 300 {
		m.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
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
	return m.serveRoutes(func(*route) {}, wrap)
}

// serveRoutes starts another gateway for the node, with changed routes.
func (m *authorization) serveRoutes(change func(*route), wrap func(net.Listener) net.Listener) *testGateway {
	m.Helper()
	s := New(m.server.node, slog.New(slog.DiscardHandler), m.server.config)
	s.wrongKeys.now = patientClock()
	changed := s.routes()
	for i := range changed {
		change(&changed[i])
	}
	s.setRoutes(changed)
	return m.serve(s, wrap)
}

// request returns method, path and body of a request that succeeds, and creates
// what the request changes. An agent belongs to its creator, here the credential, and runs
// and sessions to the user, "" for that of keys without user.
func (m *authorization) request(d *testGateway, r routeRight, c credential, user string) (method, path, body string) {
	var key struct {
		ID string `json:"key_id"`
	}
	session := m.session
	switch path = r.path; {
	case strings.Contains(path, "{context}"):
		var made contextResponse
		m.decode(m.prepareAs(user, "POST", "/v1/context", `{"data":1,"session_id":"`+session+`"}`), &made)
		path = strings.Replace(path, "{context}", made.Key, 1)
	case strings.Contains(path+r.body, "{session}") && c.run && (rights[r.right] == readOrRun || r.right == "store contexts" || r.right == "send messages"): // a token gives access to the session of its run
	case strings.Contains(path+r.body, "{run}"), strings.Contains(path+r.body, "{session}"):
		m.sessions++
		session = fmt.Sprint("s-", m.sessions)
		var response messageResponse
		m.decode(m.prepareAs(user, "POST", "/v1/agents/coordinator/messages", `{"content":"xyzzy","session":"`+session+`"}`), &response)
		m.run = response.Run
	case strings.Contains(path, "{call}") && c.run: // a token gives access to the calls of its run
		var call toolCallResponse
		if status := m.doJSON(&call, "POST", "/v1/tools/blocked:invoke", `{"args":{}}`, "x-run-token", m.token); status != 200 {
			m.Fatalf("%d %+v", status, call)
		}
		m.approval = "ap_" + strings.TrimPrefix(call.ID, "tc_")
	case strings.Contains(path, "{approval}"), strings.Contains(path, "{call}"):
		var held heldResponse
		m.decode(m.prepareAs(user, "POST", "/v1/agents/buyer/messages", `{"content":"asked {}"}`), &held)
		m.run, m.approval = held.Run, held.Approvals[0].ID
	case strings.Contains(path, "{tool}"):
		m.doomed++
		tool := fmt.Sprintf(`{"tool_name":"doomed-%d","url":"http://127.0.0.1:1/"}`, m.doomed)
		status := 0
		if c.name != "" {
			status, _, _ = d.do("POST", "/v1/tools"+c.query, tool, c.headers...)
		}
		if status != 201 { // the row of POST /v1/tools reports it
			m.prepare("POST", "/v1/tools", tool)
		}
	case strings.Contains(path, "{doomed}"), strings.Contains(path, "{capability}"):
		m.doomed++
		agent := fmt.Sprintf(`{"name":"doomed-%d","provides":[{"code":"DOOMED_%d","description":"d"}]}`, m.doomed, m.doomed)
		status := 0
		if c.name != "" {
			status, _, _ = d.do("POST", "/v1/agents"+c.query, agent, c.headers...)
		}
		if status != 201 { // the row of POST /v1/agents reports it
			m.prepare("POST", "/v1/agents", agent)
		}
	case strings.Contains(path, "{beats}"): // an agent of the credential, if it may register one
		agent := fmt.Sprintf("beats-%08x", crc32.ChecksumIEEE([]byte(c.name+c.query)))
		spec, status := `{"agent_id":"`+agent+`","endpoint":"http://127.0.0.1:1"}`, 0
		if c.name != "" {
			status, _, _ = d.do("POST", "/v1/agents/register"+c.query, spec, c.headers...)
		}
		if status/100 != 2 {
			m.prepare("POST", "/v1/agents/register", spec)
		}
		path = strings.Replace(path, "{beats}", agent, 1)
	case strings.HasPrefix(path, "/v1/memory"): // what the request reads or forgets
		m.prepareAs(user, "POST", "/v1/memory", `{"entity":"kept","content":"x"}`)
	case strings.Contains(path, "{key}"):
		m.decode(m.prepare("POST", "/v1/keys", `{"scopes":["read"]}`), &key)
	}
	method, _, _ = strings.Cut(r.route, " ")
	fill := strings.NewReplacer("{run}", m.run, "{session}", session, "{doomed}", fmt.Sprint("doomed-", m.doomed), "{capability}", fmt.Sprint("DOOMED_", m.doomed), "{key}", key.ID,
		"{tool}", fmt.Sprint("doomed-", m.doomed), "{approval}", m.approval, "{call}", "tc_"+strings.TrimPrefix(m.approval, "ap_"))
	return method, fill.Replace(path), fill.Replace(r.body)
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
	m.decode(m.prepare("GET", "/v1/agents", ""), &agents)
	m.decode(m.prepare("GET", "/v1/runs?limit=200", ""), &list)
	text := fmt.Sprintf("%d keys, %d backups, runs %v, sessions %s, tools %s, approvals %s, agents", keys, m.backups.Load(), list.Runs, m.prepare("GET", "/v1/sessions?limit=20", ""), // the newest: that of the request is among them
		m.prepare("GET", "/v1/tools?limit=1000", ""), m.prepare("GET", "/v1/approvals", ""))
	for _, a := range agents.Agents {
		text += " " + a.ID
	}
	return text
}

// withQuery adds a query to a path that may have one.
func withQuery(path, query string) string {
	if strings.Contains(path, "?") {
		query = strings.Replace(query, "?", "&", 1)
	}
	return path + query
}

// check sends the request of a route with each credential and yields what
// contradicts the credential's rights. At first it sends all requests that must
// be refused, which must change nothing.
func (m *authorization) check(d *testGateway, r routeRight, credentials []credential) iter.Seq[string] {
	return func(yield func(string) bool) {
		method, path, body := m.request(d, r, credential{}, "")
		before := m.state()
		for _, c := range credentials {
			want := c.mayUse(r.right)
			if want == 0 {
				continue
			}
			code, lacks := map[int]string{401: `"code":"unauthorized"`, 403: `"code":"forbidden_scope"`}[want], strings.TrimSuffix(rights[r.right], " or run token")
			if rights[r.right] == callNoRun {
				if lacks = "call"; c.run && want == 403 {
					code = refusedRunToken
				}
			}
			status, headers, answer := d.do(method, withQuery(path, c.query), body, c.headers...)
			if c.run {
				lacks = "x-run-token"
			}
			shown := headers.Get("Www-Authenticate")
			if status != want || !strings.Contains(answer, code) || want == 403 && !strings.Contains(answer, lacks) || (want == 401) != (shown == "Bearer") {
				if !yield(fmt.Sprintf("%s with %s: %d %s, WWW-Authenticate %q, want %d", r.route, c.name, status, answer, shown, want)) {
					return
				}
			}
		}
		if after := m.state(); after != before && !yield(fmt.Sprintf("%s: refused requests changed %s to %s", r.route, before, after)) {
			return
		}
		for _, c := range credentials {
			if c.mayUse(r.right) != 0 || r.right == "issue tokens" { // which needs a key of the registry, and changes what a foreign bearer may
				continue
			}
			method, path, body := m.request(d, r, c, "")
			status, _, answer := d.do(method, withQuery(path, c.query), body, c.headers...)
			if status != r.status && !(r.status == 201 && status == 200) { // 200: it existed
				if !yield(fmt.Sprintf("%s with %s: %d %s, want %d", r.route, c.name, status, answer, r.status)) {
					return
				}
			}
		}
	}
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
		{name: "scope operator", headers: bearer(m.texts["operator"]), scopes: []string{"operator"}},
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
		for fault := range m.check(remote, r, m.credentials()) {
			t.Error(fault)
		}
		for fault := range m.check(local, r, m.localCredentials()) {
			t.Error("on loopback: " + fault)
		}
		for fault := range m.check(m.owner(), r, m.ownerCredentials()) {
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
	for wrong, means := range map[ingress.Scope]string{scopePublic: anyone, scopeRunToken: runToken, scopeCallOrRun: callOrRun, scopeReadOrRun: readOrRun, scopePerson: callNoRun, scopeModels: agentsOrRun, "call": "call", "read": "read", "agents": "agents", "operator": "operator", "admin": "admin"} {
		t.Run(string(wrong), func(t *testing.T) { // each with a node of its own, whose lists are short
			m := newAuthorization(t)
			d, credentials := m.serveRoutes(func(r *route) { r.scope = wrong }, offLoopback), m.credentials()
			for _, r := range routeRights {
				if rights[r.right] == means {
					continue
				}
				found := false
				for range m.check(d, r, credentials) {
					found = true
					break // one is enough
				}
				if !found {
					t.Errorf("%s with the requirement %s passes", r.route, wrong)
				}
			}
		})
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
			if _, _, answer := d.do(method, strings.NewReplacer("{id}", "x:unknown", "{skill}", "x:unknown").Replace(path), "", bearer...); strings.Contains(answer, "unknown action") {
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
		if slices.Contains(methods, method) && strings.HasPrefix(path, "/") && !strings.ContainsAny(path, "\n ") && path != "/invoke" { // which external agents serve
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
			match, _ := regexp.MatchString("^"+strings.NewReplacer(regexp.QuoteMeta("{id}"), "[^/]+", regexp.QuoteMeta("{skill}"), "[^/]+").Replace(pattern)+"$", method+" "+path)
			return match
		})
	}
	for _, r := range routeRights {
		method, path, _ := strings.Cut(r.route, " ")
		path = strings.NewReplacer("{id}", "helper", "{skill}", "look").Replace(path)
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

func TestRouteTableIsChecked(t *testing.T) {
	handle := func(*fasthttp.RequestCtx) {}
	good := route{"GET", "/v1/things/{id}", "read", []string{"limit", "cursor"}, handle}
	if err := checkRoutes([]route{good, {"POST", "/v1/things/{id}:mend", "call", nil, handle}}); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*route){
		"unknown scope":       func(r *route) { r.scope = "" },
		"unknown method":      func(r *route) { r.method = "FETCH" },
		"malformed path":      func(r *route) { r.path = "/v1/things/{name}" },
		"has no handler":      func(r *route) { r.handle = nil },
		"is a duplicate":      func(r *route) { r.path = good.path },
		"parameter limit is":  func(r *route) { r.params = []string{"limit", "limit"} },
		"parameter colour is": func(r *route) { r.params = []string{"colour"} },
	} {
		bad := good
		bad.path = "/v1/things"
		change(&bad)
		if err := checkRoutes([]route{good, bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for _, path := range []string{"", "v1", "/v1/things/{id}:mend", "/v1/{id}/{id}"} { // a verb needs POST
		if err := checkRoutes([]route{{"GET", path, "read", nil, handle}}); err == nil || !strings.Contains(err.Error(), "malformed path") {
			t.Errorf("path %q: got %v", path, err)
		}
	}
}

// What belongs to a user does not exist for another one, even with all scopes.
func TestUsersAreApart(t *testing.T) {
	m := newAuthorization(t)
	alice, bob := m.users["alice"], m.users["bob"]
	d := m.serveAgain(offLoopback)
	seen := func(c credential) string {
		_, _, runs := d.do("GET", "/v1/runs?limit=200", "", c.headers...)
		_, _, sessions := d.do("GET", "/v1/sessions?limit=200", "", c.headers...)
		return runs + sessions
	}
	for _, r := range routeRights {
		method, path, body := m.request(d, r, alice, "alice")
		of := seen(alice)
		status, _, answer := d.do(method, path, body, bob.headers...)
		switch r.ownership {
		case noRun, noSession, noContext, noApproval, noToolCall:
			if status != 404 || !strings.Contains(answer, string(r.ownership)) {
				t.Errorf("%s by another user: %d %s, want 404 with %s", r.route, status, answer, r.ownership)
			}
			if r.right == "see events" {
				queries, after := []string{"", "?tree=1"}, "999"
				if r.ownership == noSession {
					queries, after = []string{""}, "n1:999.1"
				}
				for _, query := range queries {
					if status, _, answer := d.do(method, path+query, "", append(bob.headers, "Accept", ingress.EventStream)...); status != 404 {
						t.Errorf("stream%s by another user: %d %s, want 404", query, status, answer)
					}
				}
				if status, _, answer := d.do(method, path+"?after="+after+"&wait_ms=60000", "", bob.headers...); status != 404 { // at once
					t.Errorf("long poll by another user: %d %s, want 404", status, answer)
				}
			}
			if r.right == "see runs" && strings.HasPrefix(path, "/v1/runs/") {
				if status, _, answer := d.do(method, path+"?tree=1", "", bob.headers...); status != 404 {
					t.Errorf("tree by another user: %d %s, want 404", status, answer)
				}
			}
		case own:
			want := r.status
			if _, ok := strings.CutPrefix(path, "/v1/memory/"); ok && status == 404 && strings.Contains(answer, `"entity_not_found"`) {
				want = status // nothing is remembered in a scope of the other user
			}
			if status != want && r.right != "act for a run" || m.run != "" && strings.Contains(answer, m.run) {
				t.Errorf("%s by another user: %d %s, want %d without %s", r.route, status, answer, want, m.run)
			}
		}
		if r.right == "delete agents" || r.right == "change tools" || r.right == "manage keys" { // they are the deployment's
			continue
		}
		if after := seen(alice); after != of {
			t.Errorf("%s by another user changed %s to %s", r.route, of, after)
		}
		if strings.Contains(seen(bob), m.run) && m.run != "" {
			t.Errorf("%s: bob sees %s", r.route, m.run)
		}
		if r.ownership == shared || r.right == "act for a run" {
			continue
		}
		if status, _, answer := d.do(method, path, body, alice.headers...); status != r.status {
			t.Errorf("%s by the owner: %d %s, want %d", r.route, status, answer, r.status)
		}
	}
}
