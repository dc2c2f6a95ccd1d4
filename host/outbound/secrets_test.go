// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// TestTruncationDoesNotSplitSecrets lets an upstream quote a secret at every
// position around the length at which each text is truncated.
func TestTruncationDoesNotSplitSecrets(t *testing.T) {
	const seen = 8 // leading bytes of a secret that reveal it
	for _, c := range []struct {
		name  string
		limit int // length at which the text is truncated
		quote func(w http.ResponseWriter, text string)
	}{
		{"connection lost", 512, func(w http.ResponseWriter, text string) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 "+text+"\r\n\r\n")
		}},
		{"status", 512, func(w http.ResponseWriter, text string) {
			w.WriteHeader(500)
			_, _ = fmt.Fprintf(w, `{"error":{"message":"%s"}}`, strings.ReplaceAll(text, "-", `\u002d`))
		}},
		{"code", upstream.NameBytesMax, func(w http.ResponseWriter, text string) {
			w.WriteHeader(400)
			_, _ = fmt.Fprintf(w, `{"error":{"code":%q}}`, text)
		}},
		{"media type", 80, func(w http.ResponseWriter, text string) { w.Header().Set("Content-Type", text); w.WriteHeader(200) }},
		{"content coding", 80, func(w http.ResponseWriter, text string) {
			w.Header().Set("Content-Encoding", text)
			writeStream(w, nil)
		}},
		{"error of a model", 512, func(w http.ResponseWriter, text string) {
			writeStream(w, fmt.Appendf(nil, "data: {\"error\":{\"message\":%q}}\n\n", text))
		}},
		{"error of an agent", 512, func(w http.ResponseWriter, text string) {
			writeStream(w, agentEvents(fmt.Sprintf(`error {"code":"x","message":%q}`, text)))
		}},
		{"member", 80, func(w http.ResponseWriter, text string) {
			writeStream(w, agentEvents(fmt.Sprintf(`delta {%q:1,%q:2}`, text, text)))
		}},
		{"run", 80, func(w http.ResponseWriter, text string) {
			writeStream(w, agentEvents(fmt.Sprintf(`delta {"text":"","run_id":%q}`, text)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pad := 0
				w := newFixture(t, Config{Models: oneModel("http://models.example/v1/"), Backoff: upstream.BackoffConfig{OpenAfter: 1 << 20}},
					func(w http.ResponseWriter, r *http.Request) {
						_, _ = io.ReadAll(r.Body)
						c.quote(w, strings.Repeat("x", pad)+strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
					})
				for pad = max(0, c.limit-160); pad < c.limit; pad++ {
					for secret, h := range map[string]*result{
						canary:     askModel(t.Context(), w.Outbound, "m", "hi", testTimeout),
						authCanary: invoke(t.Context(), w.Outbound, upstream.Target{URL: agentURL, AuthEnv: "TROUPE_AUTH_A"}, true, testTimeout),
					} {
						if h.Refusal == nil || h.Refusal.Reason == actor.Deadline {
							t.Fatalf("%v", h.Refusal)
						}
						if strings.Contains(h.allText(), secret[:seen]) {
							t.Fatalf("after %d bytes: %s", pad, h.allText())
						}
					}
				}
				w.close()
			})
		})
	}
}

// TestToolsDoNotQuoteSecrets lets a tool repeat the secret in its header, with other letters
// and escapes, in results and errors.
func TestToolsDoNotQuoteSecrets(t *testing.T) {
	escape := func(secret string) (text string) {
		for i, c := range secret {
			text += fmt.Sprintf(map[bool]string{true: `\u%04x`, false: `\u%04X`}[i%2 == 0], c)
		}
		return text
	}
	forms := map[string]func(string) string{"same": func(s string) string { return s }, "upper": strings.ToUpper, "lower": strings.ToLower, "escaped": escape}
	for name, c := range map[string]struct {
		media, body string // with %s for the secret
		status      int
		want        string
	}{
		"JSON":       {"application/json", `{"n":1.50,"seen":["Bearer %s"]}`, 200, `application/json {"n":1.50,"seen":["***"]}`},
		"name":       {"application/json", `{"%s":"\u0061"}`, 200, `application/json {"***":"\u0061"}`},
		"text":       {"text/plain", "seen %s.", 200, "text/plain seen ***."},
		"names":      {"application/json", `{"%[1]s":1,"x":{"%[1]s":1,"***":2}}`, 200, `text/plain {"***":1,"x":{"***":1,"***":2}}`},
		"media type": {"image/%s", "\x00", 200, "text/plain [image/***, 1 bytes]"},
		"error":      {"application/json", `{"error":"%s"}`, 400, `{"error":"***"}`},
	} {
		for form, of := range forms {
			if form == "escaped" && c.media != "application/json" {
				continue
			}
			t.Run(name+" "+form, func(t *testing.T) {
				f := newToolFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
					secret := of(strings.TrimPrefix(r.Header.Get("X-Key"), "Bearer "))
					w.Header().Set("Content-Type", strings.Replace(c.media, "%s", secret, 1))
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, strings.NewReplacer("%[1]s", secret, "%s", secret).Replace(c.body))
				})
				h := f.perform(t, tools.Declared{Headers: map[string]tools.Header{"X-Key": {Env: "TROUPE_AUTH_A"}}}, `{}`)
				if text := strings.ToLower(h.allText()); strings.Contains(text, strings.ToLower(authCanary)) || strings.Contains(text, strings.ToLower(escape(authCanary))) {
					t.Fatal(text)
				}
				if got := fmt.Sprint(h.Refusal) + h.allText(); len(h.Parts) == 1 {
					if got := h.Parts[0].Media + " " + string(h.Parts[0].Bytes); strings.Replace(got, "Bearer ***", "***", 1) != c.want {
						t.Errorf("%s, want %s", got, c.want)
					}
				} else if !strings.Contains(got, c.want) {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
		}
	}
}

// The head of a long result ends before a secret whose rest was not read.
func TestHeadOfResultHasNoPartOfSecret(t *testing.T) {
	pad := upstream.ToolResultBytesMax - len(authCanary)/2
	f := newToolFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, strings.Repeat("x", pad)+r.Header.Get("X-Key")+strings.Repeat("y", 1<<20))
	})
	h := f.perform(t, tools.Declared{Headers: map[string]tools.Header{"X-Key": {Env: "TROUPE_AUTH_A"}}}, `{}`)
	if text := string(h.Parts[0].Bytes); strings.Trim(text, "x") != "" || len(text) < pad-64<<10 {
		t.Errorf("%d bytes, end %q", len(text), text[max(len(text)-40, 0):])
	}
}

// A key in the place of the name of its variable is in no error.
func TestErrorsDoNotQuoteAKeyInPlaceOfItsName(t *testing.T) {
	for name, quoted := range map[string]bool{"EXAMPLE_API_KEY": true, "my_example_key_1": true, "sk_live_4eC39HqLyjWDarjtT1zdp7dc": false, "AbCdEf0123456789": false, "0123456789abcdef0123": false, "x9f8e7d6c5b4a39281": false} {
		c := Config{Models: map[string]Model{"m": {URL: "http://models.example/v1", KeyEnv: name}}, Env: func(string) (string, bool) { return "", false }}
		_, err := New(c)
		all := fmt.Sprint(err, c.Validate(), c.MissingSecrets())
		if err == nil || strings.Contains(all, name) != quoted {
			t.Errorf("%s: %s", name, all)
		}
	}
}
