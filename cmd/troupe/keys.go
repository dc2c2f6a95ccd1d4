// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/internal/service"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// KeysCmd groups the commands that manage API keys.
type KeysCmd struct {
	Create KeysCreateCmd `cmd:"" help:"Create an API key; it is printed only once."`
	List   KeysListCmd   `cmd:"" help:"List the API keys."`
	Revoke KeysRevokeCmd `cmd:"" help:"Revoke an API key."`
}

// OwnerFlags selects a server or a data folder whose owner needs no API key.
type OwnerFlags struct {
	ServerFlags
	Data  string `type:"path" placeholder:"DIR" help:"Use this data folder, whether or not a server uses it; needs no API key."`
	Store string `env:"TROUPE_STORE" placeholder:"URL" help:"With --data: the store is in this PostgreSQL database."`
	Node  string `env:"TROUPE_NODE" default:"n1" help:"With --data: name of the folder's node (${default})."`
}

// key is an API key as the server returns it.
type key struct {
	ID       string   `json:"key_id"`
	Text     string   `json:"key,omitzero"`
	Name     string   `json:"name"`
	User     string   `json:"user,omitzero"`
	ActAs    bool     `json:"act_as_user,omitzero"`
	Scopes   []string `json:"scopes"`
	Created  string   `json:"created_at,omitzero"`
	Expires  string   `json:"expires_at,omitzero"`
	Expired  bool     `json:"expired,omitzero"`
	By       string   `json:"created_by,omitzero"`
	ByKey    string   `json:"created_by_key_id,omitzero"`
	Agents   []string `json:"agents,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// KeysCreateCmd creates an API key.
type KeysCreateCmd struct {
	OwnerFlags
	Name    string        `help:"Purpose of the key, shown in the list."`
	User    string        `help:"User that the key acts for, at most 256 bytes; several keys may share one. Users do not see each other's runs and sessions; all keys without a user share theirs."`
	ActAs   bool          `name:"act-as-user" help:"Each request with the key may name the user that it acts for, in the header X-User-Id or the field user_id of a message: for a service that has authenticated its users."`
	Scope   []string      `enum:"call,read,chat,agents,operator,admin" help:"Permission: call (send messages; signal, cancel; decide about tool calls), read (runs, events), chat (alone, with --user and --agent: talk to these agents as a customer, who sees no tool, prompt or token count), agents (create, register, delete; ask models), operator (with read and call: those of other users; tools; metrics; tokens for browsers), admin (all of these, and keys). Repeatable; default: admin for the first key if it has no --user, else call and read."`
	Agent   []string      `placeholder:"NAME" help:"Call and find this agent only; what it calls in turn is its own. Repeatable, with the scopes call, read and chat only; default: all agents."`
	Expires time.Duration `help:"Validity, for example 720h; unlimited if absent."`
	JSON    bool          `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (KeysCreateCmd) Help() string {
	return `Prints only the key to standard output. The store holds a digest of it: a lost key cannot be recovered.
Clients send the header Authorization: Bearer KEY; troupe itself reads the key from TROUPE_KEY.
The owner of the data folder creates keys with --data, also while the server runs; a folder that does not exist is
created. The first key is for admin unless it has --user or --scope: with it, --server creates others from elsewhere.

Examples:
  troupe keys create --data /var/lib/troupe --name operator
  troupe keys create --name ci --scope call --scope read --expires 720h
  troupe keys create --user alice@example.com
  troupe keys create --act-as-user --name chat-app
  troupe keys create --act-as-user --name website --agent front
  troupe keys create --user alice --agent front --scope chat
  TROUPE_KEY=$(troupe keys create --data data) troupe runs list`
}

// createsStore refuses a new store where an ingress runs: the keys are those of the orchestrator, and nothing would use the
// store. It warns if a server is at the address of the other commands: that one uses another store.
func (c *KeysCreateCmd) createsStore(s streams) error {
	if os.Getenv("TROUPE_ROLE") != roleIngress {
		c.warnUnused(s)
		return nil
	}
	return fmt.Errorf("%s has no store, and this is an ingress (TROUPE_ROLE): its keys are those of the orchestrator. Create the key there:\n  %s\nor through an ingress, with a key for admin:\n  %s", c.Data,
		hint("keys create", nil, []string{"--data", "FOLDER-OF-THE-ORCHESTRATOR"}), hint("keys create", nil, []string{"--server", c.url()}))
}

func (c *KeysCreateCmd) warnUnused(s streams) {
	to := client{server: c.url(), key: c.Key}
	ctx, cancel := context.WithTimeout(context.Background(), keylessProbe)
	defer cancel()
	if _, _, err := to.do(ctx, http.MethodGet, "/healthz", nil); err == nil {
		fmt.Fprintf(s.err, "warning: %s is a new store; the server at %s uses another one and does not know this key. To create one there:\n  %s\n", c.Data, c.url(), hint("keys create", nil, []string{"--server", c.url()}))
	}
}

// Run executes the command.
func (c *KeysCreateCmd) Run(s streams) error {
	if c.Expires < 0 {
		return errors.New("--expires: want a positive duration, for example 720h")
	}
	expires := actor.Time(0)
	if c.Expires > 0 {
		expires = actor.Time(time.Now().Add(c.Expires).UnixNano())
	}
	return c.withKeys(func() (dataDirKeys, error) { return openKeys(c.OwnerFlags, func() error { return c.createsStore(s) }) }, func(k keyStore) error {
		first := c.User != "" && hasNoUsers(k)
		made, err := k.create(newKey{c.Name, c.User, c.ActAs, c.Scope, c.Agent, expires})
		if err != nil {
			return err
		}
		for _, w := range made.Warnings {
			fmt.Fprintln(s.err, "warning:", w)
		}
		if c.JSON {
			return writeJSON(s.out, made)
		}
		why := ""
		if len(c.Scope) == 0 && slices.Contains(made.Scopes, string(ingress.ScopeAdmin)) {
			why = ", as the first key"
		}
		switch {
		case c.User == "" && c.ActAs:
			fmt.Fprintf(s.err, "requests that name no user act in the namespace %s and see the runs and sessions of all keys without --user\n", actor.DefaultTenant)
		case c.User == "":
			fmt.Fprintf(s.err, "without --user the key acts in the namespace %s and sees the runs and sessions of all such keys\n", actor.DefaultTenant)
		}
		if first && c.admitsKeyless(k) {
			fmt.Fprintf(s.err, "a server on loopback still lets clients on this machine that send no key act as any user, %s too; troupe serve --keyless=off ends that\n", c.User)
		}
		fmt.Fprintf(s.err, "key %s for %s%s; it is shown only once:\n", made.ID, strings.Join(made.Scopes, ", "), why)
		_, err = fmt.Fprintln(s.out, made.Text)
		return err
	})
}

// hasNoUsers reports whether no key has a user.
func hasNoUsers(k keyStore) bool {
	all, err := k.list()
	return err == nil && !slices.ContainsFunc(all, func(k key) bool { return k.User != "key:"+k.ID }) // that of a key without one
}

// admitsKeyless reports whether the server admits clients on this machine without a key. One that
// is not running does by default.
func (c *KeysCreateCmd) admitsKeyless(k keyStore) bool {
	if _, running := k.(serverKeys); !running {
		return true
	}
	to := c.client()
	to.key = ""
	if at, ok := service.URL(cmp.Or(c.Data, os.Getenv("TROUPE_DATA"), "data")); ok && (c.Data != "" || at == to.server) {
		to.server = at
	}
	ctx, cancel := context.WithTimeout(context.Background(), keylessProbe)
	defer cancel()
	_, _, err := to.do(ctx, http.MethodGet, "/v1/agents?limit=1", nil)
	return err == nil
}

// keylessProbe is the maximum time to find out whether a server admits clients without a key.
const keylessProbe = 2 * time.Second

// KeysListCmd lists the API keys.
type KeysListCmd struct {
	OwnerFlags
	JSON bool `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (KeysListCmd) Help() string {
	return "Examples:\n  troupe keys list\n  troupe keys list --data /var/lib/troupe --json"
}

// Run executes the command.
func (c *KeysListCmd) Run(s streams) error {
	return c.withKeys(func() (dataDirKeys, error) { return readKeys(c.OwnerFlags) }, func(k keyStore) error {
		all, err := k.list()
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(s.out, map[string][]key{"keys": all})
		}
		w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
		if isTerminal(s.out) && len(all) > 0 {
			fmt.Fprintln(w, "KEY\tSCOPES\tCREATED\tEXPIRY\tUSER\tNAME")
		}
		for _, k := range all {
			until := "does not expire"
			switch {
			case k.Expired:
				until = "expired " + k.Expires
			case k.Expires != "":
				until = "until " + localTime(k.Expires)
			}
			user := k.User
			if k.ActAs {
				user += ", any user"
			}
			if len(k.Agents) > 0 {
				user += ", only " + strings.Join(k.Agents, " ")
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, strings.Join(k.Scopes, ","), localTime(k.Created), until, user, k.Name)
		}
		return w.Flush()
	})
}

// KeysRevokeCmd revokes an API key.
type KeysRevokeCmd struct {
	OwnerFlags
	ID string `arg:"" help:"Key ID, as shown by keys list."`
}

// Help returns the text shown below the flags.
func (KeysRevokeCmd) Help() string {
	return `Refuses all further requests with the key, and ends its streams within a second.

Examples:
  troupe keys revoke 3f9c2a7b1d0e4c58`
}

// Run executes the command.
func (c *KeysRevokeCmd) Run(s streams) error {
	if err := actor.CheckName(c.ID); err != nil {
		return fmt.Errorf("key %w", err)
	}
	return c.withKeys(func() (dataDirKeys, error) { return openKeys(c.OwnerFlags, nil) }, func(k keyStore) error {
		warnings, err := k.revoke(c.ID)
		if err != nil {
			return err
		}
		for _, w := range warnings {
			fmt.Fprintln(s.err, "warning:", w)
		}
		fmt.Fprintf(s.err, "key %s is revoked\n", c.ID)
		return nil
	})
}

// forUser reports whether a key is that of one user.
func forUser(k ingress.Key) bool { return k.User != "" }

// keyStore is the set of API keys of a server or a data folder.
type keyStore interface {
	create(newKey) (key, error)
	list() ([]key, error)
	revoke(id string) (warnings []string, err error)
	close() error
}

// newKey describes a key to create.
type newKey struct {
	name, user string
	actAs      bool
	scopes     []string // empty: the default
	agents     []string // empty: all
	expires    actor.Time
}

// withKeys calls fn with the selected key store. A server that uses the data folder is
// asked on the folder's socket. Without one the callback open opens the folder, which is
// closed afterwards.
func (a OwnerFlags) withKeys(open func() (dataDirKeys, error), fn func(keyStore) error) error {
	if owner, ok := a.ownerClient(a.Data); ok {
		return fn(serverKeys{owner})
	}
	if a.Data == "" {
		return fn(serverKeys{a.client()})
	}
	keys, err := open()
	if err != nil {
		return storeError(a.Data, err, insteadOfData)
	}
	return errors.Join(fn(keys), keys.close())
}

// ownerClient returns a client on the socket of a data folder, if a server uses that
// folder. Without a folder and a key it tries the folder of a server started here,
// if that is the selected server.
func (a ServerFlags) ownerClient(dir string) (c client, ok bool) {
	if dir == "" {
		if a.Key != "" {
			return c, false
		}
		dir = cmp.Or(os.Getenv("TROUPE_DATA"), "data")
		if url, ok := service.URL(dir); !ok || url != strings.TrimSuffix(a.Server, "/") {
			return c, false
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), node.RegistryTimeout)
	defer cancel()
	probe, err := gateway.DialOwner(ctx, dir)
	if err != nil {
		return c, false
	}
	_ = probe.Close()
	return client{server: "http://localhost", http: gateway.OwnerClient(dir)}, true
}

// serverKeys is the key store of a server.
type serverKeys struct{ client }

func (k serverKeys) create(n newKey) (made key, err error) {
	expires := ""
	if n.expires != 0 {
		expires = runs.FormatTime(n.expires)
	}
	_, body, err := k.post("/v1/keys", struct {
		Name    string   `json:"name"`
		User    string   `json:"user,omitzero"`
		ActAs   bool     `json:"act_as_user,omitzero"`
		Scopes  []string `json:"scopes,omitempty"`
		Agents  []string `json:"agents,omitempty"`
		Expires string   `json:"expires_at,omitzero"`
	}{n.name, n.user, n.actAs, n.scopes, n.agents, expires})
	if err != nil {
		return key{}, err
	}
	return made, json.Unmarshal(body, &made)
}

func (k serverKeys) list() ([]key, error) {
	return allOf[key](k.client, "/v1/keys")
}

func (k serverKeys) revoke(id string) ([]string, error) {
	_, body, err := k.do(context.Background(), http.MethodDelete, "/v1/keys/"+url.PathEscape(id), nil)
	if err != nil {
		return nil, err
	}
	var out struct {
		Warnings []string `json:"warnings"`
	}
	return out.Warnings, json.Unmarshal(body, &out)
}

// dataDirKeys is the key store of a data folder. Its node runs without a gateway
// until close.
type dataDirKeys struct {
	node *node.Node // nil: the keys were read from the folder and cannot be changed
	keys *gateway.Keys
}

// openKeys starts the node of a data folder to use its registry only. Open runs of agents are
// left as they are: this node has no configuration with which they could continue. If the folder holds no store, it creates
// one unless create returns an error; nil: none.
func openKeys(o OwnerFlags, create func() error) (dataDirKeys, error) {
	if o.Store == "" {
		d, err := disk.Open(o.Data, "", disk.Options{ReadOnly: true})
		switch {
		case errors.Is(err, disk.ErrNoStore) && create != nil:
			if err := create(); err != nil {
				return dataDirKeys{}, err
			}
		case err != nil:
			return dataDirKeys{}, err
		default:
			if err = d.Close(); err != nil {
				return dataDirKeys{}, err
			}
		}
	}
	keys := new(gateway.Keys)
	n, err := node.Open(node.Config{Data: o.Data, Store: o.Store, Name: o.Node, Cells: 1, Limits: dispatcher.DefaultLimits(), Keys: keys, RegistryOnly: true}, slog.New(slog.DiscardHandler))
	return dataDirKeys{n, keys}, err
}

// readKeys reads the keys of a data folder, without changing it.
func readKeys(o OwnerFlags) (dataDirKeys, error) {
	var d interface {
		store.Reader
		Close() error
	}
	var err error
	if o.Store != "" {
		d, err = postgres.Open(o.Store, actor.NodeID(o.Node), postgres.Options{ReadOnly: true})
	} else {
		d, err = disk.Open(o.Data, actor.NodeID(o.Node), disk.Options{ReadOnly: true})
	}
	if err != nil {
		return dataDirKeys{}, err
	}
	keys := new(gateway.Keys)
	if err = node.ReadKeys(d, keys); err != nil {
		err = fmt.Errorf("store %s: %w", o.Data, err)
	}
	return dataDirKeys{keys: keys}, errors.Join(err, d.Close())
}

func (k dataDirKeys) close() error {
	if k.node == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), node.RegistryTimeout)
	defer cancel()
	return k.node.Close(ctx)
}

func (k dataDirKeys) create(n newKey) (key, error) {
	var random [ingress.KeyRandomBytes]byte
	_, _ = rand.Read(random[:]) // never fails
	var want []ingress.Scope
	if len(n.scopes) == 0 {
		want = ingress.DefaultScopes(k.keys.Count() == 0 && len(n.agents) == 0, n.user)
	}
	for _, s := range n.scopes {
		want = append(want, ingress.Scope(s))
	}
	made, text, r := ingress.NewKey(random, n.name, n.user, want, actor.Time(time.Now().UnixNano()), n.expires)
	if r != nil {
		return key{}, r
	}
	made.ActAsUser = n.actAs
	if r := made.LimitTo(n.agents); r != nil {
		return key{}, r
	}
	_, warnings, err := k.callRegistry(agents.OpCreateKey, made.Encode())
	if err != nil {
		return key{}, err
	}
	shown := keyView(made)
	shown.Text, shown.Warnings = text, warnings
	for _, name := range n.agents {
		if _, known := k.node.Agent(name); !known && !slices.ContainsFunc(agents.Builtin(), func(d actor.Definition) bool { return d.Name == name }) {
			shown.Warnings = append(shown.Warnings, agents.UnknownAgent(name))
		}
	}
	return shown, nil
}

func (k dataDirKeys) list() ([]key, error) {
	all := []key{}
	for _, apiKey := range k.keys.All() {
		all = append(all, keyView(apiKey))
	}
	return all, nil
}

func (k dataDirKeys) revoke(id string) ([]string, error) {
	body, err := json.Marshal(map[string]string{"key_id": id})
	if err != nil {
		return nil, err
	}
	_, warnings, err := k.callRegistry(agents.OpRevokeKey, body)
	return warnings, err
}

func (k dataDirKeys) callRegistry(operation string, body []byte) (answer []byte, warnings []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), node.RegistryTimeout)
	defer cancel()
	answer, warnings, err = k.node.CallRegistryForOwner(ctx, operation, body)
	if r := (*actor.Refusal)(nil); errors.As(err, &r) { // with the code that a server answers
		err = fmt.Errorf("%s: %s", r.Info().Type, r.Detail)
	}
	return answer, warnings, err
}

func keyView(k ingress.Key) key {
	out := key{ID: k.ID, Name: k.Name, User: k.Principal().User, ActAs: k.ActAsUser, Expired: k.Expired(actor.Time(time.Now().UnixNano())), By: k.CreatedBy, ByKey: k.CreatedByKey, Agents: k.Agents}
	for _, s := range k.Scopes {
		out.Scopes = append(out.Scopes, string(s))
	}
	if k.Created != 0 {
		out.Created = runs.FormatTime(k.Created)
	}
	if k.Expires != 0 {
		out.Expires = runs.FormatTime(k.Expires)
	}
	return out
}

func writeJSON(to io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return printJSON(to, body)
}

// decisionScope returns the scope that the table approvals of a configuration requires of
// decisions about tool calls, in addition to call.
func decisionScope(table map[string]string) (scope string, err error) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		switch scope = table[key]; {
		case key != "scope":
			return "", fmt.Errorf("%s is unknown; want scope", key)
		case scope == string(ingress.ScopeCall):
			scope = "" // required anyway
		case scope != string(ingress.ScopeOperator):
			return "", fmt.Errorf("scope: want %s or %s, got %.40q", ingress.ScopeCall, ingress.ScopeOperator, scope)
		}
	}
	return scope, nil
}
