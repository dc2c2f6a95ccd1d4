// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strings"
	"testing"
)

// contextResponse is the answer to a change or a read of a context.
type contextResponse struct {
	Key     string         `json:"context_key"`
	Version int            `json:"version"`
	Owner   string         `json:"owner_type"`
	OwnerID string         `json:"owner_id"`
	Data    map[string]any `json:"data"`
	Code    string         `json:"code"`
	Field   string         `json:"field"`
	Detail  string         `json:"detail"`
}

func TestContextHasVersions(t *testing.T) {
	d := startGateway(t)
	var c contextResponse
	want := func(what string, got, status int, version int, code string) {
		t.Helper()
		if got != status || c.Version != version || c.Code != code {
			t.Errorf("%s: %d %+v, want %d, version %d, code %q", what, got, c, status, version, code)
		}
	}
	send := func(method, path, body string, headers ...string) int {
		t.Helper()
		c = contextResponse{}
		return d.doJSON(&c, method, path, body, headers...)
	}
	want("create", send("POST", "/v1/context", `{"session_id":"s1","data":{"n":1}}`), 201, 1, "")
	path := "/v1/context/" + c.Key
	want("replace", send("PUT", path, `{"data":{"n":2},"version":1}`), 200, 2, "")
	want("conflict", send("PUT", path, `{"data":{"n":3},"version":1}`), 409, 0, "context_version")
	want("read", send("GET", path, ""), 200, 2, "")
	if c.Data["n"] != 2.0 || c.Owner != "session" || c.OwnerID != "s1" || "/v1/context/"+c.Key != path {
		t.Errorf("%+v", c)
	}
	want("read version 1", send("GET", path+"?version=1", ""), 200, 1, "")
	if c.Data["n"] != 1.0 {
		t.Errorf("%+v", c)
	}
	for range 2 {
		send("PUT", path, `{"data":{"n":4}}`)
	}
	for version, sentence := range map[string]string{"1": "version 1 was dropped: 2, 3 and 4 are kept", "5": "there is no version 5 yet: the newest is 4"} {
		want("read version "+version, send("GET", path+"?version="+version, ""), 404, 0, "context_not_found")
		if !strings.Contains(c.Detail, sentence) {
			t.Errorf("version %s: got %q, want %q", version, c.Detail, sentence)
		}
	}
	for _, version := range []string{"0", "-1", "1e20", "100000000000000000000", "x", ""} {
		want("read version "+version, send("GET", path+"?version="+version, ""), 400, 0, "invalid_request")
		if c.Field != "version" || !strings.Contains(c.Detail, "want a number from 1") {
			t.Errorf("version %q: %+v", version, c)
		}
	}
	for _, version := range []string{"0", "-1", "1e20", "1.5", `"x"`} {
		want("replace version "+version, send("PUT", path, `{"data":{},"version":`+version+`}`), 400, 0, "invalid_request")
		if c.Field != "version" || !strings.Contains(c.Detail, "want a number from 1") {
			t.Errorf("version %s: %+v", version, c)
		}
	}
	if status, _, answer := d.do("DELETE", path, ""); status != 204 {
		t.Errorf("delete: %d %s", status, answer)
	}
	want("read after deletion", send("GET", path, ""), 404, 0, "context_not_found")
	want("replace after deletion", send("PUT", path, `{"data":1}`), 404, 0, "context_not_found")
}

func TestRepeatedContextIsCreatedOnce(t *testing.T) {
	d := startGateway(t)
	var first, second contextResponse
	for _, c := range []*contextResponse{&first, &second} {
		if status := d.doJSON(c, "POST", "/v1/context", `{"session_id":"s1","data":{}}`, "Idempotency-Key", "k"); status != 201 {
			t.Errorf("%d %+v", status, *c)
		}
	}
	if first.Key == "" || first.Key != second.Key || second.Version != 1 {
		t.Errorf("%+v, then %+v", first, second)
	}
}

func TestLargeContextSurvives(t *testing.T) {
	d := startGateway(t)
	text := strings.Repeat("context ", 120_000) // 960,000 bytes: 15 chunks
	var c contextResponse
	if status := d.doJSON(&c, "POST", "/v1/context", `{"session_id":"s1","data":{"text":"`+text+`"}}`); status != 201 {
		t.Fatalf("%d %+v", status, c)
	}
	path := "/v1/context/" + c.Key
	if d.doJSON(&c, "GET", path, ""); c.Data["text"] != text {
		t.Error("another text was read")
	}
	if status, _, answer := d.do("GET", "/v1/runs?system=true", ""); status != 200 || strings.Contains(answer, "context context") {
		t.Errorf("%d, the list of runs has the text", status)
	}
}

func TestInvalidContextsAreRefused(t *testing.T) {
	d := startGateway(t)
	var c contextResponse
	for body, want := range map[string]string{
		`{"data":1}`:          "session_id",
		`{"session_id":"s1"}`: "data",
		`{"session_id":"s1","data":1,"owner_type":"x"}`:                               "owner_type",
		`{"session_id":"s1","data":1,"owner_id":"s2"}`:                                "owner_id",
		`{"session_id":"s1","data":1,"owner_type":"session","owner_id":"s2"}`:         "owner_id",
		`{"session_id":"s1","data":1,"version":1}`:                                    "version",
		`{"session_id":"a/b","data":1}`:                                               "session_id",
		`{"session_id":"s1","data":1,"other":1}`:                                      "other",
		`{"session_id":"` + strings.Repeat("s", 10_000) + `","data":1}`:               "session_id",
		`{"session_id":"s1","data":"` + strings.Repeat("x", 1<<20-4000) + `"}`:        "data",
		`{"session_id":"s1","owner_id":"` + strings.Repeat("x", 9000) + `","data":1}`: "owner_id",
	} {
		c = contextResponse{}
		if status := d.doJSON(&c, "POST", "/v1/context", body); status != 400 || c.Field != want || !strings.Contains(c.Detail, want) {
			t.Errorf("%.80s: %d %+v, want 400 for %s", body, status, c, want)
		}
	}
	if status, _, answer := d.do("POST", "/v1/context", `{"session_id":"s1","data":"`+strings.Repeat("x", 1<<20)+`"}`); status != 413 {
		t.Errorf("%d %s", status, answer)
	}
	for _, key := range []string{"x", "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55.s1", "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55", strings.Repeat("k", 1000)} {
		if status := d.doJSON(&c, "GET", "/v1/context/"+key, ""); status != 404 || c.Code != "context_not_found" {
			t.Errorf("%s: %d %+v", key, status, c)
		}
	}
}

func TestContextIsDeletedWithItsSession(t *testing.T) {
	d := startGateway(t)
	var c contextResponse
	d.doJSON(&c, "POST", "/v1/context", `{"session_id":"s1","data":{"n":1}}`)
	path := "/v1/context/" + c.Key
	if status, _, answer := d.do("DELETE", "/v1/sessions/s1", ""); status != 204 {
		t.Fatalf("%d %s", status, answer)
	}
	if status := d.doJSON(&c, "GET", path, ""); status != 404 || c.Code != "context_not_found" {
		t.Errorf("%d %+v", status, c)
	}
}

// A refused request for the context of another user creates no session of that name, and changes
// none. A repeated deletion gets the answer to the first one.
func TestRefusedContextRequestChangesNothing(t *testing.T) {
	d := startGateway(t)
	alice, bob := d.newUser(`"user":"alice","scopes":["call","read"]`), d.newUser(`"user":"bob","scopes":["call","read"]`)
	var c, other contextResponse
	d.doJSON(&c, "POST", "/v1/context", `{"session_id":"s1","data":1}`, "Authorization", "Bearer "+alice.key)
	refused := func() {
		t.Helper()
		for method, body := range map[string]string{"GET": "", "DELETE": "", "PUT": `{"data":2}`} {
			for _, headers := range [][]string{nil, {"Idempotency-Key", method}} {
				if method == "GET" && headers != nil {
					continue
				}
				if status, answer := bob.do(method, "/v1/context/"+c.Key, body, headers...); status != 404 || !strings.Contains(answer, "context_not_found") {
					t.Errorf("%s %v: %d %s", method, headers, status, answer)
				}
			}
		}
	}
	refused()
	if _, list := bob.do("GET", "/v1/sessions", ""); strings.Contains(list, "s1") {
		t.Errorf("a refused request created a session: %s", list)
	}
	d.doJSON(&other, "POST", "/v1/context", `{"session_id":"s1","data":3}`, "Authorization", "Bearer "+bob.key)
	_, before := bob.do("GET", "/v1/sessions/s1", "")
	if status, _ := bob.do("DELETE", "/v1/context/"+c.Key, ""); status != 404 {
		t.Errorf("%d", status)
	}
	if _, after := bob.do("GET", "/v1/sessions/s1", ""); after != before {
		t.Errorf("a refused request changed a session from %s to %s", before, after)
	}
	refused()
	for range 2 {
		if status, answer := bob.do("DELETE", "/v1/context/"+other.Key, "", "Idempotency-Key", "k"); status != 204 {
			t.Errorf("a repeated deletion: %d %s", status, answer)
		}
	}
	if status, answer := alice.do("GET", "/v1/context/"+c.Key, ""); status != 200 {
		t.Errorf("%d %s", status, answer)
	}
}
