// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// sealedOf returns the sealed credential in the body of a registration.
func sealedOf(t *testing.T, body []byte) string {
	t.Helper()
	var out struct {
		Auth struct {
			Sealed string `json:"sealed"`
		} `json:"auth"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return out.Auth.Sealed
}

func TestSealAuth(t *testing.T) {
	secret := bytes.Repeat([]byte{7}, 32)
	const secretText = "s3cr3t-of-the-agent"
	for _, c := range []struct{ auth, header, value string }{
		{`"s3cr3t-of-the-agent"`, "authorization", "Bearer s3cr3t-of-the-agent"},
		{`"Bearer s3cr3t-of-the-agent"`, "authorization", "Bearer s3cr3t-of-the-agent"},
		{`{"token":"s3cr3t-of-the-agent"}`, "authorization", "Bearer s3cr3t-of-the-agent"},
		{`{"type":"Bearer","token":"s3cr3t-of-the-agent"}`, "authorization", "Bearer s3cr3t-of-the-agent"},
		{`{"type":"basic","username":"u","password":"s3cr3t-of-the-agent"}`, "authorization", "Basic dTpzM2NyM3Qtb2YtdGhlLWFnZW50"},
		{`{"type":"header","header":"X-Service-Key","value":"s3cr3t-of-the-agent"}`, "x-service-key", "s3cr3t-of-the-agent"},
		{`{"type":"api_key","value":"s3cr3t-of-the-agent"}`, "x-api-key", "s3cr3t-of-the-agent"},
	} {
		body := `{"agent_id":"a","endpoint":"http://One.example:80/x","auth":` + c.auth + `,"capabilities":["b"]}`
		sealed, r := SealAuth(secret, []byte(body))
		if r != nil {
			t.Errorf("%s: %v", c.auth, r)
			continue
		}
		again, _ := SealAuth(secret, []byte(body))
		if bytes.Contains(sealed, []byte(secretText)) || !bytes.Contains(sealed, []byte(`"capabilities":["b"]`)) || !bytes.Equal(sealed, again) {
			t.Errorf("%s: got %s, then %s", c.auth, sealed, again)
		}
		h, err := OpenAuth(secret, "http://one.example/y", sealedOf(t, sealed))
		if err != nil || h.Name != c.header || h.Value != c.value || !h.Secret {
			t.Errorf("%s: opened %+v, %v", c.auth, h, err)
		}
		other := bytes.Repeat([]byte{8}, 32)
		for _, wrong := range []struct {
			secret   []byte
			endpoint string
		}{{secret, "http://two.example"}, {secret, "https://one.example"}, {secret, "http://one.example:81"}, {other, "http://one.example"}} {
			if h, err := OpenAuth(wrong.secret, wrong.endpoint, sealedOf(t, sealed)); err == nil {
				t.Errorf("%s opens for %s: %+v", c.auth, wrong.endpoint, h)
			}
		}
	}
	for _, body := range []string{`{"endpoint":"http://a"}`, `{"endpoint":"http://a","auth":null}`, `{"endpoint":"http://a","auth":{"env":"TROUPE_AUTH_A"}}`, `[]`, `{"auth":"a","auth":"b"}`} {
		if out, r := SealAuth(secret, []byte(body)); r != nil || string(out) != body {
			t.Errorf("%s: got %s, %v", body, out, r)
		}
	}
	if out, r := SealAuth(secret, []byte(`{"endpoint":"http://a","auth":{"type":"none"}}`)); r != nil || sealedOf(t, out) != "" {
		t.Errorf("got %s, %v", out, r)
	}
	for _, auth := range []string{`1`, `[]`, `{"sealed":"x"}`, `{"type":"oauth2","token":"s3cr3t-of-the-agent"}`, `{"token":"s3cr3t-of-the-agent","password":"x"}`,
		`{"type":"basic","username":"a:b","password":"x"}`, `{"type":"header","header":"Host","value":"x"}`, `{"type":"header","header":"X-Run-Id","value":"x"}`,
		`{"type":"header","header":"X-Troupe-User","value":"x"}`, `"s3cr3t-of-the-agent\r\nx: y"`, `{"env":"TROUPE_AUTH_A","token":"s3cr3t-of-the-agent"}`, `"` + strings.Repeat("x", 2000) + `"`} {
		out, r := SealAuth(secret, []byte(`{"endpoint":"http://a","auth":`+auth+`}`))
		if r == nil || r.Field != "auth" || strings.Contains(r.Detail, secretText) {
			t.Errorf("%s: got %s, %v", auth, out, r)
		}
	}
}
