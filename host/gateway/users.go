// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// userHeader is the header with which a request names the user that it acts for.
const userHeader = "X-User-Id"

// userNamed returns the user in the header of a request; false if there is none.
func userNamed(h *fasthttp.RequestHeader) (user string, ok bool) {
	if all := h.PeekAll(userHeader); len(all) > 0 {
		return string(all[0]), true // checkFraming has refused a second one
	}
	return "", false
}

// actingFor returns the caller for a request that names its user in a header or field. A
// caller may repeat its own user. Only some may name another one.
func (c *caller) actingFor(user, field string) (*caller, *problem) {
	if user == c.User {
		return c, nil
	}
	if !c.Run.IsZero() { // the tenant is that of the run, whatever the request names
		if actor.InNamespace(user, c.Tenant) {
			return c, nil
		}
		return nil, forbiddenUser(field, "the request acts for a run of another user: omit "+field)
	}
	if err := actor.CheckNewUser(user); err != nil {
		return nil, invalid(http.StatusBadRequest, field, field+": "+err.Error())
	}
	if c.chats() && !c.namesUsers {
		return nil, ofOneUser(field)
	}
	if !c.namesUsers {
		return nil, forbiddenUser(field, fmt.Sprintf("the API key %s acts for %.80q only: omit %s, or use a key of `troupe keys create --act-as-user --data DIR`", c.Key, c.User, field))
	}
	other := *c
	other.User, other.Tenant, other.namedBy = user, actor.Namespace(user), c.shareKey()
	return &other, nil
}

// checkOwnName refuses a request that names a user and would act as the owner of that user's agents:
// a key that speaks for users does not own what is theirs.
func checkOwnName(c caller) *problem {
	if c.namedBy == "" || c.isAdmin() {
		return nil
	}
	return forbiddenUser(userHeader, fmt.Sprintf("agents and tools belong to the user of a key, and this request names %.80q: omit %s", c.User, userHeader))
}

// ofOneUser refuses a customer that names another user. It says what a customer can do, who makes no keys.
func ofOneUser(field string) *problem {
	return forbiddenUser(field, "these are the conversations of one user: omit "+field)
}

func forbiddenUser(field, detail string) *problem {
	p := newProblem(http.StatusForbidden, "forbidden_user", "forbidden user", detail)
	p.Field = field
	return p
}

// named returns the caller for a request. A header of the request may name its user. The parameter
// user may name the user whose namespace the request reads or changes.
func (c *caller) named(ctx *fasthttp.RequestCtx, path string) (_ *caller, p *problem) {
	if user, ok := userNamed(&ctx.Request.Header); ok {
		if c, p = c.actingFor(user, userHeader); p != nil {
			return nil, p
		}
	}
	if ctx.QueryArgs().Has(userParam) {
		return c.in(string(ctx.QueryArgs().Peek(userParam)), slices.Contains(listRoutes, path) || path == approvalRoute && ctx.IsGet())
	}
	return c, nil
}

// userParam is the query parameter with which an operator names the user whose namespace a
// request is about. The request keeps its own user.
const userParam = "user"

// userShown returns the user whose namespace a request is about.
func userShown(ctx *fasthttp.RequestCtx, by *caller) string {
	if user := string(ctx.QueryArgs().Peek(userParam)); user != "" {
		return user
	}
	return by.User
}

// listRoutes are the routes of the lists that may be those of ingress.EveryUser.
var listRoutes = []string{runsRoute, approvalsRoute, toolCallsRoute, schedulesRoute, usageRoute}

// in returns the caller in the namespace of another user, or for one of listRoutes and for an approval in those of
// ingress.EveryUser.
func (c *caller) in(user string, every bool) (*caller, *problem) {
	namespace, err := actor.FindNamespace(user)
	switch {
	case user == ingress.EveryUser && every:
		namespace, err = user, nil
	case user == ingress.EveryUser:
		err = errors.New("want one user: only GET " + strings.Join(listRoutes, ", GET ") + " show those of all")
	}
	switch {
	case err != nil:
		return nil, invalid(http.StatusBadRequest, userParam, userParam+": "+err.Error())
	case namespace == c.Tenant:
		return c, nil
	case c.chats() && !c.namesUsers:
		return nil, ofOneUser(userParam)
	case !ingress.Allows(c.Principal, ingress.ScopeOperator) && (!c.namesUsers || user == ingress.EveryUser):
		return nil, newProblem(http.StatusForbidden, "forbidden_scope", "forbidden scope",
			fmt.Sprintf("the parameter %s needs the scope %s; `troupe keys create --scope %[2]s --data DIR` makes a key that has it", userParam, ingress.ScopeOperator))
	}
	other := *c
	other.Tenant = namespace
	return &other, nil
}

// actFor makes a request act for the user in its body.
func actFor(ctx *fasthttp.RequestCtx, user string) *problem {
	if named, ok := userNamed(&ctx.Request.Header); ok && named != user {
		return invalid(http.StatusBadRequest, "user_id", "user_id: differs from the header "+userHeader+", which means the same: want one of them")
	}
	by := callerOf(ctx)
	c, p := by.actingFor(user, "user_id")
	if p == nil {
		ctx.SetUserValue(callerKey, c)
	}
	return p
}
