// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// oddAnswer is the answer of a server whose list has entries that are no tools, and doubled names.
func oddAnswer(request []byte) string {
	var in struct {
		ID     jsontext.Value `json:"id"`
		Method string         `json:"method"`
		Params struct {
			Version string `json:"protocolVersion"`
		} `json:"params"`
	}
	if json.Unmarshal(request, &in) != nil || len(in.ID) == 0 {
		return ""
	}
	result := `{"content":[{"type":"text","text":"fine"}]}`
	switch in.Method {
	case "initialize":
		result = fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"odd","version":"1"}}`, in.Params.Version)
	case "tools/list":
		const object = `"inputSchema":{"type":"object"}`
		result = `{"tools":[{"name":"twice",` + object + `},7,{"name":"good",` + object + `},null,{"name":["x"],` + object + `},{"name":"late","annotations":3,` + object +
			`},{"name":"twice","description":"other",` + object + `},{"name":"bad.schema","inputSchema":{"type":"object","properties":{"a":{"pattern":"^a{1,1000}b{1,1000}c{1,1000}d{1,1000}e{1,1000}$"}}}}]}`
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, in.ID, result)
}

// Only the entries of a list that are no tools, and those that share a name, are left out.
func TestOffendingEntriesOfListAreLeftOut(t *testing.T) {
	web := func(answer func(http.ResponseWriter, string)) Config {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			switch text := oddAnswer(b); {
			case r.Method != http.MethodPost:
				w.WriteHeader(http.StatusMethodNotAllowed)
			case text == "":
				w.WriteHeader(http.StatusAccepted)
			default:
				answer(w, text)
			}
		}))
		t.Cleanup(h.Close)
		return Config{URL: h.URL}
	}
	asJSON := web(func(w http.ResponseWriter, text string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, text)
	})
	asEvents := web(func(w http.ResponseWriter, text string) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: message\r\ndata: %s\r\n\r\n", text)
	})
	for name, c := range map[string]Config{"process": command("odd"), "json": asJSON, "events": asEvents} {
		t.Run(name, func(t *testing.T) {
			b := start(t, t.TempDir(), map[string]Config{"odd": c})
			b.up("odd")
			if all := names(b.Tools()); !slices.Equal(all, []string{"odd.bad.schema", "odd.good"}) {
				t.Errorf("got %v", all)
			}
			b.want(b.call(t.Context(), "odd.good", "x"), 0, "fine")
			log := b.waitForLog("odd.bad.schema: /properties/a/pattern")
			for _, reason := range []string{"entry 2: is no tool", "entry 4: is no tool", `entry 5 (name [\"x\"]): is no tool`, `entry 6 (name \"late\"): is no tool`, `\"twice\": 2 tools have this name`, "count=5"} {
				if !strings.Contains(strings.ReplaceAll(log, `\\`, ``), reason) {
					t.Errorf("the log lacks %s:\n%s", reason, log)
				}
			}
		})
	}
}

// The schema of a tool is that of an object, also if it does not say so, and its whole numbers keep
// their digits.
func TestSchemasOfEntries(t *testing.T) {
	for entry, want := range map[string]string{
		`{"name":"a"}`:                                                                  `{"type":"object"}`,
		`{"name":"a","inputSchema":null}`:                                               `{"type":"object"}`,
		`{"name":"a","inputSchema":{}}`:                                                 `{"type":"object"}`,
		`{"name":"a","inputSchema":{"type":"object"}}`:                                  `{"type":"object"}`,
		`{"name":"a","inputSchema":{"properties":{}}}`:                                  `{"properties":{},"type":"object"}`,
		`{"name":"a","inputSchema":{"type":["object"]}}`:                                `{"type":"object"}`,
		`{"name":"a","inputSchema":{"type":"string"}}`:                                  `{"type":"string"}`,
		`{"name":"a","inputSchema":true}`:                                               `true`,
		`{"name":"a","inputSchema":{"type":"object","maxProperties":9007199254740993}}`: `{"maxProperties":9007199254740993,"type":"object"}`,
	} {
		tool, reason := readEntry(jsontext.Value(entry))
		if got := string(objectSchema(tool.InputSchema)); reason != "" || got != want {
			t.Errorf("%s: got %s %s, want %s", entry, got, reason, want)
		}
	}
}
