// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// toolServer performs tools and records each request.
type toolServer struct {
	*httptest.Server
	mu   sync.Mutex
	done []string      // path and body of each request
	hold chan struct{} // a request to /slow ends when it is closed
}

func newToolServer(t *testing.T) *toolServer {
	s := &toolServer{hold: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.done = append(s.done, r.URL.Path+" "+string(body))
		s.mu.Unlock()
		switch r.URL.Path {
		case "/text":
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, "done")
			return
		case "/broken":
			w.WriteHeader(http.StatusTeapot)
			return
		case "/away":
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case "/failing":
			w.WriteHeader(http.StatusInternalServerError)
			return
		case "/slow":
			<-s.hold
		case "/large":
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"text":%q}`, strings.Repeat("x", 30_000))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"did":%s}`, body)
	}))
	t.Cleanup(s.Close)
	return s
}

// count returns the number of requests to a path.
func (s *toolServer) count(path string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.done {
		if strings.HasPrefix(one, path+" ") {
			n++
		}
	}
	return n
}

// declare declares a tool that the server performs at a path, with further fields.
func (d *testGateway) declare(s *toolServer, name, path, fields string) {
	d.Helper()
	if fields != "" {
		fields = "," + fields
	}
	if status, _, body := d.do("POST", "/v1/tools", fmt.Sprintf(`{"tool_name":%q,"kind":"server_tool","via":"http","on_failure":"return_error","url":%q%s}`, name, s.URL+path, fields)); status != 201 {
		d.Fatalf("declare %s: %d %s", name, status, body)
	}
}

// user of tools: a message is the name of a tool and its arguments, the answer its result.
func newBuyer() actor.Definition {
	return agents.Define("buyer", "1", "Uses a tool.", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		tool, args, _ := strings.Cut(turn.Message(), " ")
		out, err := turn.Tool(tool, jsontext.Value(args))
		return string(out), err
	})))
}

// A tool is declared, listed, changed and deleted over HTTP.
func TestToolIsDeclared(t *testing.T) {
	d := startGateway(t)
	s := newToolServer(t)
	const path = "/v1/tools"
	shipping := `{"tool_name":"shipping.quote","kind":"server_tool","via":"http","url":"` + s.URL + `/text","policy":"require_approval","timeout_ms":1500,"metadata":{"team":"b"}`
	var put struct {
		OK         bool   `json:"ok"`
		Name       string `json:"tool_name"`
		Definition string `json:"definition"`
		Created    bool   `json:"created"`
		Changed    bool   `json:"changed"`
	}
	if status := d.doJSON(&put, "POST", path, shipping+"}"); status != 201 || !put.OK || put.Name != "shipping.quote" || !put.Created || !put.Changed {
		t.Fatalf("%d %+v", status, put)
	}
	first := put.Definition
	if status := d.doJSON(&put, "PUT", path+"/shipping.quote", shipping+"}"); status != 200 || put.Created || put.Changed || put.Definition != first {
		t.Errorf("unchanged: %d %+v", status, put)
	}
	if status := d.doJSON(&put, "PUT", path+"/shipping.quote", shipping+`,"concurrency":2}`); status != 200 || put.Created || !put.Changed || put.Definition == first {
		t.Errorf("changed: %d %+v", status, put)
	}
	d.declare(s, "a.first", "/text", "")
	var list struct {
		Tools []map[string]any `json:"tools"`
		Next  string           `json:"next_cursor"`
	}
	if status := d.doJSON(&list, "GET", path+"?limit=1", ""); status != 200 || len(list.Tools) != 1 || list.Tools[0]["tool_name"] != "a.first" || list.Tools[0]["policy"] != "" || list.Next == "" {
		t.Errorf("first page: %d %v", status, list)
	}
	cursor := list.Next
	list.Next = ""
	if status := d.doJSON(&list, "GET", path+"?limit=1&cursor="+cursor, ""); status != 200 || len(list.Tools) != 1 || list.Next != "" {
		t.Fatalf("second page: %d %v", status, list)
	}
	for member, want := range map[string]any{"tool_name": "shipping.quote", "kind": "server_tool", "via": "http", "policy": "require_approval", "timeout_ms": 1500.0,
		"metadata": map[string]any{"team": "b"}, "owner": "local", "definition": put.Definition} {
		if got := list.Tools[0][member]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", member, got, want)
		}
	}
	var one map[string]any
	if status := d.doJSON(&one, "GET", path+"/shipping.quote", ""); status != 200 || one["url"] != s.URL+"/text" || one["concurrency"] != 2.0 || one["owner"] != "local" || one["definition"] != put.Definition {
		t.Errorf("%d %v", status, one)
	}
	agent := d.newUser(`"scopes":["call","read","agents"]`)
	operator := d.newUser(`"scopes":["read","operator"]`)
	for name, c := range map[string]struct {
		method, path, body string
		by                 func(method, path, body string, headers ...string) (int, string)
		status             int
		want               string
	}{
		"other name in path":          {"PUT", path + "/shipping.rate", shipping + "}", operator.do, 400, `"field":"tool_name"`},
		"no name":                     {"PUT", path + "/shipping.rate", `{}`, operator.do, 400, `"field":"tool_name"`},
		"unknown field":               {"POST", path, `{"tool_name":"x","urll":"y"}`, operator.do, 400, "did you mean url"},
		"bad policy":                  {"POST", path, `{"tool_name":"x","url":"http://127.0.0.1/","policy":"maybe"}`, operator.do, 400, `"field":"policy"`},
		"not JSON":                    {"POST", path, `[`, operator.do, 400, "invalid_request"},
		"unbound secret":              {"POST", path, `{"tool_name":"x","url":"http://127.0.0.1/","headers":{"Authorization":{"env":"TROUPE_AUTH_X"}}}`, operator.do, 403, "TROUPE_AUTH_X"},
		"without the scope operator":  {"POST", path, shipping + "}", agent.do, 403, "forbidden_scope"},
		"deleted without the scope":   {"DELETE", path + "/shipping.quote", "", agent.do, 403, "forbidden_scope"},
		"tool of another principal":   {"PUT", path + "/shipping.quote", shipping + "}", operator.do, 403, "belongs to local"},
		"deleted, but of another one": {"DELETE", path + "/shipping.quote", "", operator.do, 403, "belongs to local"},
		"read without the scope":      {"GET", path + "/shipping.quote", "", d.newUser(`"scopes":["call"]`).do, 403, "forbidden_scope"},
		"unknown tool":                {"GET", path + "/shipping", "", agent.do, 404, "tool_not_found"},
		"unknown tool, deleted":       {"DELETE", path + "/shipping", "", operator.do, 404, "tool_not_found"},
	} {
		if status, body := c.by(c.method, c.path, c.body); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %d with %s", name, status, body, c.status, c.want)
		}
	}
	if status, _, body := d.do("DELETE", path+"/shipping.quote", ""); status != 200 || !strings.Contains(body, `"tool_name":"shipping.quote"`) {
		t.Errorf("delete: %d %s", status, body)
	}
	if status, _, body := d.do("GET", path+"/shipping.quote", ""); status != 404 {
		t.Errorf("deleted tool: %d %s", status, body)
	}
}

// An agent uses a tool that was declared while the server ran.
func TestAgentUsesDeclaredTool(t *testing.T) {
	d := startGateway(t, newBuyer())
	s := newToolServer(t)
	d.declare(s, "payments.pay", "/pay", "")
	d.declare(s, "payments.refund", "/refund", `"policy":"block"`)
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/buyer/messages", `{"content":"payments.pay {\"cents\":5}"}`); status != 200 || m.Content != `{"did":{"cents":5}}` {
		t.Errorf("%d %+v", status, m)
	}
	if status, _, body := d.do("POST", "/v1/agents/buyer/messages", `{"content":"payments.refund {}"}`); status != 403 || !strings.Contains(body, `"policy_blocked"`) {
		t.Errorf("blocked: %d %s", status, body)
	}
	if s.count("/pay") != 1 || s.count("/refund") != 0 {
		t.Errorf("the server has done %q", s.done)
	}
}
