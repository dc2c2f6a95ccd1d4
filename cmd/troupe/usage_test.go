// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
)

// A report has the costs at the prices of the moments of the answers, says what it does not know, adds up to the runs, and
// is the same after a restart and in the data folder.
func TestUsage(t *testing.T) {
	var asked atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		body, _ := io.ReadAll(in.Body)
		if asked.Add(1) == 1 { // the first request fails, and its repetition counts once
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		usage := `data: {"choices":[],"usage":{"prompt_tokens":2006,"completion_tokens":300,"total_tokens":2306,"prompt_tokens_details":{"cached_tokens":1920}}}`
		if strings.Contains(string(body), `"silent"`) {
			usage = ": no usage"
		}
		writeEvents(w, `data: {"choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":"stop"}]}`, usage, "data: [DONE]")
	}))
	t.Cleanup(service.Close)
	dir := t.TempDir()
	data, config := filepath.Join(dir, "data"), filepath.Join(dir, "troupe.toml")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const models = "[models.big]\nurl = %[1]q\nretry_delay = \"1ms\"\nprice_input = %[2]s\nprice_cached_input = 1.25\nprice_output = 10\n" +
		"[models.silent]\nurl = %[1]q\nprice_input = 1\nprice_output = 1\n[models.free]\nurl = %[1]q\nprice_input = 0\nprice_output = 0\n[prices]\ncurrency = \"EUR\"\n"
	write("troupe.toml", fmt.Sprintf(models, service.URL+"/v1", "2.50"))
	for _, model := range []string{"big", "silent", "free", "scripted"} {
		write(model+".toml", fmt.Sprintf("name = \"%[1]s-agent\"\nmodel = \"%[1]s\"\nprompt = \"Answer.\"\n", model))
	}
	agents := filepath.Join(dir, "agents")
	if err := os.Mkdir(agents, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"big", "silent", "free", "scripted"} {
		if err := os.Rename(filepath.Join(dir, model+".toml"), filepath.Join(agents, model+".toml")); err != nil {
			t.Fatal(err)
		}
	}
	start := func() *server { return startServer(t, data, "--config", config, "--agents", agents) }
	s := start()
	send := func(agent string) {
		t.Helper()
		if status, err := s.request("POST", "/v1/agents/"+agent+"/messages", `{"content":"hi"}`, "", new(any)); err != nil || status != 200 {
			t.Fatal(status, err)
		}
	}
	report := func(flags ...string) (r usageReport) {
		t.Helper()
		code, out, errs := runProgram(t, append([]string{"usage", "--json"}, flags...)...)
		if code != 0 {
			t.Fatal(code, out, errs)
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err, out)
		}
		return r
	}
	for _, agent := range []string{"big-agent", "big-agent", "silent-agent", "free-agent", "scripted-agent"} {
		send(agent)
	}
	big := usageRow{Model: "big", Runs: 2, Answers: 2, Input: 4012, Cached: 3840, Output: 600, Total: 4612, Cost: 2 * (215 + 2400 + 3000)} // 86 × 2.5, 1920 × 1.25, 300 × 10
	got := report("--server", s.url, "--by", "model")
	want := []usageRow{big, {Model: "free", Runs: 1, Answers: 1, Input: 2006, Cached: 1920, Output: 300, Total: 2306},
		{Model: "scripted", Runs: 1, Answers: 1, Input: 3, Output: 3, Total: 6, Unpriced: 6}, {Model: "silent", Runs: 1, Answers: 1, Unmeasured: 1}}
	if fmt.Sprint(got.Rows) != fmt.Sprint(want) || got.Currency != "EUR" || got.Total.Cost != big.Cost || got.Total.Runs != 5 || got.Total.Unpriced != 6 {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// A new price changes no earlier answer.
	s.stop(syscall.SIGTERM)
	write("troupe.toml", fmt.Sprintf(models, service.URL+"/v1", "1000"))
	s = start()
	send("big-agent")
	got = report("--server", s.url, "--by", "model")
	if dear := big.Cost + 86*1000 + 2400 + 3000; got.Rows[0].Cost != dear {
		t.Errorf("after a change of the price: got %+v, want %d", got.Rows[0], dear)
	}
	var list struct {
		Runs []struct {
			Usage struct {
				Cost  int64 `json:"cost_micros"`
				Total int64 `json:"total_tokens"`
			} `json:"usage"`
		} `json:"runs"`
	}
	if _, err := s.request("GET", "/v1/runs?limit=200", "", "", &list); err != nil {
		t.Fatal(err)
	}
	cost, total := int64(0), int64(0)
	for _, r := range list.Runs {
		cost, total = cost+r.Usage.Cost, total+r.Usage.Total
	}
	if cost != got.Total.Cost || total != got.Total.Total {
		t.Errorf("the runs have %d tokens for %d, the report %+v", total, cost, got.Total)
	}
	code, out, errs := runProgram(t, "usage", "--server", s.url, "--by", "agent,day", "--limit", "1")
	if code != 0 || !strings.Contains(out, "COST EUR") || !strings.Contains(out, "0.102630") || !strings.Contains(errs, "--by agent,day") || !strings.Contains(errs, "--cursor c") {
		t.Errorf("table: %d\n%s%s", code, out, errs)
	}
	if _, out, errs := runProgram(t, strings.Fields(strings.TrimPrefix(strings.TrimSpace(errs), "next: troupe "))...); !strings.Contains(out, "free-agent") || strings.Contains(out, "big-agent") {
		t.Errorf("next page: %s%s", out, errs)
	}
	for by, want := range map[string]string{"color": "by", "day,day": "by", "day,": "by"} {
		if code, _, errs := runProgram(t, "usage", "--server", s.url, "--by", by); code == 0 || !strings.Contains(errs, want+": ") {
			t.Errorf("by %q: %d %s", by, code, errs)
		}
	}
	before := report("--server", s.url, "--by", "user,agent,model,day")
	s.stop(syscall.SIGTERM)
	if after := report("--data", data, "--by", "day,user,agent,model"); fmt.Sprint(after.Rows) != fmt.Sprint(before.Rows) || after.Total != before.Total {
		t.Errorf("in the data folder: got %+v, want %+v", after, before)
	}
}
