// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"slices"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
)

// namesAfter requests a page of two names for a client of a tenant.
func namesAfter(tenant, cursor string, all ...string) ([]string, string, *problem) {
	ctx := &fasthttp.RequestCtx{}
	ctx.SetUserValue(callerKey, &caller{Principal: actor.Principal{Tenant: tenant}})
	ctx.QueryArgs().Set("limit", "2")
	ctx.QueryArgs().Set("cursor", cursor)
	return namesPage(ctx, nil, "agents", all, func(name *string) string { return *name })
}

// A list continues at the next name if the last name of its page was deleted, and
// includes names that were added.
func TestNamesContinueAfterDeletion(t *testing.T) {
	first, cursor, p := namesAfter("default", "", "a", "c", "e", "g")
	if p != nil || !slices.Equal(first, []string{"a", "c"}) || cursor == "" {
		t.Fatalf("first page: got %v, cursor %q, problem %v", first, cursor, p)
	}
	for _, c := range []struct{ all, want []string }{
		{[]string{"a", "c", "e", "g"}, []string{"e", "g"}},
		{[]string{"a", "e", "g"}, []string{"e", "g"}},
		{[]string{"a", "b", "d", "e", "g"}, []string{"d", "e"}},
		{[]string{"a"}, nil},
	} {
		if got, _, p := namesAfter("default", cursor, c.all...); p != nil || !slices.Equal(got, c.want) {
			t.Errorf("after c in %v: got %v, problem %v, want %v", c.all, got, p, c.want)
		}
	}
}

// The cursor of one tenant continues no list of another.
func TestNamesCursorBelongsToTenant(t *testing.T) {
	_, cursor, _ := namesAfter("default", "", "a", "b", "c")
	if got, _, p := namesAfter("default", cursor, "a", "b", "c"); p != nil || !slices.Equal(got, []string{"c"}) {
		t.Errorf("own cursor: got %v, problem %v", got, p)
	}
	if got, _, p := namesAfter("acme", cursor, "a", "b", "c"); p == nil || p.Status != 400 || !strings.Contains(p.Detail, "cursor") {
		t.Errorf("cursor of another tenant: got %v, problem %+v", got, p)
	}
}
