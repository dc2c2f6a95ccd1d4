// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/invariant"
)

// clerk is who looks after agents and API keys: it has the registry do one thing
// after the other, asks again until it is told what came of it, and holds the
// registry to what it was told. Of what it asked twice, because an answer was
// lost, it expects nothing any more: the first may yet come behind what follows.
type clerk struct {
	w        *World
	there    map[string]bool // agents, as the registry has said
	passes   []*pass
	orders   StreamID        // that it gave
	begun    actor.Time      // the last of them
	doubtful map[string]bool // what lost answers were about
}

// order is one thing that the registry is asked.
type order struct {
	operation string
	who       string // in whose name
	body      []byte
	about     string // the agent or key
	after     bool   // it is there afterwards
	wrong     []actor.Reason
	pass      *pass // that it is about
}

// pass is an API key with its text, which a client shows at the door.
type pass struct {
	key     ingress.Key
	text    string
	good    bool // the registry has said so
	revoked bool
}

// hireClerk has somebody look after the registry, if there is one.
func (w *World) hireClerk() {
	if !w.enlists() || w.plan.Plain {
		return
	}
	w.clerk = &clerk{w: w, there: map[string]bool{}, doubtful: map[string]bool{}}
	defer w.turn(w.turn(aboutClerk))
	w.after(w.plan.Orders, w.clerk.next)
}

// next has the clerk do the next thing.
func (k *clerk) next() {
	w := k.w
	if w.calm {
		return
	}
	k.orders++
	k.begun = w.now
	w.account(aboutClerk + k.orders)
	w.turn(aboutClerk)
	if w.choose.Given(1) == 0 { // a story that is told again may leave an order out, and takes as long
		w.after(max(time.Duration(w.choose.Given(0))*time.Microsecond, w.plan.Orders/4), k.next)
		return
	}
	o := k.draw()
	c := w.addClient(agents.RegistryID, o.operation+" "+o.about, 10*time.Second)
	c.key, c.order = "", o
	c.told = func(reply *actor.Reply) { k.told(c, reply) }
	w.ask(c)
}

// later has it do the next after a while.
func (k *clerk) later() {
	w := k.w
	wait := w.between(w.plan.Orders/4, w.plan.Orders)
	w.account(aboutClerk + k.orders)
	w.choose.Given(int((w.now.Sub(k.begun) + wait) / time.Microsecond))
	w.after(wait, k.next)
}

// request is the order as a door reads it.
func (o *order) request(c *client) (actor.Call, *actor.Refusal) {
	if refusal := ingress.Object(o.body); refusal != nil {
		return actor.Call{}, refusal
	}
	return actor.Call{To: c.to, Operation: o.operation, Left: c.left, Principal: o.who,
		Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: o.body}}}, nil
}

// told is what came of an order; nil: nobody knows.
func (k *clerk) told(c *client, reply *actor.Reply) {
	w, o := k.w, c.order
	defer w.turn(w.turn(aboutClerk))
	again := func() {
		k.doubtful[o.about] = true
		if c.tries >= triesMax || w.calm {
			k.later()
			return
		}
		w.asking++
		w.after(w.between(100*time.Millisecond, 2*time.Second), func() { w.asking--; w.ask(c) })
	}
	switch r := (*actor.Refusal)(nil); {
	case reply == nil:
		again()
		return
	case reply.Refusal != nil:
		if r = reply.Refusal; slices.Contains(o.wrong, r.Reason) {
			w.Stats.Sometimes[OrderRefused]++
			break
		}
		switch r.Reason {
		case actor.Invalid, actor.Rejected, actor.NotFound:
			if !k.doubtful[o.about] {
				w.violate(RegistryHolds, fmt.Sprintf("the registry refuses %s: %v", c.text, r))
			}
		case actor.Budget: // so many were there within a day
		default:
			again()
			return
		}
	case o.wrong != nil:
		if !k.doubtful[o.about] {
			w.violate(RegistryHolds, fmt.Sprintf("the registry takes %s: %s", c.text, o.body))
		}
	case reply.Status == actor.Succeeded && !k.doubtful[o.about]:
		k.holds(o)
		return
	}
	k.later()
}

// holds holds the registry to what it has said.
func (k *clerk) holds(o *order) {
	w := k.w
	there := slices.ContainsFunc(w.registered(), func(i actor.StateItem) bool { return i.Name == o.item() })
	if there != o.after {
		w.violate(RegistryHolds, fmt.Sprintf("the registry has said that %s is there (%v), and it is written down that it is not", o.item(), o.after))
		return
	}
	switch o.operation {
	case agents.OpCreateKey:
		w.Stats.Sometimes[KeyCreated]++
		o.pass.good = true
		k.later()
	case agents.OpRevokeKey:
		w.Stats.Sometimes[KeyRevoked]++
		o.pass.revoked = true
		k.later()
	default:
		w.Stats.Sometimes[[...]Point{AgentDeleted, AgentPut}[b2i(o.after)]]++
		k.there[o.about] = o.after
		k.visit(o)
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// item is the name under which the registry keeps what the order is about.
func (o *order) item() string {
	if o.pass != nil {
		return "key/" + o.about
	}
	return "agent/" + o.about
}

// visit asks the agent that an order was about, at any node: one that is there
// is found, and one that is not is not.
func (k *clerk) visit(o *order) {
	w := k.w
	c := w.addClient(actor.NewID(o.about, "s0"), "use "+clockTool, 5*time.Second)
	c.key = ""
	c.told = func(reply *actor.Reply) {
		defer w.turn(w.turn(aboutClerk))
		switch gone := reply != nil && reply.Refusal != nil && strings.HasPrefix(reply.Refusal.Detail, "no agent is named "+o.about); {
		case reply == nil:
		case gone && o.after:
			w.violate(RegistryHolds, fmt.Sprintf("the registry has taken in %s, and it is not found: %v", o.about, reply.Refusal))
		case !gone && !o.after && !lost(reply):
			w.violate(RegistryHolds, fmt.Sprintf("%s is deleted, and answers", o.about))
		case reply.Status == actor.Succeeded:
			w.Stats.Sometimes[EnlistedServed]++
		}
		k.later()
	}
	w.ask(c)
}

// lost tells whether a refusal says nothing of whom it was for.
func lost(reply *actor.Reply) bool {
	return reply.Refusal != nil && (reply.Refusal.Reason == actor.Busy || reply.Refusal.Reason == actor.Deadline || reply.Refusal.Reason == actor.Stopped || reply.Refusal.Reason == actor.Unavailable)
}

// draw is the next order.
func (k *clerk) draw() *order {
	w := k.w
	at := w.choose.Int(len(enlisted))
	name, kind := enlisted[at].name, enlisted[at].kind
	who := [...]string{agents.Operator, "client-1", "key:ab"}[w.choose.Int(3)]
	switch w.choose.Int(12) {
	default:
		o := &order{operation: agents.OpPut, who: who, about: name, after: true}
		if kind == actor.External {
			o.operation = agents.OpRegister
		}
		o.body = k.spec(name, kind)
		return o
	case 5, 6, 7:
		o := &order{operation: agents.OpDelete, who: who, about: name, body: named("agent_id", name)}
		if !k.there[name] {
			o.wrong = []actor.Reason{actor.NotFound}
		}
		return o
	case 8, 9:
		if p := k.create(); p != nil {
			return &order{operation: agents.OpCreateKey, who: who, about: p.key.ID, after: true, body: p.key.Encode(), pass: p}
		}
	case 10:
		if p := k.somePass(func(p *pass) bool { return p.good && !p.revoked }); p != nil {
			p.good = false // from now on nobody can say
			return &order{operation: agents.OpRevokeKey, who: who, about: p.key.ID, body: named("key_id", p.key.ID), pass: p}
		}
	case 11:
	}
	m := mistakes[w.choose.Int(len(mistakes))]
	native := w.plan.Agents[0].Name
	return &order{operation: m.operation, who: who, about: "no " + m.operation, body: []byte(strings.ReplaceAll(m.body, "NATIVE", native)), wrong: []actor.Reason{m.reason}}
}

func named(member, name string) []byte {
	return invariant.Must(json.Marshal(map[string]string{member: name}))
}

// somePass is one of those that are so; nil if none is.
func (k *clerk) somePass(so func(*pass) bool) *pass {
	if k == nil || len(k.passes) == 0 {
		return nil
	}
	at := k.w.choose.Int(len(k.passes))
	for i := range k.passes {
		if p := k.passes[(at+i)%len(k.passes)]; so(p) {
			return p
		}
	}
	return nil
}

// create draws a key, as a door does; nil if there are enough.
func (k *clerk) create() *pass {
	w := k.w
	if len(k.passes) == passesMax {
		return nil
	}
	var random [ingress.KeyRandomBytes]byte
	for i := 0; i < len(random); i += 8 {
		binary.LittleEndian.PutUint64(random[i:], w.chance())
	}
	scopes := [...][]ingress.Scope{{ingress.ScopeCall}, {ingress.ScopeAdmin}, {ingress.ScopeRead, ingress.ScopeCall}, {ingress.ScopeRead}}[w.choose.Int(4)]
	expires := actor.Time(0)
	if w.choose.Int(4) == 3 {
		expires = w.now.Add(time.Minute + w.between(0, time.Minute))
	}
	if s := &keySlips[w.choose.Int(len(keySlips))]; w.choose.Int(2) == 1 { // who wants a key mistypes it first
		if _, _, refusal := ingress.NewKey(random, s.name, s.scopes, w.now, w.now.Add(s.expires)); refusal == nil || refusal.Reason != actor.Invalid {
			w.violate(RegistryHolds, fmt.Sprintf("a key is made of %+v: %v", s, refusal))
			return nil
		}
	}
	key, text, refusal := ingress.NewKey(random, "key "+strconv.Itoa(len(k.passes)), scopes, w.now, expires)
	if refusal != nil {
		w.violate(RegistryHolds, "a key cannot be made: "+refusal.Error())
		return nil
	}
	p := &pass{key: key, text: text}
	k.passes = append(k.passes, p)
	return p
}

// keySlips are keys that are not made.
var keySlips = [...]struct {
	name    string
	scopes  []ingress.Scope
	expires actor.Duration
}{
	{"a", nil, time.Hour}, {"a", []ingress.Scope{ingress.ScopeRead, ingress.ScopeRead}, time.Hour}, {"a", []ingress.Scope{"all"}, time.Hour},
	{"a", []ingress.Scope{ingress.ScopeRead}, 0}, {"a", []ingress.Scope{ingress.ScopeRead}, -time.Hour},
	{"a\nb", []ingress.Scope{ingress.ScopeRead}, time.Hour}, {strings.Repeat("a", ingress.KeyNameBytesMax+1), []ingress.Scope{ingress.ScopeRead}, time.Hour},
}

// passesMax bounds the keys of a world.
const passesMax = 12

// spec draws what an agent is, as clients send it or as it stands in a file.
func (k *clerk) spec(name string, kind actor.AgentKind) []byte {
	w := k.w
	if kind == actor.External {
		spec := external(name, [...]string{agents.RetryNever, agents.RetrySafe}[w.choose.Int(2)])
		spec["concurrency"] = 1 + w.choose.Int(4)
		spec["limits"] = map[string]any{"invoke_timeout_ms": 5000 + w.choose.Int(5000)}
		return invariant.Must(json.Marshal(spec))
	}
	spec := declared(name, modelNames[w.choose.Int(2)], 3+w.choose.Int(3))
	spec["prompt"] = fmt.Sprintf("You are %s, in your version %d.", name, w.choose.Int(8))
	spec["description"] = "somebody whom the registry took in"
	if w.choose.Int(2) == 1 {
		spec["agents"] = [...][]string{{w.plan.Agents[0].Name, name}, {enlisted[0].name, enlisted[1].name}}[w.choose.Int(2)]
		spec["on_failure"] = [...]string{agents.ReturnError, agents.FailRun}[w.choose.Int(2)]
		spec["parameters"] = map[string]any{"temperature": 0.5, "max_tokens": 100 + w.choose.Int(100), "seed": 7}
		spec["capabilities"] = []string{"tools", "patience"}
		spec["tools"] = append(spec["tools"].([]string), "nobody.has")
	}
	if w.choose.Int(2) == 0 {
		return invariant.Must(json.Marshal(spec))
	}
	text := string(invariant.Must(toml.Marshal(spec)))
	if wrong := slips[w.choose.Int(len(slips))]; w.choose.Int(2) == 1 { // who writes a file mistypes it first
		_, err := agents.ReadTOML(tooMuch.Replace(strings.ReplaceAll(wrong, "SPEC", text)))
		if err == nil {
			w.violate(RegistryHolds, fmt.Sprintf("a file is read that says %q", wrong))
		} else {
			w.Stats.Sometimes[SlipTold]++
			w.log.world(w.now, "a file with a slip: %v", err)
		}
	}
	read := invariant.Must(agents.ReadTOML(text))
	if missing := read.AvailabilityWarnings(w.tools, modelNames[:1]); len(missing) > 0 {
		w.log.world(w.now, "%s: %s", &read, strings.Join(missing, "; "))
	}
	k.warn(read)
	body := read.Encode()
	w.keepSpecimen(specCodec, body)
	return body
}

// slips are files of agents as they are mistyped; SPEC is one that is right.
var slips = [...]string{
	"SPEC\nagnt_id = 1", "x = 1\nSPEC", "model_timeout_ms = 1\nSPEC", "temperature = 1\nSPEC", "[limits]\nstps = 3", "[limits]\nturns = 3",
	"name = 7", "name = true\n", "name = 1.5", "name = ['a']", "name = 2026-01-01", "name = \"\"", "name = 'a\tb'", "name =",
	"name = 'a'\nname = 'b'", "description = 'alone'",
	"name = 'two words'", "name = 'a'\nkind = 'other'", "name = 'a'\nkind = 3", "name = 'a'\nendpoint = 'nowhere'",
	"name = 'a'\nkind = 'external'",
	"name = 'a'\nendpoint = 'ftp://a.example'", "name = 'a'\nendpoint = 'http://'", "name = 'a'\nendpoint = 'http://me@a.example'",
	"name = 'a'\nendpoint = 'http://a.example/?q=1'", "name = 'a'\nendpoint = 'http://a.example:0'",
	"name = 'a'\nendpoint = 'http://a.example:99999999999999999999'", "name = 'a'\nendpoint = 'http://a_b..c'",
	"name = 'a'\nendpoint = 'http://[fe80::1%25eth0]'", "name = 'a'\nendpoint = 'http://%zz'", "name = 'a'\nendpoint = 'http://a b'",
	"name = 'a'\nendpoint = 'http://[1.2.3.4]'", "name = 'a'\nendpoint = 'http://[::ffff:1.2.3.4]'",
	"name = 'a'\nendpoint = 'http://1.2.3'", "name = 'a'\nendpoint = 'http://a.example.'",
	"name = 'a'\n[limits]\nmodel_timeout_ms = -1\ntool_timeout_ms = 1.5\ncall_timeout_ms = 0",
	"a.b.c.d.e.f.g.h.i.j.k = 1", "a = '[[[[[[[[[' # [[[[[[[[[\nb = \"\"\"[[[[[[[[[", "name = 'a'\nprompt = 'SOURCE'",
	"name = 'a'\nprompt = \"KEPT\"", "name = 'a'\nMEMBERS", "name = 'a'\nWRONG", "name = 'a'\ntools = [TOOLS]", "name = 'NAME'",
	"name = 'a'\nendpoint = 'http://a.example'\nmodel = 'm'", "name = 'a'\nendpoint = 'http://a.example'\n[auth]\nenv = 'HOME'",
	"name = 'a'\nendpoint = 'http://a.example'\nauth = 'secret'", "name = 'a'\nlimits = 3",
	"name = 'a'\ntools = 'call_agent'", "name = 'a'\ntools = [1]", "name = 'a'\ntools = [['a']]", "name = 'a'\ntools = ['a', 'a']",
	"name = 'a'\ntools = ['troupe.announce']", "name = 'a'\ntools = ['a b']",
	"name = 'a'\nagents = ['b/s1']", "name = 'a'\n[limits]\nsteps = 0", "name = 'a'\n[limits]\nsteps = 'many'",
	"name = 'a'\n[parameters]\ntemperature = 3", "name = 'a'\n[parameters]\ntemperature = 'warm'", "a = [[[[[[[[[1]]]]]]]]]",
	"name = \"\"\"a\\\"\"\"\"\"\n# a comment\nx.y = 1", "[[name]]\na = 1",
}

// tooMuch makes files too long, each in its way: by what stands in them, by what
// is kept of it, by how much there is to say.
var tooMuch = strings.NewReplacer("SOURCE", strings.Repeat("a", agents.SourceBytesMax), "KEPT", strings.Repeat(`\u0001`, agents.SpecBytesMax/6+1),
	"MEMBERS", members(300), "WRONG", members(30), "TOOLS", strings.Repeat("'a', ", 100), "NAME", strings.Repeat("b", 100))

func members(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "m%d = 1\n", i)
	}
	return b.String()
}

// mistakes are orders that the registry does not take, and why. NATIVE is an
// agent of the program.
var mistakes = [...]struct {
	operation, body string
	reason          actor.Reason
}{
	{"agent.praise", `{}`, actor.Invalid},
	{agents.OpPut, `{"agent_id":"NATIVE","prompt":"be me"}`, actor.Rejected},
	{agents.OpPut, `{"agent_id":"troupe"}`, actor.Rejected},
	{agents.OpPut, `{"agent_id":"rex","endpoint":"http://rex.example"}`, actor.Invalid},
	{agents.OpRegister, `{"agent_id":"xeno"}`, actor.Invalid},
	{agents.OpPut, `{"agent_id":"rex","modle":"m"}`, actor.Invalid},
	{agents.OpPut, `{"agent_id":"rex","limits":{}, "tools":[{}]}`, actor.Invalid},
	{agents.OpPut, `{"agent_id":"rex","limits":[[1]], "turns":null, "durability":true, "name":1.5, "prompt":{}, "model":1e400}`, actor.Invalid},
	{agents.OpDelete, `{}`, actor.Invalid},
	{agents.OpDelete, `{"agent_id":"a/b"}`, actor.Invalid},
	{agents.OpDelete, `{"agent_id":"NATIVE"}`, actor.Rejected},
	{agents.OpDelete, `{"agent_id":"nobody"}`, actor.NotFound},
	{agents.OpCreateKey, `{"key_id":"k"}`, actor.Invalid},
	{agents.OpCreateKey, `{"key_id":"k","secret":"s"}`, actor.Invalid},
	{agents.OpRevokeKey, `{"key_id":"nobodys"}`, actor.NotFound},
	{agents.OpRevokeKey, `{}`, actor.Invalid},
}

// sentAway is a client whom the node's door does not let in. A key that the
// registry has said is revoked lets nobody in, and one that it has said is good
// whoever has it.
func (w *World) sentAway(n *node, c *client) bool {
	p := c.pass
	if p == nil {
		return false
	}
	admits := n.admits(p.text, ingress.ScopeCall)
	doubtful := w.clerk.doubtful[p.key.ID]
	switch {
	case admits && p.revoked && !doubtful:
		w.violate(RegistryHolds, fmt.Sprintf("%s lets client %d in with key %s, which is revoked", n.id, c.no, p.key.ID))
	case !admits && p.good && !p.revoked && !doubtful && p.key.Allows(ingress.ScopeCall) && !p.key.Expired(w.now.Add(w.plan.skew())):
		w.violate(RegistryHolds, fmt.Sprintf("%s sends client %d away with key %s, which is good", n.id, c.no, p.key.ID))
	}
	if admits {
		w.Stats.Sometimes[PassTaken]++
		return false
	}
	w.Stats.Sometimes[PassRefused]++
	w.log.world(w.now, "%s sends client %d away with key %s", n.id, c.no, p.key.ID)
	if c.told != nil {
		c.told(nil)
	}
	return true
}

// admits tells whether the door of a node lets in who shows this text.
func (n *node) admits(text string, scope ingress.Scope) bool {
	id, ok := ingress.KeyID(text)
	for i := range n.directory.keys {
		if k := &n.directory.keys[i]; ok && k.ID == id {
			return k.Matches(text) && !k.Expired(n.clock.now(n.w.now)) && k.Allows(scope)
		}
	}
	return false
}

// presents may have a client come with a key: mostly one that is good.
func (w *World) presents(c *client) {
	if w.clerk == nil || w.choose.Int(3) < 2 {
		return
	}
	all := w.choose.Int(4) == 3
	if c.pass = w.clerk.somePass(func(p *pass) bool { return all || p.good && !p.revoked && p.key.Allows(ingress.ScopeCall) }); c.pass != nil && w.choose.Int(12) == 11 {
		forged := *c.pass
		last := len(forged.text) - 1
		forged.text = [...]string{forged.text[:last] + "x", forged.text[:last], "", strings.ToUpper(forged.text)}[w.choose.Int(4)]
		forged.good = false
		c.pass = &forged
	}
}

// warn tells who writes a file of the calls that could go round, if it were taken
// in: each a path along which everybody names the next.
func (k *clerk) warn(spec agents.Spec) {
	w, specs := k.w, []agents.Spec{spec}
	if d := w.nodes[0].directory; d != nil {
		specs = append(slices.DeleteFunc(slices.Clone(d.Specs), func(s agents.Spec) bool { return s.ID == spec.ID }), spec)
	}
	loops := agents.CallCycles(specs)
	if slices.Contains(spec.Agents, spec.ID) && !slices.Contains(loops, spec.ID+" -> "+spec.ID) {
		w.violate(RegistryHolds, fmt.Sprintf("%s may call itself, and nobody is told: %q", spec.ID, loops))
	}
	for _, loop := range loops {
		w.Stats.Sometimes[LoopTold]++
		path := strings.Split(loop, " -> ")
		for i, to := range path[1:] {
			if !slices.ContainsFunc(specs, func(s agents.Spec) bool { return s.ID == path[i] && slices.Contains(s.Agents, to) }) {
				w.violate(RegistryHolds, fmt.Sprintf("it is said that calls could go %s, and %s may not call %s", loop, path[i], to))
			}
		}
	}
}
