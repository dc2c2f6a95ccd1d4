// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// A registration of an external agent may have the credential that the server sends to the agent, in the member
// auth. The gateway seals it before anything is stored, so journals, events, exports and logs hold ciphertext alone:
//
//  1. Only a holder of the secret of the store opens it.
//  2. It opens for the origin of the endpoint for which it was sealed, and for no other.
//  3. Equal credentials for one origin have equal texts, so a repeated registration changes nothing.

// authValueMax is the maximum length of a credential in bytes.
const authValueMax = 1 << 10

// authLabel separates the keys and the data of sealed credentials from other uses of the secret.
const authLabel = "troupe agent auth 1\n"

// agentAuth is the member auth of a registration, in one of the forms that clients send.
type agentAuth struct {
	Env      jsontext.Value `json:"env"`
	Type     string         `json:"type"`
	Token    string         `json:"token"`
	User     string         `json:"username"`
	Password string         `json:"password"`
	Header   string         `json:"header"`
	Value    string         `json:"value"`
}

const authForms = `want "TOKEN", {"type":"bearer","token":…}, {"type":"basic","username":…,"password":…}, {"type":"header","header":…,"value":…}, or {"env":"` + AuthEnvPrefix + `…"}`

// SealAuth replaces the credential in the body of a registration by its sealed form. A body without one is
// returned as it is; what else is wrong with it is for the registry to say. The refusal does not repeat the credential.
func SealAuth(secret, body []byte) ([]byte, *actor.Refusal) {
	var registration struct {
		Endpoint string         `json:"endpoint"`
		Auth     jsontext.Value `json:"auth"`
	}
	if json.Unmarshal(body, &registration) != nil || len(registration.Auth) == 0 {
		return body, nil
	}
	header, value, err := readAuth(registration.Auth)
	sealed := jsontext.Value("null")
	switch {
	case errors.Is(err, errNoSecret):
		return body, nil
	case err == nil && value != "":
		var text string
		if text, err = sealHeader(secret, registration.Endpoint, header, value); err == nil {
			sealed, err = json.Marshal(map[string]string{"sealed": text})
		}
	}
	if err != nil {
		return nil, &actor.Refusal{Reason: actor.Invalid, Field: "auth", Detail: "auth: " + err.Error()}
	}
	return replaceMember(body, "auth", sealed), nil
}

// errNoSecret means that an auth member has no secret to seal.
var errNoSecret = errors.New("no secret")

// readAuth returns the header of a credential; an empty value if the member asks for none.
func readAuth(raw jsontext.Value) (header, value string, err error) {
	switch raw.Kind() {
	case 'n':
		return "", "", errNoSecret
	case '"':
		var token string
		if json.Unmarshal(raw, &token) != nil {
			return "", "", errors.New(authForms)
		}
		header, value = bearer(token)
	case '{':
		var a agentAuth
		if err := json.Unmarshal(raw, &a, json.RejectUnknownMembers(true)); err != nil {
			return "", "", errors.New(authForms)
		}
		if header, value, err = a.credential(); err != nil {
			return "", "", err
		}
	default:
		return "", "", errors.New(authForms)
	}
	if value == "" {
		return "", "", nil
	}
	if len(value) > authValueMax {
		return "", "", fmt.Errorf("the credential has %d bytes, at most %d allowed", len(value), authValueMax)
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", "", errors.New("the credential has characters that no header can have: want printable ASCII")
	}
	return header, value, nil
}

// credential returns the header of one of the forms.
func (a *agentAuth) credential() (header, value string, err error) {
	only := func(used ...*string) bool { // no member of another form
		rest := *a
		rest.Type = ""
		for _, f := range used {
			switch f {
			case &a.Token:
				rest.Token = ""
			case &a.User:
				rest.User = ""
			case &a.Password:
				rest.Password = ""
			case &a.Header:
				rest.Header = ""
			case &a.Value:
				rest.Value = ""
			}
		}
		return len(rest.Env) == 0 && rest.Token+rest.User+rest.Password+rest.Header+rest.Value == ""
	}
	switch kind := strings.ToLower(a.Type); {
	case kind == "" && len(a.Env) > 0 && a.Token+a.User+a.Password+a.Header+a.Value == "":
		return "", "", errNoSecret
	case kind == "none" && only():
		return "", "", nil
	case (kind == "" || kind == "bearer") && a.Token != "" && only(&a.Token):
		header, value = bearer(a.Token)
		return header, value, nil
	case kind == "basic" && a.User != "" && !strings.Contains(a.User, ":") && only(&a.User, &a.Password):
		return "authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(a.User+":"+a.Password)), nil
	case (kind == "header" || kind == "api_key") && a.Value != "" && only(&a.Header, &a.Value):
		header = strings.ToLower(a.Header)
		if header == "" {
			header = "x-api-key"
		}
		if err := checkAuthHeader(header); err != nil {
			return "", "", err
		}
		return header, a.Value, nil
	}
	return "", "", errors.New(authForms)
}

// bearer returns the header of a token, which may name its scheme itself.
func bearer(token string) (header, value string) {
	scheme, _, ok := strings.Cut(token, " ")
	if token = strings.TrimSpace(token); token == "" || ok && (strings.EqualFold(scheme, "bearer") || strings.EqualFold(scheme, "basic")) {
		return "authorization", token
	}
	return "authorization", "Bearer " + token
}

// checkAuthHeader returns an error for a header with a meaning of its own in the protocol of external agents.
func checkAuthHeader(name string) error {
	if name == "authorization" {
		return nil
	}
	if err := CheckHeaderName(name); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	if strings.HasPrefix(name, "x-troupe-") || strings.HasPrefix(name, "x-run-") || name == "x-session-id" {
		return fmt.Errorf("header: %s is set by the server: choose another one", name)
	}
	return nil
}

// replaceMember returns an object with another value of a member.
func replaceMember(object []byte, name string, value jsontext.Value) []byte {
	d, out := jsontext.NewDecoder(bytes.NewReader(object)), []byte{'{'}
	_, err := d.ReadToken()
	for err == nil && d.PeekKind() == '"' {
		var member, old jsontext.Value
		if member, err = d.ReadValue(); err != nil {
			break
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(out, member...), ':')
		own := string(member) == `"`+name+`"`
		if old, err = d.ReadValue(); own {
			old = value
		}
		out = append(out, old...)
	}
	return append(out, '}')
}

// sealHeader returns the sealed form of a header for the origin of an endpoint.
func sealHeader(secret []byte, endpoint, name, value string) (string, error) {
	origin, err := authOrigin(endpoint), CheckURL(endpoint)
	if err != nil {
		return "", fmt.Errorf("endpoint: %w", err)
	}
	plain := []byte(name + "\n" + value)
	gcm, mac := authCipher(secret)
	mac.Write([]byte(origin + "\n"))
	mac.Write(plain)
	nonce := mac.Sum(nil)[:gcm.NonceSize()]
	return base64.RawURLEncoding.EncodeToString(gcm.Seal(nonce, nonce, plain, []byte(authLabel+origin))), nil
}

// OpenAuth returns the header in a sealed credential. It fails if the credential was sealed for another origin or
// with another secret.
func OpenAuth(secret []byte, endpoint, sealed string) (Header, error) {
	origin := authOrigin(endpoint)
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	gcm, _ := authCipher(secret)
	if err == nil && len(raw) < gcm.NonceSize() {
		err = errors.New("it is too short")
	}
	var plain []byte
	if err == nil {
		plain, err = gcm.Open(nil, raw[:gcm.NonceSize()], raw[gcm.NonceSize():], []byte(authLabel+origin))
	}
	name, value, ok := strings.Cut(string(plain), "\n")
	if err != nil || !ok {
		return Header{}, errors.New("its credential was registered for another address or at another server: register the agent again with auth")
	}
	return Header{Name: name, Value: value, Secret: true}, nil
}

// authCipher returns the cipher of sealed credentials, and a hash that makes nonces of what is sealed.
func authCipher(secret []byte) (cipher.AEAD, interface {
	Write([]byte) (int, error)
	Sum([]byte) []byte
}) {
	key := func(use string) []byte {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(authLabel + use))
		return mac.Sum(nil)
	}
	block, err := aes.NewCipher(key("key"))
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return gcm, hmac.New(sha256.New, key("nonce"))
}

// authOrigin returns scheme, host and port of a URL.
func authOrigin(endpoint string) string {
	b, _ := splitTarget(endpoint)
	if u, err := url.Parse(endpoint); err == nil && b == (binding{}) { // its path is one that splitTarget does not take
		u.Path, u.RawPath = "", ""
		b, _ = splitTarget(u.String())
	}
	return b.scheme + "://" + b.host + ":" + b.port
}
