// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/ingress"
)

// The cursor of a user continues no list of another user, and a client cannot make one.
func TestCursorsAreBoundToTheirUser(t *testing.T) {
	d := startGateway(t)
	const scopes = `"scopes":["call","read"]`
	alice, bob := d.newUser(`"user":"alice",`+scopes), d.newUser(`"user":"bob",`+scopes)
	for _, u := range []user{alice, bob} {
		for i := range 3 {
			u.ask("helper", fmt.Sprintf(`{"content":"x","session_id":"s-%d"}`, i))
		}
	}
	for _, path := range []string{"/v1/runs?limit=1", "/v1/sessions?limit=1", "/v1/agents?limit=1"} {
		var page struct {
			Next string `json:"next_cursor"`
		}
		if status := d.doJSON(&page, "GET", path, "", "Authorization", "Bearer "+alice.key); status != http.StatusOK || page.Next == "" {
			t.Fatalf("%s: %d, cursor %q", path, status, page.Next)
		}
		if status, body := alice.do("GET", path+"&cursor="+page.Next, ""); status != http.StatusOK {
			t.Errorf("%s of its user: %d %s", path, status, body)
		}
		if status, body := bob.do("GET", path+"&cursor="+page.Next, ""); status != http.StatusBadRequest || !strings.Contains(body, `"field":"cursor"`) {
			t.Errorf("%s of another user: %d %s", path, status, body)
		}
	}
	for list, after := range map[string]string{"sessions bob": "s-1", "agents bob": "coordinator"} {
		path, _, _ := strings.Cut(list, " ")
		if status, body := bob.do("GET", "/v1/"+path+"?cursor="+ingress.CursorKey(d.server.config.Secret).PageCursor(list, after), ""); status != http.StatusOK {
			t.Errorf("%s: %d %s", list, status, body)
		}
		if status, body := bob.do("GET", "/v1/"+path+"?cursor="+ingress.CursorKey(nil).PageCursor(list, after), ""); status != http.StatusBadRequest {
			t.Errorf("%s with a cursor of the client: %d %s", list, status, body)
		}
	}
}

// The cursor of a session is that of no other session, and that of one user none for another. A client
// that has one, also of a version before or of the store from which this one was restored, is told to
// begin again.
func TestSessionCursorsAreThoseOfTheirSession(t *testing.T) {
	d := startGateway(t)
	alice, bob := d.newUser(`"user":"alice","scopes":["call","read"]`), d.newUser(`"user":"bob","scopes":["call","read"]`)
	cursors := map[string]string{} // the first ones, by user and session
	for name, u := range map[string]user{"alice": alice, "bob": bob} {
		for _, session := range []string{"s1", "s2"} {
			u.ask("helper", `{"content":"x","session_id":"`+session+`"}`)
			var page struct {
				Events []struct {
					Cursor string `json:"cursor"`
				} `json:"events"`
			}
			d.doJSON(&page, "GET", "/v1/sessions/"+session+"/events", "", "Authorization", "Bearer "+u.key)
			cursors[name+" "+session] = page.Events[0].Cursor
		}
	}
	own := cursors["alice s1"]
	if strings.Contains(own, "n1") || strings.Contains(own, ":") {
		t.Errorf("the cursor %s shows its position", own)
	}
	for name, c := range map[string]struct {
		cursor string
		status int
	}{
		"own": {own, 200}, "another session": {cursors["alice s2"], 410}, "another user": {cursors["bob s1"], 410}, "a version before": {"n1:1.1", 410},
		"changed": {own[:3] + "AAAA" + own[7:], 410}, "no cursor": {"x", 400}, "a cursor of a list": {ingress.CursorKey("k").PageCursor("l", "a"), 400},
	} {
		for _, accept := range []string{"*/*", ingress.EventStream} {
			status, body := 0, ""
			if accept == ingress.EventStream && c.status == 200 {
				s := d.openStream("GET", "/v1/sessions/s1/events", "", "Authorization", "Bearer "+alice.key, "Last-Event-ID", c.cursor)
				s.readUntil("run_done")
				status = 200
				if s.frames[0].Name == "user_input" {
					t.Errorf("%s: the stream begins with the first event", name)
				}
				_ = s.response.Body.Close()
			} else {
				status, body = alice.do("GET", "/v1/sessions/s1/events?after="+c.cursor, "", "Accept", accept)
			}
			if status != c.status || c.status == 410 && !strings.Contains(body, "events_dropped") || c.status == 400 && !strings.Contains(body, `"field":"after"`) {
				t.Errorf("%s, %s: %d %s, want %d", name, accept, status, body, c.status)
			}
		}
		if c.status == 400 {
			continue
		}
		ch := d.channel(`{"type":"hello","resume":{"session_id":"s1","after":"`+c.cursor+`"}}`, http.Header{"Authorization": {"Bearer " + alice.key}})
		live := ch.until("state", "LIVE")
		told, all := false, false
		for _, m := range ch.got {
			told = told || m.Type == "error" && m.Code == "events_dropped"
			all = all || m.Type == "run_started"
		}
		if wrong := c.status == 410; told != wrong || all != wrong || live.Cursor == "" {
			t.Errorf("%s: channel: told %v, all messages %v", name, told, all)
		}
	}
}
