// SPDX-License-Identifier: Apache-2.0

package tools

import "testing"

// A request is recognized by the begin of its message only: what its inputs say does not count.
func TestNamesRequest(t *testing.T) {
	const head = `{"source_agent":"orc","target_agent":"anl","capability_code":"ANL_NPV","request_id":"r-1","priority":"NORMAL",`
	for _, c := range []struct {
		message, id string
		want        bool
	}{
		{head + `"inputs_json":{}}`, "r-1", true},
		{head + `"inputs_json":{"text":"` + "cut", "r-1", true},
		{head + `"inputs_json":{}}`, "r-", false},
		{head + `"inputs_json":{}}`, "-1", false},
		{head + `"inputs_json":{}}`, "", false},
		{head + `"inputs_json":{"a":1,"request_id":"r-2","b":1}}`, "r-2", false},
		{`Please read ` + head + `"inputs_json":{}}`, "r-1", false},
		{`{"content":1,"request_id":"r-1","x":1}`, "r-1", false},
		{"", "r-1", false},
	} {
		if got := NamesRequest(c.message, c.id); got != c.want {
			t.Errorf("%q %q: got %v", c.message, c.id, got)
		}
	}
}
