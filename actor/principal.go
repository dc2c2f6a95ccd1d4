// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Principal is the authenticated origin of a command. The gateway makes it once for
// each request, and the command carries it.
type Principal struct {
	Tenant string   // namespace: the tenant of every actor and run that the command names
	User   string   // user that the command acts for
	Scopes []string // permissions; shared, MUST NOT be changed
	Key    string   // ID of the API key, if any
}

// Bounds of a principal.
const (
	PrincipalScopesMax     = 16
	PrincipalTextBytesMax  = 256 // a user, or the ID of a key; at most runs.NameBytesMax, so that no record shortens it
	principalScopeBytesMax = NameBytesMax
)

const (
	// LocalUser is the user of clients without a key.
	LocalUser = "local"
	// OperatorUser is the user of the node's own changes.
	OperatorUser = "operator"
	// KeyUserPrefix precedes the ID of an API key without a user: the key is a user of
	// its own.
	KeyUserPrefix = "key:"
	// userHashPrefix with userHashDigits hex digits is reserved for namespaces of users whose
	// names are not valid in an ID.
	userHashPrefix = "u-"
	userHashDigits = 16
)

// CheckUser returns an error if no API key may act for a user: a user is a name of 1 to
// PrincipalTextBytesMax bytes of printable UTF-8, and neither OperatorUser nor the user of a
// key without one.
func CheckUser(user string) error {
	switch {
	case user == "" || len(user) > PrincipalTextBytesMax:
		return fmt.Errorf("%.80q has %d bytes, want 1 to %d", user, len(user), PrincipalTextBytesMax)
	case !utf8.ValidString(user):
		return fmt.Errorf("%.80q is not UTF-8", user)
	case strings.ContainsFunc(user, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("%.80q has a character that cannot be printed: remove it", user)
	case user != strings.TrimSpace(user):
		return fmt.Errorf("%.80q begins or ends with a space: remove it", user)
	case user == OperatorUser || strings.HasPrefix(user, KeyUserPrefix):
		return reservedUser(user)
	}
	return nil
}

// CheckNewUser returns an error if no new API key may act for a user. In addition to
// CheckUser, it refuses the names of the runtime and of namespaces, because such a key would
// share the data of other clients. Keys of earlier versions may have them.
func CheckNewUser(user string) error {
	if err := CheckUser(user); err != nil {
		return err
	}
	if err := CheckUnreserved(user); err != nil {
		return err
	}
	lower := FoldName(user)
	if isUserHash(lower) || strings.HasPrefix(lower, KeyUserPrefix) || slices.Contains([]string{DefaultTenant, LocalUser, OperatorUser}, lower) {
		return reservedUser(user)
	}
	return nil
}

// isUserHash reports whether a name in lower case is the namespace of a hashed user.
func isUserHash(name string) bool {
	digits, ok := strings.CutPrefix(name, userHashPrefix)
	_, err := hex.DecodeString(digits)
	return ok && err == nil && len(digits) == userHashDigits
}

func reservedUser(user string) error {
	return fmt.Errorf("%.80q is reserved, as are %s, %s, %s, names that begin with %s, and %s with 16 hexadecimal digits; choose another name, such as alice",
		user, DefaultTenant, LocalUser, OperatorUser, KeyUserPrefix, userHashPrefix)
}

// Namespace returns the namespace of a user: the tenant of its actors. The namespace of a
// valid name is the name itself, so that an operator can read it; that of any other user is
// userHashPrefix and 16 hex digits of its SHA-256. No user gets DefaultTenant, which is the
// namespace of clients without a user, and two users share one only if these 64 bits collide.
func Namespace(user string) string {
	switch {
	case user == "":
		return DefaultTenant
	case CheckName(user) == nil && CheckNewUser(user) == nil:
		return user
	}
	sum := sha256.Sum256([]byte(user))
	return userHashPrefix + hex.EncodeToString(sum[:userHashDigits/2])
}

// FindNamespace returns the namespace with a name: that of a user, or a namespace as IDs have
// it. DefaultTenant is also that of LocalUser and of keys without user.
func FindNamespace(name string) (string, error) {
	switch {
	case name == DefaultTenant, name == LocalUser, strings.HasPrefix(name, KeyUserPrefix):
		return DefaultTenant, nil
	case isUserHash(name) && CheckName(name) == nil && strings.ToLower(name) == name:
		return name, nil
	}
	return Namespace(name), CheckNewUser(name)
}

// InNamespace reports whether a user acts in a namespace. Users whose names are reserved are
// those of clients without a user.
func InNamespace(user, namespace string) bool {
	return Namespace(user) == namespace || namespace == DefaultTenant && CheckNewUser(user) != nil
}

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
	if id.Tenant == p.Tenant || id.Tenant == DefaultTenant && id.Agent == SystemAgent { // the registry of agents and keys is that of all tenants
		return nil
	}
	return AgentNotFound(id.Agent)
}
