// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/ingress"
)

// user is a client with an API key.
type user struct {
	*testGateway
	key string
}

// newUser creates a key with these members of POST /v1/keys.
func (d *testGateway) newUser(members string) user {
	d.Helper()
	var key struct {
		Key string `json:"key"`
	}
	if status := d.owner().doJSON(&key, "POST", "/v1/keys", "{"+members+"}"); status != 201 {
		d.Fatalf("create key %s: %d", members, status)
	}
	return user{d, key.Key}
}

func (u user) do(method, path, body string, headers ...string) (int, string) {
	u.Helper()
	status, _, answer := u.testGateway.do(method, path, body, append(headers, "Authorization", "Bearer "+u.key)...)
	return status, answer
}

// ask sends a message and returns the run.
func (u user) ask(agent, body string, headers ...string) messageResponse {
	u.Helper()
	var m messageResponse
	if status := u.doJSON(&m, "POST", "/v1/agents/"+agent+"/messages", body, append(headers, "Authorization", "Bearer "+u.key)...); status != 200 && status != 202 {
		u.Fatalf("message to %s: %d %+v", agent, status, m)
	}
	return m
}

// A user's key acts in the namespace of the user, and keys without user share one.
func TestKeysActInNamespacesOfTheirUsers(t *testing.T) {
	d := startGateway(t)
	const scopes = `"scopes":["call","read"]`
	users := map[string]user{}
	for _, name := range []string{"alice", "bob", "alice@example.com", ""} {
		users[name] = d.newUser(fmt.Sprintf(`"user":%q,`, name) + scopes)
	}
	runs := map[string]string{} // by user
	for name, u := range users {
		m := u.ask("helper", `{"content":"of `+name+`","session_id":"s-1"}`, ingress.IdempotencyKey, "k")
		for other, run := range runs {
			if run == m.Run {
				t.Errorf("%q and %q share run %s", name, other, run)
			}
		}
		runs[name] = m.Run
	}
	for name, u := range users {
		if again := u.ask("helper", `{"content":"of `+name+`","session_id":"s-1"}`, ingress.IdempotencyKey, "k"); again.Run != runs[name] {
			t.Errorf("%q: a repeat became run %s", name, again.Run)
		}
		for other, run := range runs {
			want := 404
			if other == name {
				want = 200
			}
			if status, body := u.do("GET", "/v1/runs/"+run, ""); status != want || want == 404 && !strings.Contains(body, "run_not_found") {
				t.Errorf("%q reads the run of %q: %d %s", name, other, status, body)
			}
		}
		if _, body := u.do("GET", "/v1/runs", ""); strings.Count(body, `"run_id"`) != 1 || !strings.Contains(body, runs[name]) {
			t.Errorf("%q lists %s", name, body)
		}
	}
	second := d.newUser(`"user":"alice",` + scopes)
	if status, _ := second.do("GET", "/v1/runs/"+runs["alice"], ""); status != 200 {
		t.Errorf("another key of alice: %d", status)
	}
	other := d.newUser(scopes)
	if status, _ := other.do("GET", "/v1/runs/"+runs[""], ""); status != 200 {
		t.Errorf("another key without user: %d", status)
	}
	// A user is not a scope: the registry is that of all users.
	if status, body := d.newUser(`"user":"carol","scopes":["agents"]`).do("POST", "/v1/agents", `{"name":"shared"}`); status != 201 {
		t.Errorf("carol creates an agent: %d %s", status, body)
	}
	if m := users["bob"].ask("shared", `{"content":"x"}`); m.Agent != "shared" {
		t.Errorf("bob calls the agent of carol: %+v", m)
	}
}

// The runs of the registry hold the records of API keys: only an administrator and the
// owner of the data folder see them.
func TestRunsOfRegistryNeedAdmin(t *testing.T) {
	d := startGateway(t)
	admin := d.newUser(`"scopes":["admin"]`)
	reader := d.newUser(`"scopes":["call","read","agents"]`)
	list := func(do func(method, path, body string) string) (ids []string) {
		var page runsPage
		if err := json.Unmarshal([]byte(do("GET", "/v1/runs?system=true", "")), &page); err != nil {
			t.Fatal(err)
		}
		for _, r := range page.Runs {
			ids = append(ids, r.Run)
		}
		return ids
	}
	asUser := func(u user) func(method, path, body string) string {
		return func(method, path, body string) string { _, answer := u.do(method, path, body); return answer }
	}
	bare := func(d *testGateway) func(method, path, body string) string {
		return func(method, path, body string) string { _, _, answer := d.do(method, path, body); return answer }
	}
	ids := list(asUser(admin))
	if len(ids) != 2 || len(list(bare(d.owner()))) != 2 {
		t.Fatalf("an administrator lists %v, want the creation of two keys", ids)
	}
	for name, do := range map[string]func(method, path, body string) string{"reader": asUser(reader), "keyless client": bare(d)} {
		if all := list(do); len(all) != 0 {
			t.Errorf("%s lists %v", name, all)
		}
		for _, r := range [][3]string{{"GET", ""}, {"GET", "?tree=1"}, {"GET", "/events"}, {"GET", "/events?after=1&wait_ms=1000"}, {"POST", ":cancel"}, {"POST", ":signal", `{"name":"go"}`}} {
			if answer := do(r[0], "/v1/runs/"+ids[0]+r[1], r[2]); !strings.Contains(answer, "run_not_found") {
				t.Errorf("%s: %s %s: %s", name, r[0], r[1], answer)
			}
		}
	}
	if status, _ := reader.do("GET", "/v1/runs/"+ids[0]+"/events", "", "Accept", ingress.EventStream); status != 404 {
		t.Errorf("stream: %d", status)
	}
	if answer := asUser(admin)("GET", "/v1/runs/"+ids[0]+"/events", ""); !strings.Contains(answer, "run_done") {
		t.Errorf("an administrator reads %s", answer)
	}
}

// A key with act_as_user, a client without key and the owner of the data folder act for the
// user that a request names, in a header or in the body of a message.
func TestRequestsNameTheirUser(t *testing.T) {
	d := startGateway(t)
	const scopes = `"scopes":["call","read"]`
	channel, alice := d.newUser(`"act_as_user":true,`+scopes), d.newUser(`"user":"alice",`+scopes)
	if _, body := d.newUser(`"scopes":["admin"]`).do("GET", "/v1/keys", ""); strings.Count(body, `"act_as_user":true`) != 1 {
		t.Errorf("list of keys: %s", body)
	}
	type client func(method, path, body string, headers ...string) (int, string)
	bare := func(d *testGateway) client {
		return func(method, path, body string, headers ...string) (int, string) {
			status, _, answer := d.do(method, path, body, headers...)
			return status, answer
		}
	}
	for name, do := range map[string]client{"channel": channel.do, "keyless client": bare(d), "owner": bare(d.owner())} {
		var first messageResponse
		_, answer := do("POST", "/v1/agents/helper/messages", `{"content":"x","user_id":"alice","session_id":"`+strings.ReplaceAll(name, " ", "-")+`"}`)
		if err := json.Unmarshal([]byte(answer), &first); err != nil || first.Run == "" {
			t.Fatalf("%s: %s, %v", name, answer, err)
		}
		if status, body := alice.do("GET", "/v1/runs/"+first.Run+"/events", ""); status != 200 || !strings.Contains(body, `"principal":"alice"`) {
			t.Errorf("%s: alice reads %d %s", name, status, body)
		}
		if _, body := alice.do("GET", "/v1/runs/"+first.Run, ""); !strings.Contains(body, `"principal":"alice"`) {
			t.Errorf("%s: the run does not show its user: %s", name, body)
		}
		for _, c := range []struct {
			header string
			status int
		}{{"alice", 200}, {"bob", 404}, {"alice@example.com", 404}} {
			if status, body := do("GET", "/v1/runs/"+first.Run, "", userHeader, c.header); status != c.status {
				t.Errorf("%s for %s: %d %s, want %d", name, c.header, status, body, c.status)
			}
		}
		if status, body := do("GET", "/v1/runs/"+first.Run, ""); status != 404 {
			t.Errorf("%s for no user: %d %s, want 404", name, status, body)
		}
		const message = "/v1/agents/helper/messages"
		if status, body := do("POST", message, `{"content":"x","user_id":"alice"}`, userHeader, "alice"); status != 200 {
			t.Errorf("%s names alice twice: %d %s", name, status, body)
		}
		for i, c := range []struct {
			body, header string
			field, want  string
		}{
			{`{"content":"x","user_id":"alice"}`, "bob", "user_id", "differs from the header"},
			{`{"content":"x","user_id":""}`, "", "user_id", "0 bytes"},
			{`{"content":"x"}`, "-", userHeader, "0 bytes"},
			{`{"content":"x","user_id":7}`, "", "user_id", "wrong JSON type"},
			{`{"content":"x","user_id":"` + strings.Repeat("u", 10<<10) + `"}`, "", "user_id", "10240 bytes, want 1 to 256"},
			{`{"content":"x"}`, strings.Repeat("u", 10<<10), userHeader, "10240 bytes, want 1 to 256"},
			{"{\"content\":\"x\",\"user_id\":\"a\xff\"}", "", "user_id", "not JSON"},
			{`{"content":"x"}`, "a\xff", userHeader, "not UTF-8"},
			{`{"content":"x"}`, "a\xc2\xa0b", userHeader, "cannot be printed"},
			{`{"content":"x"}`, "default", userHeader, "is reserved"},
			{`{"content":"x"}`, "troupe.x", userHeader, "is reserved"},
			{`{"content":"x"}`, "u-0123456789abcdef", userHeader, "is reserved"},
			{`{"content":"x","user_id":"key:0123456789abcdef"}`, "", "user_id", "is reserved"},
		} {
			var headers []string
			if c.header != "" {
				headers = []string{userHeader, strings.TrimPrefix(c.header, "-")}
			}
			if status, body := do("POST", message, c.body, headers...); status != 400 || !strings.Contains(body, `"field":"`+c.field+`"`) || !strings.Contains(body, c.want) || len(body) > 2<<10 {
				t.Errorf("%s, case %d: %d %.2000s, want 400 for %s with %q", name, i, status, body, c.field, c.want)
			}
		}
	}
	if status, body := bare(d)("GET", "/v1/runs", "", userHeader, "local"); status != 200 {
		t.Errorf("a keyless client repeats its user: %d %s", status, body)
	}
	keyID, _ := ingress.KeyID(channel.key)
	if status, body := channel.do("GET", "/v1/runs", "", userHeader, "key:"+keyID); status != 200 {
		t.Errorf("the channel repeats its user: %d %s", status, body)
	}
}

// handshake are the headers of a WebSocket handshake.
var handshake = []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}

// A key without act_as_user may repeat its own user only.
func TestKeysCannotNameOtherUsers(t *testing.T) {
	d := startGateway(t)
	before, _ := d.owner().listAll("")
	for name, members := range map[string]string{"alice": `"user":"alice",`, "nobody": ""} {
		u := d.newUser(members + `"scopes":["call","read","agents","admin"]`)
		own := "alice"
		if members == "" {
			id, _ := ingress.KeyID(u.key)
			own = "key:" + id
		}
		for _, r := range routeRights {
			method, _, _ := strings.Cut(r.route, " ")
			if rights[r.right] == anyone { // it names no user, or the hello does
				continue
			}
			path := strings.NewReplacer("{run}", "01a20f00-1aeb-7791-84a0-d6b7700bd6ef", "{session}", "s-1", "{context}", "c-1", "{doomed}", "x", "{beats}", "x", "{key}", "0123456789abcdef", "{tool}", "x", "{capability}", "DOC_GENERATE", "{approval}", "x", "{call}", "x").Replace(r.path)
			status, body := u.do(method, path, r.body, userHeader, "bob")
			if r.right == "act for a run" {
				if status != 401 {
					t.Errorf("%s: %s: %d %s, want 401", name, r.route, status, body)
				}
			} else if status != 403 || !strings.Contains(body, `"forbidden_user"`) || !strings.Contains(body, own) {
				t.Errorf("%s: %s: %d %s, want 403 forbidden_user", name, r.route, status, body)
			}
		}
		if status, body := u.do("POST", "/v1/agents/helper/messages", `{"content":"x","user_id":"bob"}`); status != 403 || !strings.Contains(body, `"forbidden_user"`) || !strings.Contains(body, `"field":"user_id"`) {
			t.Errorf("%s: in the body: %d %s", name, status, body)
		}
		if status, body := u.do("GET", socketRoute, "", append(slices.Clone(handshake), userHeader, "bob")...); status != 403 || !strings.Contains(body, `"forbidden_user"`) {
			t.Errorf("%s: in a handshake: %d %s", name, status, body)
		}
		if status, body := u.do("GET", "/v1/runs", "", userHeader, own); status != 200 {
			t.Errorf("%s repeats its own user: %d %s", name, status, body)
		}
	}
	if after, _ := d.owner().listAll(""); len(after) != len(before) {
		t.Errorf("refused requests began the runs %v", after)
	}
}

func TestRepeatedUserHeaderIsRefused(t *testing.T) {
	b := startBareGateway(t, Config{Keys: newTestKeys(t)}, func(l net.Listener) net.Listener { return l })
	for _, lines := range []string{"X-User-Id: alice\r\nX-User-Id: bob\r\n", "X-User-Id: alice\r\nx-user-id: alice\r\n", "X_User_Id: alice\r\n"} {
		if status, body, closes, _ := b.sendRaw(t, "GET /v1/runs HTTP/1.1\r\nHost: a\r\n"+lines+"\r\n"); status != 400 || !closes || !strings.Contains(body, "the header x") {
			t.Errorf("%q: %d %v %s, want 400 and the end of the connection", lines, status, closes, body)
		}
	}
}

// A request with a run token acts for the user of the run, whatever it names.
func TestRunTokenKeepsItsUser(t *testing.T) {
	d := startGateway(t)
	inner, outer := newExternalService(d, "inner"), newExternalService(d, "outer")
	in := outer.begin("outer", `{"content":"x","session_id":"s-1"}`, userHeader, "alice@example.com")
	const path = "/v1/agents/inner/messages"
	for _, c := range []struct {
		header, body string
		status       int
		code         string
	}{
		{"bob", `{"content":"y"}`, 403, "forbidden_user"},
		{"local", `{"content":"y"}`, 403, "forbidden_user"},
		{"", `{"content":"y","user_id":"bob"}`, 400, "invalid_request"},
	} {
		headers := []string{RunToken, in.token}
		if c.header != "" {
			headers = append(headers, userHeader, c.header)
		}
		if status, _, body := d.do("POST", path, c.body, headers...); status != c.status || !strings.Contains(body, c.code) {
			t.Errorf("%+v: %d %s", c, status, body)
		}
	}
	answered := make(chan messageResponse, 1)
	go func() {
		var m messageResponse
		d.doJSON(&m, "POST", path, `{"content":"y","user_id":"alice@example.com"}`, RunToken, in.token, userHeader, "alice@example.com")
		answered <- m
	}()
	below := <-inner.invoked
	inner.answers <- "done"
	if m := <-answered; m.Content != "done" || m.Run != below.run {
		t.Errorf("got %+v, want the answer of run %s", m, below.run)
	}
	if status, _, body := d.do("GET", "/v1/runs/"+in.run+"?tree=1", "", userHeader, "alice@example.com"); status != 200 || !strings.Contains(body, below.run) {
		t.Errorf("the user reads %d %s", status, body)
	}
	for _, run := range []string{in.run, below.run} {
		if status, _, body := d.do("GET", "/v1/runs/"+run, ""); status != 404 {
			t.Errorf("another user reads %d %s", status, body)
		}
	}
}

// An operator reads, signals and cancels in the namespace of another user, by its name or by
// that of the user. Others cannot.
func TestOperatorsActElsewhere(t *testing.T) {
	d := startGateway(t)
	const scopes = `"scopes":["call","read"]`
	alice, bob := d.newUser(`"user":"alice@example.com",`+scopes), d.newUser(`"user":"bob",`+scopes)
	const namespace = "u-ff8d9819fc0e12bf"
	operators := map[string]user{
		"operator": d.newUser(`"user":"olga","scopes":["call","read","operator"]`),
		"admin":    d.newUser(`"scopes":["admin"]`),
		"channel":  d.newUser(`"act_as_user":true,` + scopes),
	}
	for name, o := range operators {
		session := "of-" + name
		doomed, waiting := alice.ask("coordinator", `{"content":"xyzzy","session_id":"`+session+`"}`), alice.ask("coordinator", `{"content":"xyzzy","session_id":"`+session+`-2"}`)
		run := "/v1/runs/" + waiting.Run
		for _, r := range []struct{ method, path, body, want string }{
			{"GET", "/v1/runs", "", waiting.Run},
			{"GET", run, "", waiting.Run},
			{"GET", run + "?tree=1&", "", waiting.Run},
			{"GET", run + "/events", "", waiting.Run},
			{"GET", "/v1/sessions", "", `"session_id":"` + session + `"`},
			{"GET", "/v1/sessions/" + session, "", session},
			{"GET", "/v1/sessions/" + session + "/messages?agent=coordinator&", "", "xyzzy"},
			{"POST", run + ":signal", `{"name":"go"}`, `"status":"received"`},
			{"POST", "/v1/runs/" + doomed.Run + ":cancel", "", "CANCELLED"},
		} {
			path, at := strings.TrimSuffix(r.path, "&"), "?user="
			if strings.Contains(path, "?") {
				at = "&user="
			}
			if status, body := bob.do(r.method, path+at+namespace, r.body); status != 403 || !strings.Contains(body, `"forbidden_scope"`) || !strings.Contains(body, "operator") {
				t.Errorf("bob: %s %s: %d %s, want 403", r.method, path, status, body)
			}
			if status, body := o.do(r.method, path, r.body); status == 200 && strings.Contains(body, r.want) {
				t.Errorf("%s without the parameter: %s %s: %s", name, r.method, path, body)
			}
			if status, body := o.do(r.method, path+at+namespace, r.body); status != 200 || !strings.Contains(body, r.want) {
				t.Errorf("%s: %s %s: %d %s, want %s", name, r.method, path, status, body, r.want)
			}
		}
		if status, _ := o.do("GET", run+"/events?user="+namespace, "", "Accept", ingress.EventStream); status != 200 {
			t.Errorf("%s: stream: %d", name, status)
		}
	}
	if _, body := alice.do("GET", "/v1/runs?limit=200", ""); !strings.Contains(body, "olga") {
		t.Errorf("no run of alice shows who cancelled it: %s", body)
	}
	for _, own := range []string{namespace, "bob"} { // a user may name itself
		u := map[string]user{namespace: alice, "bob": bob}[own]
		if status, body := u.do("GET", "/v1/runs?user="+own, ""); status != 200 {
			t.Errorf("%s: %d %s", own, status, body)
		}
	}
	for query, want := range map[string]string{"user=": "0 bytes", "user=troupe.x": "reserved", "user=U-FF8D9819FC0E12BF": "reserved", "user=" + strings.Repeat("u", 300): "300 bytes", "user=a&user=b": "duplicate", "user=alice@example.com": "no escapes"} {
		if status, body := operators["admin"].do("GET", "/v1/runs?"+query, ""); status != 400 || !strings.Contains(body, want) {
			t.Errorf("%.40s: %d %s, want 400 with %q", query, status, body, want)
		}
	}
	for _, path := range []string{"/v1/runs/01a20f00-1aeb-7791-84a0-d6b7700bd6ef?user=*", "/v1/sessions?user=*"} {
		if status, body := operators["admin"].do("GET", path, ""); status != 400 || !strings.Contains(body, "want one user") {
			t.Errorf("%s: %d %s, want 400", path, status, body)
		}
	}
	if status, body := operators["admin"].do("GET", "/v1/agents?user=bob", ""); status != 400 {
		t.Errorf("agents have no namespace: %d %s", status, body)
	}
	if status, _, body := d.do("GET", "/v1/runs?user=bob", ""); status != 200 || !strings.Contains(body, `"runs":[]`) {
		t.Errorf("a keyless client: %d %s", status, body)
	}
}

// An operator lists the runs of all users, newest first. The pages have all of them.
func TestOperatorsListEveryUser(t *testing.T) {
	d := startGateway(t)
	names := []string{"bob", "alice", "alice-b", "alice@example.com", ""}
	want := map[string]int{}
	for i, name := range names {
		u := d.newUser(fmt.Sprintf(`"user":%q,"scopes":["call","read"]`, name))
		for n := range i + 2 {
			want[u.ask("helper", fmt.Sprintf(`{"content":"x","session_id":"s-%d"}`, n)).Run]++
		}
		if status, body := u.do("GET", "/v1/runs?user=*", ""); status != 403 || !strings.Contains(body, "forbidden_scope") {
			t.Errorf("%q: %d %s, want 403", name, status, body)
		}
	}
	if status, body := d.newUser(`"act_as_user":true,"scopes":["read"]`).do("GET", "/v1/runs?user=*", ""); status != 403 {
		t.Errorf("channel: %d %s, want 403", status, body)
	}
	operator := d.newUser(`"scopes":["read","operator"]`)
	for _, query := range []string{"limit=1", "limit=3", "limit=200", "limit=2&agent_id=helper"} {
		seen, order := map[string]int{}, []string{}
		for cursor := ""; ; {
			var page runsPage
			path := "/v1/runs?user=*&" + query
			if cursor != "" {
				path += "&cursor=" + cursor
			}
			if status := d.doJSON(&page, "GET", path, "", "Authorization", "Bearer "+operator.key); status != 200 {
				t.Fatalf("%s: %d", path, status)
			}
			for _, r := range page.Runs {
				seen[r.Run]++
				if user := map[string]string{"bob": "bob", "alice": "alice", "alice-b": "alice-b", "u-ff8d9819fc0e12bf": "alice@example.com"}[strings.Split(r.Actor, "/")[0]]; user != "" && r.User != user {
					t.Errorf("%s: run of %s by %q, want %q", query, r.Actor, r.User, user)
				}
				if !strings.Contains(r.Actor, "/helper/") && !strings.HasPrefix(r.User, "key:") { // in the namespace default
					t.Errorf("%s: run of %s by %q, want a key", query, r.Actor, r.User)
				}
				if order = append(order, r.Run); len(order) > 100 {
					t.Fatalf("%s does not end: %q", query, order)
				}
			}
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		if !maps.Equal(seen, want) {
			t.Errorf("%s: got %v, want %v", query, seen, want)
		}
		if !slices.IsSortedFunc(order, func(a, b string) int { return strings.Compare(b, a) }) { // IDs begin with the time
			t.Errorf("%s: got runs %q, want the newest first", query, order)
		}
	}
	if _, body := operator.do("GET", "/v1/runs?user=*&system=true&limit=200", ""); strings.Contains(body, "troupe/registry") {
		t.Errorf("an operator reads the runs of the registry: %s", body)
	}
	var page runsPage
	d.doJSON(&page, "GET", "/v1/runs?user=*&limit=1", "")
	for _, path := range []string{"/v1/runs?user=bob&limit=1&cursor=" + page.Next, "/v1/runs?user=*&status=DONE&cursor=" + page.Next} {
		if status, body := operator.do("GET", path, ""); status != 400 || !strings.Contains(body, `"field":"cursor"`) {
			t.Errorf("%s: %d %s, want 400", path, status, body)
		}
	}
}

// Figures of the whole deployment are for operators.
func TestServedRunsNeedOperator(t *testing.T) {
	d := startGateway(t)
	for scopes, want := range map[string]bool{`"read"`: false, `"read","operator"`: true, `"admin"`: true} {
		u := d.newUser(`"scopes":[` + scopes + `]`)
		for _, path := range []string{"/v1/agents", "/v1/agents/helper"} {
			if status, body := u.do("GET", path, ""); status != 200 || strings.Contains(body, "served_runs") != want {
				t.Errorf("%s: %s: %d %s, want served_runs: %v", scopes, path, status, body, want)
			}
		}
	}
}
