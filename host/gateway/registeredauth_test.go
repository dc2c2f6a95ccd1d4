// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
)

// A credential in a registration reaches the origin of the endpoint and nothing else: no answer, no event, no file.
func TestRegisteredCredential(t *testing.T) {
	const secret = "s3cr3t-credential-of-the-agent"
	dir := t.TempDir()
	seen := make(chan http.Header, 8)
	serve := func() *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/invoke" {
				return
			}
			seen <- r.Header.Clone()
			w.Header().Set("Content-Type", ingress.EventStream)
			b := runs.Frame{Name: "delta", Data: `{"text":"it is ` + r.Header.Get("authorization") + r.Header.Get("x-service-key") + `"}`}.Append(nil)
			_, _ = w.Write(runs.Frame{Name: "done", Data: `{}`}.Append(b))
		}))
		t.Cleanup(s.Close)
		return s
	}
	agent, other := serve(), serve()
	t.Run("registered", func(t *testing.T) {
		d := startGatewayOn(t, dir, Config{})
		register := func(endpoint, auth string, want int) string {
			t.Helper()
			status, _, body := d.do("POST", "/v1/agents/register", `{"agent_id":"outside","endpoint":"`+endpoint+`",`+auth+`"capabilities":{"streaming":true,"batch":false}}`)
			if status != want || strings.Contains(body, secret) {
				t.Errorf("%s: %d %s", auth, status, body)
			}
			return body
		}
		ask := func(header, value string) {
			t.Helper()
			status, _, body := d.do("POST", "/v1/agents/outside/messages", `{"content":"go"}`)
			if h := <-seen; status != 200 || h.Get(header) != value || strings.Contains(body, secret) {
				t.Errorf("%d %s; the agent got %v, want %s: %s", status, body, h, header, value)
			}
		}
		register(agent.URL, `"auth":{"type":"oauth","token":"`+secret+`"},`, 400)
		register(agent.URL, `"auth":"`+secret+`",`, 201)
		var first, again struct {
			Definition   string          `json:"definition"`
			Capabilities map[string]bool `json:"capabilities"`
		}
		d.doJSON(&first, "GET", "/v1/agents/outside", "")
		register(agent.URL, `"auth":"`+secret+`",`, 200)
		if d.doJSON(&again, "GET", "/v1/agents/outside", ""); first.Definition != again.Definition || !again.Capabilities["streaming"] {
			t.Errorf("got %+v, then %+v", first, again)
		}
		ask("authorization", "Bearer "+secret)
		register(other.URL, "", 200)
		ask("authorization", "")
		register(agent.URL, `"auth":{"type":"header","header":"X-Service-Key","value":"`+secret+`"},`, 200)
		ask("x-service-key", secret)
		for _, path := range []string{"/v1/agents", "/v1/agents/outside", "/v1/runs?limit=50", "/v1/events"} {
			if _, _, body := d.do("GET", path, ""); strings.Contains(body, secret) || strings.Contains(body, "sealed") {
				t.Errorf("GET %s: %s", path, body)
			}
		}
		if _, _, body := d.do("GET", "/v1/agents/outside", ""); !strings.Contains(body, `"auth":{"stored":true}`) {
			t.Errorf("got %s", body)
		}
	})
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("%s has the credential", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	d := startGatewayOn(t, dir, Config{})
	d.do("POST", "/v1/agents/outside/messages", `{"content":"go"}`)
	if h := <-seen; h.Get("x-service-key") != secret {
		t.Errorf("after a restart the agent got %v", h)
	}
}
