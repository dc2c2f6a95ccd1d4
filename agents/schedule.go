// SPDX-License-Identifier: Apache-2.0

package agents

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/nearest"
)

// Schedule sends an agent a message at its times, in a session of a user.
type Schedule struct {
	Cron    string `json:"cron"` // see ParseCron
	Zone    string `json:"zone"` // of the IANA database
	Text    string `json:"text"`
	User    string `json:"user,omitzero"` // that it acts for; "": actor.LocalUser
	Session string `json:"session"`
}

// By returns the user that it acts for.
func (s *Schedule) By() string {
	if s.User == "" {
		return actor.LocalUser
	}
	return s.User
}

const (
	scheduleTable = "schedule"
	// SchedulesMax is the maximum number of schedules of an agent.
	SchedulesMax    = 8
	scheduleTextMax = 4 << 10
	cronMax         = 256
)

var scheduleFields = []string{"cron", "zone", "text", "user", "session"}

// zones are the names of the IANA database. That database belongs to the machine or to the program, so here
// are its names alone.
//
//go:embed zones.txt
var zones string

// schedule adds a schedule to a spec.
func schedule(s *Spec, v any) error {
	table, ok := v.(namedObject)
	if !ok {
		return fmt.Errorf("want a table [schedule.NAME] with %s, got %s", strings.Join(scheduleFields, ", "), describeValue(v))
	}
	if err := actor.CheckName(table.name); err != nil {
		return err
	}
	var one Schedule
	if err := eachField(table.value, scheduleFields, one.set); err != nil {
		return err
	}
	var wrong mistakes
	if one.Cron == "" {
		wrong = append(wrong, errors.New(`cron: is missing; want minute, hour, day of the month, month and day of the week, like cron = "0 9 * * mon-fri"`))
	}
	if one.Text == "" {
		wrong = append(wrong, errors.New("text: is missing; want the message for the agent"))
	}
	if len(s.Schedules) == SchedulesMax {
		wrong = append(wrong, fmt.Errorf("more than %d schedules", SchedulesMax))
	}
	if err := wrong.err(); err != nil {
		return err
	}
	if one.Zone == "" {
		one.Zone = "UTC"
	}
	if s.Schedules == nil {
		s.Schedules = map[string]Schedule{}
	}
	s.Schedules[table.name] = one
	return nil
}

func (s *Schedule) set(field string, v jsontext.Value) (err error) {
	switch field {
	case "cron":
		if err = readLine(&s.Cron, v, cronMax); err == nil {
			_, err = ParseCron(s.Cron)
		}
	case "zone":
		if err = readLine(&s.Zone, v, actor.NameBytesMax); err == nil {
			err = checkZone(s.Zone)
		}
	case "text":
		if json.Unmarshal(v, &s.Text) != nil || strings.TrimSpace(s.Text) == "" || len(s.Text) > scheduleTextMax || strings.ContainsRune(s.Text, 0) {
			return fmt.Errorf("want text of 1 to %d bytes without zero bytes", scheduleTextMax)
		}
	case "user":
		if err = readLine(&s.User, v, actor.PrincipalTextBytesMax); err == nil && s.User == actor.DefaultTenant {
			s.User = ""
		} else if err == nil {
			err = actor.CheckNewUser(s.User)
		}
	case "session":
		if err = readLine(&s.Session, v, actor.NameBytesMax); err == nil {
			err = actor.CheckName(s.Session)
		}
	}
	return err
}

func checkZone(name string) error {
	known := strings.Fields(zones)
	if _, ok := slices.BinarySearch(known, name); ok {
		return nil
	}
	if near := nearest.Of(name, known); near != "" {
		return fmt.Errorf("%.80q is no time zone; did you mean %s?", name, near)
	}
	return fmt.Errorf("%.80q is no time zone; want a name such as Europe/Berlin, or UTC", name)
}

// scheduleProblems returns the problems of schedules that involve other fields.
func (s *Spec) scheduleProblems() (problems Problems) {
	for _, name := range slices.Sorted(maps.Keys(s.Schedules)) {
		field := scheduleTable + "." + name
		switch session := s.Schedules[name].Session; {
		case s.Durability == "none":
			problems = append(problems, Problem{Field: field, Text: "not allowed for an agent with durability none, which could not tell that it has had the message; remove one"})
		case s.DefaultSession != "" && session != "" && session != s.DefaultSession:
			problems = append(problems, Problem{Field: field, Text: fmt.Sprintf("session: the agent has the session %s for all; remove it", s.DefaultSession)})
		case s.DefaultSession == "" && session == actor.DefaultKey:
			problems = append(problems, Problem{Field: field, Text: fmt.Sprintf("session: %s is the session of agents with default_session; choose another name", session)})
		}
	}
	return problems
}

// setSessions sets the sessions of the schedules that name none: that of the agent, or one with the name of the
// schedule.
func (s *Spec) setSessions() {
	for _, name := range slices.Sorted(maps.Keys(s.Schedules)) {
		one := s.Schedules[name]
		if one.Session == "" {
			one.Session = name
			if s.DefaultSession != "" {
				one.Session = s.DefaultSession
			}
		}
		s.Schedules[name] = one
	}
}

// checkSchedules refuses schedules that act for others than who declares them, unless that is an operator.
func (s registryState) checkSchedules(spec *Spec) *actor.Refusal {
	for _, name := range slices.Sorted(maps.Keys(spec.Schedules)) {
		one := spec.Schedules[name]
		if s.principal == Operator || actor.InNamespace(s.principal, actor.Namespace(one.User)) {
			continue
		}
		remedy := "leave user out"
		if !actor.InNamespace(s.principal, actor.DefaultTenant) {
			remedy = fmt.Sprintf("write user = %q", s.principal)
		}
		r := actor.Refuse(actor.Rejected, "schedule.%s: only a key with scope admin may declare a schedule that acts for %s: %s", name, one.By(), remedy)
		r.Field = scheduleTable + "." + name
		return r
	}
	return nil
}
