// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// TokensCmd groups the commands about tokens for browsers.
type TokensCmd struct {
	Create TokensCreateCmd `cmd:"" help:"Issue a token with which a page in a browser talks to agents for a short time."`
}

// TokensCreateCmd issues a client token.
type TokensCreateCmd struct {
	ServerFlags
	User    string        `required:"" help:"User that the page acts for."`
	Agent   []string      `required:"" placeholder:"NAME" help:"Agent that the page may talk to. Repeatable."`
	Origin  string        `placeholder:"URL" help:"Origin of the page, such as https://shop.example: pages of others are refused."`
	Expires time.Duration `default:"1h" help:"Validity in whole minutes, at most 24h (${default})."`
	JSON    bool          `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (TokensCreateCmd) Help() string {
	return `Prints only the token to standard output. It needs a key with the scope operator, in TROUPE_KEY, and ends with that key.
Its holder has the rights of the scope chat: it sends messages to these agents and reads the conversations of the user,
and sees no tool, prompt or token count. A token belongs in the header Authorization: Bearer TOKEN, never in a URL.

Examples:
  troupe tokens create --user alice --agent front
  TROUPE_KEY=$(troupe keys create --data data --scope operator) troupe tokens create --user alice --agent front
  troupe tokens create --user alice --agent front --origin https://shop.example --expires 30m`
}

// Run executes the command.
func (c *TokensCreateCmd) Run(s streams) error {
	if c.Expires < time.Minute || c.Expires%time.Minute != 0 {
		return errors.New("--expires: want whole minutes, for example 30m")
	}
	_, body, err := c.client().post("/v1/tokens", struct {
		User    string   `json:"user"`
		Agents  []string `json:"agents"`
		Origin  string   `json:"origin,omitzero"`
		Minutes int64    `json:"minutes"`
	}{c.User, c.Agent, c.Origin, int64(c.Expires / time.Minute)})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, body)
	}
	var made struct {
		Token   string   `json:"token"`
		Agents  []string `json:"agents"`
		Expires string   `json:"expires_at"`
	}
	if err := json.Unmarshal(body, &made); err != nil {
		return err
	}
	fmt.Fprintf(s.err, "token of %s for %s until %s; it is shown only once:\n", c.User, strings.Join(made.Agents, ", "), made.Expires)
	_, err = fmt.Fprintln(s.out, made.Token)
	return err
}
