// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// verify checks a token as a service does that has read RFC 7515, 7517 and 8037 and nothing of this program.
func verify(t *testing.T, keySet []byte, token string) (claims map[string]any, kid string, ok bool) {
	t.Helper()
	var set struct {
		Keys []struct{ Kty, Crv, X, Kid, Alg string }
	}
	if err := json.Unmarshal(keySet, &set); err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%d parts", len(parts))
	}
	decode := func(text string) []byte {
		b, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var header struct{ Alg, Kid, Typ string }
	if err := json.Unmarshal(decode(parts[0]), &header); err != nil || header.Alg != "EdDSA" || header.Typ != "JWT" {
		t.Fatalf("%+v %v", header, err)
	}
	if err := json.Unmarshal(decode(parts[1]), &claims); err != nil {
		t.Fatal(err)
	}
	for _, k := range set.Keys {
		if k.Kid == header.Kid && k.Kty == "OKP" && k.Crv == "Ed25519" && k.Alg == "EdDSA" {
			return claims, k.Kid, ed25519.Verify(ed25519.PublicKey(decode(k.X)), []byte(parts[0]+"."+parts[1]), decode(parts[2]))
		}
	}
	return claims, header.Kid, false
}

func TestSignedIdentity(t *testing.T) {
	s := Signer{Secret: []byte(strings.Repeat("s", 32))}
	now := actor.Time(time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC).UnixNano())
	call := &SignedIdentity{User: "alice", Session: "s-1", Agent: "front", Run: "r-1", Tool: "orders", URL: "HTTPS://Shop.Example:443/x?y=https://evil.example", Call: "c-1", Arguments: []byte(`{}`), Left: time.Minute}
	claims, kid, ok := verify(t, s.KeySet(now), s.Sign(call, now))
	if !ok {
		t.Fatal("the signature is invalid")
	}
	for name, want := range map[string]any{"iss": "troupe", "aud": "https://shop.example", "sub": "alice", "tool": "orders", "session": "s-1", "agent": "front", "run": "r-1", "jti": "c-1",
		"args_sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", "iat": 1801396800.0, "exp": 1801396920.0} {
		if claims[name] != want {
			t.Errorf("%s is %v, want %v", name, claims[name], want)
		}
	}
	call.Left = 90 * 24 * time.Hour
	if claims, _, _ := verify(t, s.KeySet(now), s.Sign(call, now)); claims["exp"].(float64)-claims["iat"].(float64) > 3660 {
		t.Errorf("it lives from %v to %v", claims["iat"], claims["exp"])
	}
	for url, want := range map[string]string{"http://h:8080/a": "http://h:8080", "http://h:80": "http://h", "https://h:80/": "https://h:80", "http://h/{{user}}@evil": "http://h", "http://[::1]:9/x": "http://[::1]:9", "https://a.example#@b": "https://a.example"} {
		call.URL = url
		if claims, _, _ := verify(t, s.KeySet(now), s.Sign(call, now)); claims["aud"] != want {
			t.Errorf("%s has the audience %v, want %s", url, claims["aud"], want)
		}
	}
	// A forged token: another claim, another algorithm, another secret.
	token := s.Sign(call, now)
	parts := strings.Split(token, ".")
	raw, _ := base64.RawURLEncoding.DecodeString(parts[1])
	other := base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(raw), "alice", "bobby", 1)))
	if _, _, ok := verify(t, s.KeySet(now), parts[0]+"."+other+"."+parts[2]); ok {
		t.Error("a changed user is accepted")
	}
	if _, _, ok := verify(t, s.KeySet(now), (Signer{Secret: []byte(strings.Repeat("x", 32))}).Sign(call, now)); ok {
		t.Error("the token of another store is accepted")
	}
	// Rotation: a copy of the key set knows the next key before it signs, and the last one afterwards.
	const month = 30 * 24 * time.Hour
	seen := map[string]bool{kid: true}
	for _, later := range []time.Duration{month, 2 * month} {
		token := s.Sign(call, now.Add(later))
		_, id, ok := verify(t, s.KeySet(now.Add(later-month)), token)
		if _, _, after := verify(t, s.KeySet(now.Add(later+month)), token); !ok || !after || seen[id] {
			t.Errorf("after %v: known before %t, after %t, a key of before %t", later, ok, after, seen[id])
		}
		if _, _, ok := verify(t, s.KeySet(now.Add(later+2*month)), token); ok {
			t.Errorf("after %v: the key is still in the set two periods later", later)
		}
		seen[id] = true
	}
}
