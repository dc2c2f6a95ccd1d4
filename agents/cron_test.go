// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"os"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/troupe-run/troupe/agents"
)

func TestParseCron(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"* * * * *", ""},
		{"0 9 * * mon-fri", ""},
		{"*/15 8-18/2 1,15 jan-jun,dec 7", ""},
		{" 5  4 * * SUN ", ""},
		{"@daily", ""},
		{"0 0 29 2 *", ""},
		{"0 0 30 2 mon", ""}, // each Monday of February
		{"0 0 30 2 *", "never comes"},
		{"0 0 31 4,6,9,11 *", "never comes"},
		{"* * * * * *", "no schedule has seconds"},
		{"*/1 * * * * *", "no schedule has seconds"},
		{"@every 1s", "want minute"},
		{"@reboot", "want minute"},
		{"", "want minute"},
		{"60 * * * *", "minute: \"60\": want 0 to 59"},
		{"* 24 * * *", "hour:"},
		{"* * 0 * *", "day of the month:"},
		{"* * * 13 *", "month:"},
		{"* * * * 8", "day of the week:"},
		{"* * * * mo", "day of the week:"},
		{"* * * * unm", "day of the week:"},
		{"30-10 * * * *", "ends before it begins"},
		{"*/0 * * * *", "want a step"},
		{"*/99 * * * *", "want a step"},
		{"1, * * * *", "minute:"},
		{"-5 * * * *", "minute:"},
		{"? * * * *", "minute:"},
		{"0 0 L * *", "day of the month:"},
		{"CRON_TZ=UTC 0 0 * * *", "no schedule has seconds"},
	} {
		_, err := agents.ParseCron(c.line)
		if got := ""; c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			if err != nil {
				got = err.Error()
			}
			t.Errorf("%q: want %q, got %q", c.line, c.want, got)
		}
	}
}

// The names of time zones are those that the program can load.
func TestZonesCanBeLoaded(t *testing.T) {
	names, err := os.ReadFile("zones.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(names)) {
		if _, err := time.LoadLocation(name); err != nil {
			t.Error(err)
		}
	}
	if n := len(strings.Fields(string(names))); n < 400 {
		t.Errorf("%d time zones", n)
	}
}

// Who is no operator declares schedules that act for itself alone.
func TestSchedulesActForTheirAuthor(t *testing.T) {
	for _, c := range []struct{ user, by, want string }{
		{"", "alice", "Rejected"},
		{"bob", "alice", "Rejected"},
		{"alice", "alice", ""},
		{"alice", "local", "Rejected"},
		{"", "local", ""},
		{"", "key:1", ""},
		{"alice", agents.Operator, ""},
		{"", agents.Operator, ""},
	} {
		f := newRegistryFixture(t)
		f.principal = c.by
		user := ""
		if c.user != "" {
			user = `,"user":"` + c.user + `"`
		}
		got := ""
		if r := f.apply(agents.OpPut, `{"name":"helper","schedule":{"morning":{"cron":"0 9 * * *","text":"x"`+user+`}}}`).Refusal; r != nil {
			got = r.Reason.String()
			if r.Field != "schedule.morning" {
				t.Errorf("field %q", r.Field)
			}
		}
		if got != c.want {
			t.Errorf("schedule for %q by %s: got %q, want %q", c.user, c.by, got, c.want)
		}
	}
}
