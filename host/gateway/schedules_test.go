// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strings"
	"testing"
)

// A schedule is shown to the user that it acts for.
func TestSchedulesAreShownToTheirUser(t *testing.T) {
	a := startAnalyst(t)
	schedule := func(members string) string {
		return `{"name":"reporter","schedule":{"morning":{"cron":"0 9 * * mon-fri","zone":"Europe/Berlin","text":"Report."` + members + `}}}`
	}
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"name":"never","schedule":{"never":{"cron":"0 0 31 4 *","text":"x"}}}`, 400, "never comes"},
		{`{"name":"each","schedule":{"each":{"cron":"* * * * * *","text":"x"}}}`, 400, "no schedule has seconds"},
		{schedule(`,"user":"alice"`), 403, "leave user out"},
		{schedule(""), 201, "reporter"},
	} {
		if status, _, got := a.do("POST", "/v1/agents", c.body); status != c.status || !strings.Contains(got, c.want) {
			t.Errorf("%s: want %d %s, got %d %s", c.body, c.status, c.want, status, got)
		}
	}
	_, _, body := a.do("GET", "/v1/schedules", "")
	if want := `{"schedules":[{"agent_id":"reporter","name":"morning","cron":"0 9 * * mon-fri","zone":"Europe/Berlin","text":"Report.","user":"local","session_id":"morning"`; !strings.HasPrefix(body, want) {
		t.Errorf("got %s", body)
	}
	if _, _, body := a.do("GET", "/v1/schedules", "", userHeader, "bob"); body != `{"schedules":[]}` {
		t.Errorf("bob gets %s", body)
	}
	if status, _, body := a.do("GET", "/v1/schedules?user=*", ""); status != 200 || strings.Count(body, `"agent_id"`) != 1 {
		t.Errorf("the schedules of all: %d %s", status, body)
	}
	if status, body := a.newUser(`"scopes":["read"]`).do("GET", "/v1/schedules?user=*", ""); status != 403 || !strings.Contains(body, "operator") {
		t.Errorf("bob gets of all: %d %s", status, body)
	}
	for user, shown := range map[string]bool{"": true, "bob": false} {
		var headers []string
		if user != "" {
			headers = []string{userHeader, user}
		}
		if _, _, body := a.do("GET", "/v1/agents/reporter", "", headers...); strings.Contains(body, `"Report."`) != shown || !strings.Contains(body, `"spec":{`) {
			t.Errorf("user %q gets %s", user, body)
		}
	}
}
