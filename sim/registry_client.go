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

// registryClient is who looks after agents and API keys: it has the registry do one thing
// after the other, asks again until it is told what came of it, and holds the
// registry to what it was told. Of what it asked twice, because an answer was
// lost, it expects nothing any more: the first may yet come behind what follows.
type registryClient struct {
	w         *Simulation
	present   map[string]bool // agents, as the registry has said
	keys      []*apiKey
	opCount   StreamID        // that it gave
	opStarted actor.Time      // the last of them
	uncertain map[string]bool // what lost answers were about
}

// registryOp is one thing that the registry is asked.
type registryOp struct {
	operation    string
	principal    string // in whose name
	body         []byte
	subject      string // the agent or key
	present      bool   // it is there afterwards
	wantRefusals []actor.Reason
	key          *apiKey // that it is about
}

// apiKey is an API key with its text, which a client shows at the door.
type apiKey struct {
	record  ingress.Key
	secret  string
	valid   bool // the registry has said so
	revoked bool
}

// startRegistryClient has somebody look after the registry, if there is one.
func (w *Simulation) startRegistryClient() {
	if !w.hasRegistry() || w.plan.Plain {
		return
	}
	w.registryClient = &registryClient{w: w, present: map[string]bool{}, uncertain: map[string]bool{}}
	defer w.setStream(w.setStream(topicRegistry))
	w.after(w.plan.RegistryInterval, w.registryClient.runNext)
}

// runNext has the clerk do the next thing.
func (k *registryClient) runNext() {
	w := k.w
	if w.recovering {
		return
	}
	k.opCount++
	k.opStarted = w.now
	w.setCause(topicRegistry + k.opCount)
	w.setStream(topicRegistry)
	if w.entropy.Recorded(1) == 0 { // a story that is told again may leave an order out, and takes as long
		w.after(max(time.Duration(w.entropy.Recorded(0))*time.Microsecond, w.plan.RegistryInterval/4), k.runNext)
		return
	}
	o := k.drawOp()
	c := w.addClient(agents.RegistryID, o.operation+" "+o.subject, 10*time.Second)
	c.key, c.op = "", o
	c.onReply = func(reply *actor.Reply) { k.handleReply(c, reply) }
	w.submit(c)
}

// scheduleNext has it do the next after a while.
func (k *registryClient) scheduleNext() {
	w := k.w
	wait := w.between(w.plan.RegistryInterval/4, w.plan.RegistryInterval)
	w.setCause(topicRegistry + k.opCount)
	w.entropy.Recorded(int((w.now.Sub(k.opStarted) + wait) / time.Microsecond))
	w.after(wait, k.runNext)
}

// request is the order as a door reads it.
func (o *registryOp) request(c *client) (actor.Call, *actor.Refusal) {
	if refusal := ingress.CheckObject(o.body); refusal != nil {
		return actor.Call{}, refusal
	}
	return actor.Call{To: c.to, Operation: o.operation, Left: c.left, Principal: o.principal,
		Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: o.body}}}, nil
}

// handleReply is what came of an order; nil: nobody knows.
func (k *registryClient) handleReply(c *client, reply *actor.Reply) {
	w, o := k.w, c.op
	defer w.setStream(w.setStream(topicRegistry))
	again := func() {
		k.uncertain[o.subject] = true
		if c.tries >= triesMax || w.recovering {
			k.scheduleNext()
			return
		}
		w.retriesScheduled++
		w.after(w.between(100*time.Millisecond, 2*time.Second), func() { w.retriesScheduled--; w.submit(c) })
	}
	switch r := (*actor.Refusal)(nil); {
	case reply == nil:
		again()
		return
	case reply.Refusal != nil:
		if r = reply.Refusal; slices.Contains(o.wantRefusals, r.Reason) {
			w.Stats.Points[RegistryOpRefused]++
			break
		}
		switch r.Reason {
		case actor.Invalid, actor.Rejected, actor.NotFound:
			if !k.uncertain[o.subject] {
				w.fail(RegistryHolds, fmt.Sprintf("the registry refuses %s: %v", c.text, r))
			}
		case actor.Budget: // so many were there within a day
		default:
			again()
			return
		}
	case o.wantRefusals != nil:
		if !k.uncertain[o.subject] {
			w.fail(RegistryHolds, fmt.Sprintf("the registry takes %s: %s", c.text, o.body))
		}
	case reply.Status == actor.Succeeded && !k.uncertain[o.subject]:
		k.checkApplied(o)
		return
	}
	k.scheduleNext()
}

// checkApplied holds the registry to what it has said.
func (k *registryClient) checkApplied(o *registryOp) {
	w := k.w
	there := slices.ContainsFunc(w.loadRegistryItems(), func(i actor.StateItem) bool { return i.Name == o.itemName() })
	if there != o.present {
		w.fail(RegistryHolds, fmt.Sprintf("the registry has said that %s is there (%v), and it is written down that it is not", o.itemName(), o.present))
		return
	}
	switch o.operation {
	case agents.OpCreateKey:
		w.Stats.Points[APIKeyCreated]++
		o.key.valid = true
		k.scheduleNext()
	case agents.OpRevokeKey:
		w.Stats.Points[APIKeyRevoked]++
		o.key.revoked = true
		k.scheduleNext()
	default:
		w.Stats.Points[[...]Point{AgentDeleted, AgentPut}[boolIndex(o.present)]]++
		k.present[o.subject] = o.present
		k.checkAgent(o)
	}
}

func boolIndex(b bool) int {
	if b {
		return 1
	}
	return 0
}

// itemName is the name under which the registry keeps what the order is about.
func (o *registryOp) itemName() string {
	if o.key != nil {
		return "key/" + o.subject
	}
	return "agent/" + o.subject
}

// checkAgent asks the agent that an order was about, at any node: one that is there
// is found, and one that is not is not.
func (k *registryClient) checkAgent(o *registryOp) {
	w := k.w
	c := w.addClient(actor.NewID(o.subject, "s0"), "use "+clockTool, 5*time.Second)
	c.key = ""
	c.onReply = func(reply *actor.Reply) {
		defer w.setStream(w.setStream(topicRegistry))
		switch gone := reply != nil && reply.Refusal != nil && strings.HasPrefix(reply.Refusal.Detail, "no agent is named "+o.subject); {
		case reply == nil:
		case gone && o.present:
			w.fail(RegistryHolds, fmt.Sprintf("the registry has taken in %s, and it is not found: %v", o.subject, reply.Refusal))
		case !gone && !o.present && !inconclusive(reply):
			w.fail(RegistryHolds, fmt.Sprintf("%s is deleted, and answers", o.subject))
		case reply.Status == actor.Succeeded:
			w.Stats.Points[RegisteredAgentServed]++
		}
		k.scheduleNext()
	}
	w.submit(c)
}

// inconclusive tells whether a refusal says nothing of whom it was for.
func inconclusive(reply *actor.Reply) bool {
	return reply.Refusal != nil && (reply.Refusal.Reason == actor.Busy || reply.Refusal.Reason == actor.Deadline || reply.Refusal.Reason == actor.Stopped || reply.Refusal.Reason == actor.Unavailable)
}

// drawOp is the next order.
func (k *registryClient) drawOp() *registryOp {
	w := k.w
	at := w.entropy.Int(len(registeredAgents))
	name, kind := registeredAgents[at].name, registeredAgents[at].kind
	who := [...]string{agents.Operator, "client-1", "key:ab"}[w.entropy.Int(3)]
	switch w.entropy.Int(12) {
	default:
		o := &registryOp{operation: agents.OpPut, principal: who, subject: name, present: true}
		if kind == actor.External {
			o.operation = agents.OpRegister
		}
		o.body = k.drawSpec(name, kind)
		return o
	case 5, 6, 7:
		o := &registryOp{operation: agents.OpDelete, principal: who, subject: name, body: memberJSON("agent_id", name)}
		if !k.present[name] {
			o.wantRefusals = []actor.Reason{actor.NotFound}
		}
		return o
	case 8, 9:
		if p := k.createKey(); p != nil {
			return &registryOp{operation: agents.OpCreateKey, principal: who, subject: p.record.ID, present: true, body: p.record.Encode(), key: p}
		}
	case 10:
		if p := k.pickKey(func(p *apiKey) bool { return p.valid && !p.revoked }); p != nil {
			p.valid = false // from now on nobody can say
			return &registryOp{operation: agents.OpRevokeKey, principal: who, subject: p.record.ID, body: memberJSON("key_id", p.record.ID), key: p}
		}
	case 11:
	}
	m := invalidOps[w.entropy.Int(len(invalidOps))]
	native := w.plan.Agents[0].Name
	return &registryOp{operation: m.operation, principal: who, subject: "no " + m.operation, body: []byte(strings.ReplaceAll(m.body, "NATIVE", native)), wantRefusals: []actor.Reason{m.reason}}
}

func memberJSON(member, name string) []byte {
	return invariant.Must(json.Marshal(map[string]string{member: name}))
}

// pickKey is one of those that are so; nil if none is.
func (k *registryClient) pickKey(so func(*apiKey) bool) *apiKey {
	if k == nil || len(k.keys) == 0 {
		return nil
	}
	at := k.w.entropy.Int(len(k.keys))
	for i := range k.keys {
		if p := k.keys[(at+i)%len(k.keys)]; so(p) {
			return p
		}
	}
	return nil
}

// createKey draws a key, as a door does; nil if there are enough.
func (k *registryClient) createKey() *apiKey {
	w := k.w
	if len(k.keys) == apiKeysMax {
		return nil
	}
	var random [ingress.KeyRandomBytes]byte
	for i := 0; i < len(random); i += 8 {
		binary.LittleEndian.PutUint64(random[i:], w.random())
	}
	scopes := [...][]ingress.Scope{{ingress.ScopeCall}, {ingress.ScopeAdmin}, {ingress.ScopeRead, ingress.ScopeCall}, {ingress.ScopeRead}}[w.entropy.Int(4)]
	expires := actor.Time(0)
	if w.entropy.Int(4) == 3 {
		expires = w.now.Add(time.Minute + w.between(0, time.Minute))
	}
	if s := &invalidKeys[w.entropy.Int(len(invalidKeys))]; w.entropy.Int(2) == 1 { // who wants a key mistypes it first
		if _, _, refusal := ingress.NewKey(random, s.name, s.scopes, w.now, w.now.Add(s.expires)); refusal == nil || refusal.Reason != actor.Invalid {
			w.fail(RegistryHolds, fmt.Sprintf("a key is made of %+v: %v", s, refusal))
			return nil
		}
	}
	key, text, refusal := ingress.NewKey(random, "key "+strconv.Itoa(len(k.keys)), scopes, w.now, expires)
	if refusal != nil {
		w.fail(RegistryHolds, "a key cannot be made: "+refusal.Error())
		return nil
	}
	p := &apiKey{record: key, secret: text}
	k.keys = append(k.keys, p)
	return p
}

// invalidKeys are keys that are not made.
var invalidKeys = [...]struct {
	name    string
	scopes  []ingress.Scope
	expires actor.Duration
}{
	{"a", nil, time.Hour}, {"a", []ingress.Scope{ingress.ScopeRead, ingress.ScopeRead}, time.Hour}, {"a", []ingress.Scope{"all"}, time.Hour},
	{"a", []ingress.Scope{ingress.ScopeRead}, 0}, {"a", []ingress.Scope{ingress.ScopeRead}, -time.Hour},
	{"a\nb", []ingress.Scope{ingress.ScopeRead}, time.Hour}, {strings.Repeat("a", ingress.KeyNameBytesMax+1), []ingress.Scope{ingress.ScopeRead}, time.Hour},
}

// apiKeysMax bounds the keys of a world.
const apiKeysMax = 12

// drawSpec draws what an agent is, as clients send it or as it stands in a file.
func (k *registryClient) drawSpec(name string, kind actor.AgentKind) []byte {
	w := k.w
	if kind == actor.External {
		spec := externalSpec(name, [...]string{agents.RetryNever, agents.RetrySafe}[w.entropy.Int(2)])
		spec["concurrency"] = 1 + w.entropy.Int(4)
		spec["limits"] = map[string]any{"invoke_timeout_ms": 5000 + w.entropy.Int(5000)}
		return invariant.Must(json.Marshal(spec))
	}
	spec := declaredSpec(name, modelNames[w.entropy.Int(2)], 3+w.entropy.Int(3))
	spec["prompt"] = fmt.Sprintf("You are %s, in your version %d.", name, w.entropy.Int(8))
	spec["description"] = "somebody whom the registry took in"
	if w.entropy.Int(2) == 1 {
		spec["agents"] = [...][]string{{w.plan.Agents[0].Name, name}, {registeredAgents[0].name, registeredAgents[1].name}}[w.entropy.Int(2)]
		spec["on_failure"] = [...]string{agents.ReturnError, agents.FailRun}[w.entropy.Int(2)]
		spec["parameters"] = map[string]any{"temperature": 0.5, "max_tokens": 100 + w.entropy.Int(100), "seed": 7}
		spec["capabilities"] = []string{"tools", "patience"}
		spec["tools"] = append(spec["tools"].([]string), "nobody.has")
	}
	if w.entropy.Int(2) == 0 {
		return invariant.Must(json.Marshal(spec))
	}
	text := string(invariant.Must(toml.Marshal(spec)))
	if wrong := malformedSpecs[w.entropy.Int(len(malformedSpecs))]; w.entropy.Int(2) == 1 { // who writes a file mistypes it first
		_, err := agents.ReadTOML(oversizedParts.Replace(strings.ReplaceAll(wrong, "SPEC", text)))
		if err == nil {
			w.fail(RegistryHolds, fmt.Sprintf("a file is read that says %q", wrong))
		} else {
			w.Stats.Points[SpecFileRejected]++
			w.log.note(w.now, "a file with a slip: %v", err)
		}
	}
	read := invariant.Must(agents.ReadTOML(text))
	if missing := read.AvailabilityWarnings(w.tools, modelNames[:1]); len(missing) > 0 {
		w.log.note(w.now, "%s: %s", &read, strings.Join(missing, "; "))
	}
	k.checkLoops(read)
	body := read.Encode()
	w.addToCorpus(specCodec, body)
	return body
}

// malformedSpecs are files of agents as they are mistyped; SPEC is one that is right.
var malformedSpecs = [...]string{
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

// oversizedParts makes files too long, each in its way: by what stands in them, by what
// is kept of it, by how much there is to say.
var oversizedParts = strings.NewReplacer("SOURCE", strings.Repeat("a", agents.SourceBytesMax), "KEPT", strings.Repeat(`\u0001`, agents.SpecBytesMax/6+1),
	"MEMBERS", tomlMembers(300), "WRONG", tomlMembers(30), "TOOLS", strings.Repeat("'a', ", 100), "NAME", strings.Repeat("b", 100))

func tomlMembers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "m%d = 1\n", i)
	}
	return b.String()
}

// invalidOps are orders that the registry does not take, and why. NATIVE is an
// agent of the program.
var invalidOps = [...]struct {
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

// refusesKey is a client whom the node's door does not let in. A key that the
// registry has said is revoked lets nobody in, and one that it has said is good
// whoever has it.
func (w *Simulation) refusesKey(n *node, c *client) bool {
	p := c.apiKey
	if p == nil {
		return false
	}
	admits := n.admitsKey(p.secret, ingress.ScopeCall)
	doubtful := w.registryClient.uncertain[p.record.ID]
	switch {
	case admits && p.revoked && !doubtful:
		w.fail(RegistryHolds, fmt.Sprintf("%s lets client %d in with key %s, which is revoked", n.id, c.no, p.record.ID))
	case !admits && p.valid && !p.revoked && !doubtful && p.record.Allows(ingress.ScopeCall) && !p.record.Expired(w.now.Add(w.plan.maxSkew())):
		w.fail(RegistryHolds, fmt.Sprintf("%s sends client %d away with key %s, which is good", n.id, c.no, p.record.ID))
	}
	if admits {
		w.Stats.Points[APIKeyAccepted]++
		return false
	}
	w.Stats.Points[APIKeyRejected]++
	w.log.note(w.now, "%s sends client %d away with key %s", n.id, c.no, p.record.ID)
	if c.onReply != nil {
		c.onReply(nil)
	}
	return true
}

// admitsKey tells whether the door of a node lets in who shows this text.
func (n *node) admitsKey(text string, scope ingress.Scope) bool {
	id, ok := ingress.KeyID(text)
	for i := range n.catalog.keys {
		if k := &n.catalog.keys[i]; ok && k.ID == id {
			return k.Matches(text) && !k.Expired(n.clock.now(n.w.now)) && k.Allows(scope)
		}
	}
	return false
}

// assignKey may have a client come with a key: mostly one that is good.
func (w *Simulation) assignKey(c *client) {
	if w.registryClient == nil || w.entropy.Int(3) < 2 {
		return
	}
	all := w.entropy.Int(4) == 3
	if c.apiKey = w.registryClient.pickKey(func(p *apiKey) bool { return all || p.valid && !p.revoked && p.record.Allows(ingress.ScopeCall) }); c.apiKey != nil && w.entropy.Int(12) == 11 {
		forged := *c.apiKey
		last := len(forged.secret) - 1
		forged.secret = [...]string{forged.secret[:last] + "x", forged.secret[:last], "", strings.ToUpper(forged.secret)}[w.entropy.Int(4)]
		forged.valid = false
		c.apiKey = &forged
	}
}

// checkLoops tells who writes a file of the calls that could go round, if it were taken
// in: each a path along which everybody names the next.
func (k *registryClient) checkLoops(spec agents.Spec) {
	w, specs := k.w, []agents.Spec{spec}
	if d := w.nodes[0].catalog; d != nil {
		specs = append(slices.DeleteFunc(slices.Clone(d.Specs), func(s agents.Spec) bool { return s.ID == spec.ID }), spec)
	}
	loops := agents.CallCycles(specs)
	if slices.Contains(spec.Agents, spec.ID) && !slices.Contains(loops, spec.ID+" -> "+spec.ID) {
		w.fail(RegistryHolds, fmt.Sprintf("%s may call itself, and nobody is told: %q", spec.ID, loops))
	}
	for _, loop := range loops {
		w.Stats.Points[CallLoopReported]++
		path := strings.Split(loop, " -> ")
		for i, to := range path[1:] {
			if !slices.ContainsFunc(specs, func(s agents.Spec) bool { return s.ID == path[i] && slices.Contains(s.Agents, to) }) {
				w.fail(RegistryHolds, fmt.Sprintf("it is said that calls could go %s, and %s may not call %s", loop, path[i], to))
			}
		}
	}
}
