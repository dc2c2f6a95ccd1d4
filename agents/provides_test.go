// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"strings"
	"testing"
)

const analystTOML = `
name = "analyst"
code = "ANL"

[[provides]]
code = "ANL_NPV"
description = "Computes a net present value."
version = "1.2"
timeout_ms = 15000
user_text = "I compute what the investment is worth today."
input_schema = { type = "object", required = ["discount_rate"], properties = { discount_rate = { type = "number" } } }
output_schema = '''{"type":"object"}'''
example = { discount_rate = 0.12 }

[[provides]]
code = "ANL_IRR"
description = "Computes an internal rate of return."
`

// What an agent provides is the same from TOML, from JSON and from the registry's own encoding.
func TestProvides(t *testing.T) {
	s, err := ReadTOML(analystTOML)
	if err != nil {
		t.Fatal(err)
	}
	if s.Code != "ANL" || len(s.Provides) != 2 || s.Provides[0].TimeoutMS != 15000 || string(s.Provides[0].Output) != `{"type":"object"}` || s.Provides[1].Code != "ANL_IRR" {
		t.Errorf("%+v", s)
	}
	again, err := ReadJSON(s.Encode())
	if err != nil || string(again.Encode()) != string(s.Encode()) {
		t.Errorf("%v\n%s\n%s", err, again.Encode(), s.Encode())
	}
	d := s.Declaration()
	if d.Agent != "analyst" || d.Code != "ANL" || d.Capabilities[0].Timeout.Seconds() != 15 || d.Capabilities[0].Input != string(s.Provides[0].Input) {
		t.Errorf("%+v", d)
	}
	digits, err := ReadJSON([]byte(`{"name":"a","provides":[{"code":"A_B","description":"d","example":{"n":12345678901234567890}}]}`))
	if err != nil || !strings.Contains(string(digits.Encode()), "12345678901234567890") {
		t.Errorf("%v: %s", err, digits.Encode())
	}
}

func TestInvalidProvides(t *testing.T) {
	for json, want := range map[string]string{
		`"code":"anl"`:           "code: \"anl\": want three capitals such as ANL",
		`"provides":{}`:          "provides: want a list of tables with code,",
		`"provides":["ANL_NPV"]`: "provides: entry 1: want a table with code,",
		`"provides":[{"code":"npv","description":"d"}]`:                                                                "provides: capability npv: code: want words of capitals",
		`"provides":[{"code":"ANL_NPV"}]`:                                                                              "description: want 1 to",
		`"provides":[{"code":7,"description":"d"}]`:                                                                    "provides: entry 1: code: want text",
		`"provides":[{"descripton":"d"}]`:                                                                              "provides: entry 1: descripton: is unknown; did you mean description?",
		`"provides":[{"code":"A_B","description":"d","timeout_ms":-1}]`:                                                "timeout_ms: want",
		`"provides":[{"code":"A_B","description":"d","input_schema":[]}]`:                                              "input_schema: want a JSON object",
		`"provides":[{"code":"A_B","description":"d","input_schema":"{"}]`:                                             "input_schema: want a JSON object",
		`"provides":[{"code":"A_B","description":"d","input_schema":{"type":"object","required":["n"]},"example":{}}]`: "example: inputs_json/n: is missing",
		`"provides":[{"code":"A_B","description":"d"},{"code":"A_B","description":"d"}]`:                               "is declared twice",
		`"provides":[` + strings.Repeat(`{},`, ProvidesMax) + `{}]`:                                                    "33 entries, at most 32 allowed",
	} {
		_, err := readNewJSON([]byte(`{"name":"a",` + json + `}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100s: got %v, want %s", json, err, want)
		}
	}
}
