// SPDX-License-Identifier: Apache-2.0

package actor

import "fmt"

// Principal is the authenticated origin of a command. The gateway makes it once for
// each request, and the command carries it.
type Principal struct {
	Tenant string   // tenant of every actor and run that the command names
	User   string   // user that the command acts for
	Scopes []string // permissions; shared, MUST NOT be changed
	Key    string   // ID of the API key, if any
}

// Bounds of a principal.
const (
	PrincipalScopesMax     = 16
	PrincipalTextBytesMax  = 80 // a user, or the ID of a key
	principalScopeBytesMax = NameBytesMax
)

// NewPrincipal returns a principal in the default tenant.
func NewPrincipal(user, key string, scopes ...string) Principal {
	return Principal{Tenant: DefaultTenant, User: user, Key: key, Scopes: scopes}
}

// ID returns an actor ID in the principal's tenant. An empty key means DefaultKey.
func (p *Principal) ID(agent, key string) ID {
	if key == "" {
		key = DefaultKey
	}
	return ID{Tenant: p.Tenant, Agent: agent, Key: key}
}

// Check returns an error if the principal exceeds a bound or names no tenant.
func (p *Principal) Check() error {
	if err := CheckName(p.Tenant); err != nil {
		return fmt.Errorf("principal: tenant %w", err)
	}
	if len(p.User) > PrincipalTextBytesMax || len(p.Key) > PrincipalTextBytesMax {
		return fmt.Errorf("principal: user and key may have %d bytes each", PrincipalTextBytesMax)
	}
	if len(p.Scopes) > PrincipalScopesMax {
		return fmt.Errorf("principal: %d scopes, at most %d allowed", len(p.Scopes), PrincipalScopesMax)
	}
	for _, s := range p.Scopes {
		if len(s) > principalScopeBytesMax {
			return fmt.Errorf("principal: a scope may have %d bytes", principalScopeBytesMax)
		}
	}
	return nil
}

// CheckTenant returns a refusal if an actor belongs to another tenant. It does not
// reveal whether the actor exists.
func (p *Principal) CheckTenant(id ID) *Refusal {
	if id.Tenant == p.Tenant {
		return nil
	}
	return Refuse(NotFound, "no agent is named %s; see GET /v1/agents", id.Agent)
}
