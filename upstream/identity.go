// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Identity is the origin of a call of a tool, for the server that performs the call. Nothing in it comes
// from a model or from the arguments of the call.
type Identity struct{ User, Session, Agent, Run string }

// IdentityOf returns the identity in the tool calls of a run, from the call that the run answers.
func IdentityOf(run *actor.Call) Identity {
	return Identity{run.Principal, run.To.Key, run.To.Agent, run.ID.String()}
}

// identityNames are the placeholders of an identity, in the order of its fields.
var identityNames = []string{"user", "session", "agent", "run"}

// value returns the value of a placeholder; false if it is none of an identity.
func (i *Identity) value(name string) (string, bool) {
	at := slices.Index(identityNames, name)
	if at < 0 {
		return "", false
	}
	return [...]string{i.User, i.Session, i.Agent, i.Run}[at], true
}

// headers returns the headers that tell an identity.
func (i *Identity) headers() (all []Header) {
	for _, name := range identityNames {
		text, _ := i.value(name)
		all = append(all, Header{Name: identityPrefix + name, Value: headerText(text)})
	}
	return all
}

// IdentityHeader has the form of an identity that the server signed.
const IdentityHeader = identityPrefix + "identity"

// SignedCall is what a signed identity is bound to: one call of one tool.
type SignedCall struct {
	Tool      string
	URL       string // of the service, whose origin is the audience
	ID        string // of the call, the same if it is repeated
	Arguments []byte // in canonical JSON
	Left      actor.Duration
}

// identityPrefix begins the names of headers that the server alone sets.
const identityPrefix = "x-troupe-"

// headerText returns a text as the value of a header: each byte that is no visible ASCII character, and each
// percent sign, in percent encoding. So no user can end the header, and no two users look alike.
func headerText(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// fillHeaders returns headers with the placeholders of an identity replaced. Secrets stay as they are.
func (i *Identity) fillHeaders(all []Header) []Header {
	var pairs []string
	for _, name := range identityNames {
		text, _ := i.value(name)
		pairs = append(pairs, "{{"+name+"}}", headerText(text))
	}
	replacer := strings.NewReplacer(pairs...)
	all = slices.Clone(all)
	for at := range all {
		if !all[at].Secret {
			all[at].Value = replacer.Replace(all[at].Value)
		}
	}
	return all
}

// of returns the argument for a placeholder, or that of the identity; nil if it is absent or null.
func (a *arguments) of(p piece) *argument {
	if !p.isIdentity {
		return a.find(p.text)
	}
	if a.identity == nil {
		return nil
	}
	text, ok := a.identity.value(p.text)
	if !ok {
		return nil
	}
	quoted, err := jsontext.AppendQuote(nil, text)
	if err != nil {
		return nil
	}
	return &argument{name: "{{" + p.text + "}}", value: quoted}
}
