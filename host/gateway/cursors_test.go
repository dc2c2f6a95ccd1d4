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
