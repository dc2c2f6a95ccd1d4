// SPDX-License-Identifier: Apache-2.0

package command

import "github.com/troupe-run/troupe/actor"

// Bounds of the decoder. FrameBytesMax bounds the sum.
const (
	listMax  = 1 << 20 // elements of a list
	textMax  = 1 << 20 // a text in bytes
	bytesMax = FrameBytesMax
)

type encoder struct{ actor.Encoder }

type decoder struct{ *actor.Decoder }

func (d *decoder) text() string { return d.String(textMax) }

// require records an error unless ok.
func (d *decoder) require(ok bool, problem string) {
	if !ok {
		d.Fail("%s", problem)
	}
}

func (e *encoder) principal(p actor.Principal) {
	e.String(p.Tenant)
	e.String(p.User)
	e.String(p.Key)
	e.Uint(uint64(len(p.Scopes)))
	for _, scope := range p.Scopes {
		e.String(scope)
	}
}

// principal reads a principal within its bounds.
func (d *decoder) principal() actor.Principal {
	p := actor.Principal{Tenant: d.String(actor.NameBytesMax), User: d.String(actor.PrincipalTextBytesMax), Key: d.String(actor.PrincipalTextBytesMax)}
	for range d.Count(actor.PrincipalScopesMax, "scopes") {
		p.Scopes = append(p.Scopes, d.String(actor.NameBytesMax))
	}
	if err := p.Check(); err != nil && d.Err() == nil {
		d.Fail("%v", err)
	}
	return p
}
