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

// registryClient administers agents and API keys. It issues registry operations one at
// a time, retries each until it is acknowledged, and checks the registry against the
// acknowledgement. After a retry it asserts nothing about the subject of the operation:
// the first attempt may be applied late, after later operations.
type registryClient struct {
	w         *Simulation
	present   map[string]bool       // agents that exist, by acknowledged operations
	owner     map[string]string     // their owners
	spec      map[string]actor.Hash // their specs
	keys      []*apiKey             // in order of creation
	durable   map[string]bool       // whether they are journaled; kept after a deletion
	changed   map[string]bool       // agents whose durability has changed
	opCount   StreamID              // number of operations issued
	opStarted actor.Time            // when the last operation was issued
	uncertain map[string]bool       // subjects of operations that lost a reply
}

// registryOp is one operation of the registry, with its expected outcome.
type registryOp struct {
	operation    string
	principal    string // principal of the request
	body         []byte
	subject      string         // ID of the agent or key
	present      bool           // whether the subject exists afterwards
	wantRefusals []actor.Reason // expected reasons of refusal; nil if it should succeed
	wantField    string         // field that the refusal names; empty: any
	before       string         // the stored registry before the operation
	changes      bool           // the operator changes the durability of an agent
	key          *apiKey        // the key that is created or revoked
}

// apiKey is an API key with its secret, which a client presents to the gateway.
type apiKey struct {
	record  ingress.Key
	secret  string
	valid   bool // its creation was acknowledged, and no revocation was requested
	revoked bool
}

// startRegistryClient starts the registry client, if the run has a registry.
func (w *Simulation) startRegistryClient() {
	if !w.hasRegistry() || w.plan.Plain {
		return
	}
	w.registryClient = &registryClient{w: w, present: map[string]bool{}, owner: map[string]string{}, durable: map[string]bool{}, changed: map[string]bool{}, spec: map[string]actor.Hash{}, uncertain: map[string]bool{}}
	defer w.setStream(w.setStream(topicRegistry))
	w.after(w.plan.RegistryInterval, w.registryClient.runNext)
}

// runNext issues the next operation.
func (rc *registryClient) runNext() {
	w := rc.w
	if w.recovering {
		return
	}
	rc.opCount++
	rc.opStarted = w.now
	w.setCause(topicRegistry + rc.opCount)
	w.setStream(topicRegistry)
	if w.entropy.Recorded(1) == 0 { // a shrunk run may skip an operation, without a change of timing
		w.after(max(time.Duration(w.entropy.Recorded(0))*time.Microsecond, w.plan.RegistryInterval/4), rc.runNext)
		return
	}
	o := rc.drawOp()
	if o.changes { // some runs are then open
		rc.callSessions(o.subject, 0)
	}
	if o.wantRefusals != nil {
		o.before = rc.stored()
	}
	c := w.addClient(agents.RegistryID, o.operation+" "+o.subject, 10*time.Second)
	c.key, c.op = "", o
	c.onReply = func(reply *actor.Reply) { rc.handleReply(c, reply) }
	w.submit(c)
}

// callSessions calls an agent in several sessions, each after at most this delay.
func (rc *registryClient) callSessions(agent string, delay actor.Duration) {
	w := rc.w
	for i := range 3 {
		c := w.addClient(newGenerator(w).actor(agent, "s"+strconv.Itoa(i)), strings.Repeat("use "+clockTool+"\n", 1+i), 20*time.Second)
		w.after(w.between(0, delay+1), func() { w.submit(c) })
	}
}

// scheduleNext schedules the next operation after a random delay.
func (rc *registryClient) scheduleNext() {
	w := rc.w
	wait := w.between(w.plan.RegistryInterval/4, w.plan.RegistryInterval)
	w.setCause(topicRegistry + rc.opCount)
	w.entropy.Recorded(int((w.now.Sub(rc.opStarted) + wait) / time.Microsecond))
	w.after(wait, rc.runNext)
}

// request returns the call that the gateway builds from the operation.
func (o *registryOp) request(c *client) (actor.Call, *actor.Refusal) {
	if refusal := ingress.CheckObject(o.body); refusal != nil {
		return actor.Call{}, refusal
	}
	call := actor.Call{To: c.to, Operation: o.operation, Left: c.left, Principal: o.principal,
		Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: o.body}}}
	switch {
	case o.principal == agents.Operator && c.no%2 == 1: // an administrator has its rights
		call.Principal = "client-1"
		call.SetAuthority("ad", actor.AllRights)
	case o.principal != agents.Operator:
		call.SetAuthority("ab", actor.NoRights)
	}
	return call, nil
}

// handleReply handles the reply to an operation. A nil reply means that the outcome is
// unknown.
func (rc *registryClient) handleReply(c *client, reply *actor.Reply) {
	w, o := rc.w, c.op
	defer w.setStream(w.setStream(topicRegistry))
	retry := func() {
		rc.uncertain[o.subject] = true
		if c.tries >= triesMax || w.recovering {
			rc.scheduleNext()
			return
		}
		w.retriesScheduled++
		w.after(w.between(100*time.Millisecond, 2*time.Second), func() { w.retriesScheduled--; w.submit(c) })
	}
	switch r := (*actor.Refusal)(nil); {
	case reply == nil:
		retry()
		return
	case reply.Refusal != nil:
		if r = reply.Refusal; slices.Contains(o.wantRefusals, r.Reason) {
			w.Stats.Points[RegistryOpRefused]++
			if r.Reason == actor.Budget {
				w.Stats.Points[AgentQuotaRefused]++
			}
			rc.checkRefused(o, r)
			break
		}
		switch r.Reason {
		case actor.Invalid, actor.Rejected, actor.NotFound:
			if !rc.uncertain[o.subject] {
				w.fail(RegistryHolds, fmt.Sprintf("the registry refuses %s: %v", c.text, r))
			}
		case actor.Budget:
			if !rc.anyUncertain() {
				w.fail(RegistryHolds, fmt.Sprintf("the registry refuses %s within the quotas %+v: %v", c.text, w.plan.Quotas, r))
			}
		default:
			retry()
			return
		}
	case o.wantRefusals != nil:
		if !rc.uncertain[o.subject] && !(o.wantRefusals[0] == actor.Budget && rc.anyUncertain()) {
			w.fail(RegistryHolds, fmt.Sprintf("the registry accepts an invalid operation %s: %s", c.text, o.body))
		}
		rc.uncertain[o.subject] = true
	case reply.Status == actor.Succeeded && !rc.uncertain[o.subject]:
		rc.checkApplied(o)
		return
	case reply.Status == actor.Partial:
		rc.uncertain[o.subject] = true
	}
	rc.scheduleNext()
}

// checkRefused checks that a refusal names the field that is wrong, and that the operation left
// no trace.
func (rc *registryClient) checkRefused(o *registryOp, r *actor.Refusal) {
	if o.wantField != "" && r.Field != o.wantField {
		rc.w.fail(RegistryHolds, fmt.Sprintf("the refusal of %s %.200q names field %q, want %q: %v", o.operation, o.body, r.Field, o.wantField, r))
	}
	if after := rc.stored(); after != o.before && !rc.anyUncertain() {
		rc.w.fail(RegistryHolds, fmt.Sprintf("the refused operation %s %.200q changes the registry from %s to %s", o.operation, o.body, o.before, after))
	}
}

// stored returns the stored agents and keys.
func (rc *registryClient) stored() string {
	var b strings.Builder
	for _, i := range rc.w.loadRegistryItems() {
		if strings.HasPrefix(i.Name, "agent/") || strings.HasPrefix(i.Name, "key/") {
			fmt.Fprintf(&b, "%s: %s\n", i.Name, i.Value)
		}
	}
	return b.String()
}

// wrongMembers are operations of which one member is wrong. VALUE is replaced by a value
// that the member MUST NOT have.
var wrongMembers = [...]struct {
	operation, body, member string
	bad                     []string
}{
	{agents.OpDelete, `{"agent_id":VALUE}`, "agent_id", badNames}, {agents.OpRevokeKey, `{"key_id":VALUE}`, "key_id", badNames}, {agents.OpCreateKey, `{"key_id":VALUE}`, "key_id", badNames},
	{agents.OpCreateKey, `{"key_id":"k","digest":VALUE}`, "digest", []string{"7", `""`, "null", "{}", `"` + strings.Repeat("0f", 31) + `f"`, `"` + strings.Repeat("0f", 32) + `0"`, `"` + strings.Repeat("0F", 32) + `"`, `"` + strings.Repeat("0g", 32) + `"`}},
}

// drawInvalidOp returns an operation with one mistake, or nil. The mistake is one that only
// the registry finds.
func (rc *registryClient) drawInvalidOp(principal string) *registryOp {
	p := &picker{seed: uint64(rc.w.entropy.Int(1 << 24))}
	o := &registryOp{operation: agents.OpPut, principal: principal, subject: "no spec", wantRefusals: []actor.Reason{actor.Invalid}}
	if p.Int(3) == 2 {
		m := &wrongMembers[p.Int(len(wrongMembers))]
		o.operation, o.wantField = m.operation, m.member
		o.body = []byte(strings.Replace(m.body, "VALUE", m.bad[p.Int(len(m.bad))], 1))
		return o
	}
	form := declaredForm
	if p.Int(2) == 1 {
		o.operation, form = agents.OpRegister, externalForm
	}
	for range 8 {
		spec := form.draw(p)
		if slices.Contains([]string{"missing field", "null", "unknown field", "field in upper case", "invalid value"}, spec.mistake) {
			o.body, o.wantField = []byte(spec.text), spec.field
			return o
		}
	}
	return nil
}

// checkApplied checks that an acknowledged operation is stored.
func (rc *registryClient) checkApplied(o *registryOp) {
	w := rc.w
	w.Stats.Audit.RegistryHolds++
	items := w.loadRegistryItems()
	rc.checkQuotas(items)
	present := slices.ContainsFunc(items, func(i actor.StateItem) bool { return i.Name == o.itemName() })
	if present != o.present {
		w.fail(RegistryHolds, fmt.Sprintf("the registry acknowledged %s (present: %v), but its stored state differs", o.itemName(), o.present))
		return
	}
	switch o.operation {
	case agents.OpCreateKey:
		w.Stats.Points[APIKeyCreated]++
		o.key.valid = true
		rc.scheduleNext()
	case agents.OpRevokeKey:
		w.Stats.Points[APIKeyRevoked]++
		o.key.revoked = true
		rc.scheduleNext()
	default:
		w.Stats.Points[[...]Point{AgentDeleted, AgentPut}[boolIndex(o.present)]]++
		rc.recordAgent(o)
		if o.changes { // some actors are then idle
			rc.callSessions(o.subject, 3*time.Second)
		}
		rc.checkAgent(o)
	}
}

// recordAgent records the outcome of an acknowledged operation on an agent.
func (rc *registryClient) recordAgent(o *registryOp) {
	created := !rc.present[o.subject]
	rc.present[o.subject] = o.present
	spec, err := agents.ReadJSON(o.body)
	if !o.present || err != nil {
		return
	}
	durable := spec.Durability != "none"
	if before, ok := rc.durable[o.subject]; ok && before != durable {
		rc.changed[o.subject] = true
	}
	rc.durable[o.subject] = durable
	if rc.spec[o.subject] = spec.Hash(); created || o.principal == agents.Operator {
		rc.owner[o.subject] = o.principal
	}
}

// mayChange reports whether a principal may change or delete an agent: it is the owner
// or the operator, or there is no such agent.
func (rc *registryClient) mayChange(name, principal string) bool {
	return !rc.present[name] || principal == agents.Operator || principal == rc.owner[name]
}

func boolIndex(b bool) int {
	if b {
		return 1
	}
	return 0
}

// itemName returns the name under which the registry stores the subject.
func (o *registryOp) itemName() string {
	if o.key != nil {
		return "key/" + o.subject
	}
	return "agent/" + o.subject
}

// checkAgent calls the agent that an operation was about, through any node. An existing
// agent MUST be found, and a deleted agent MUST NOT be found.
func (rc *registryClient) checkAgent(o *registryOp) {
	w := rc.w
	c := w.addClient(newGenerator(w).actor(o.subject, "s0"), "use "+clockTool, 5*time.Second)
	c.key = ""
	c.onReply = func(reply *actor.Reply) {
		defer w.setStream(w.setStream(topicRegistry))
		switch notFound := reply != nil && reply.Refusal != nil && strings.HasPrefix(reply.Refusal.Detail, "no agent is named "+o.subject); {
		case reply == nil:
		case notFound && o.present:
			w.fail(RegistryHolds, fmt.Sprintf("agent %s is registered, but not found: %v", o.subject, reply.Refusal))
		case !notFound && !o.present && !inconclusive(reply):
			w.fail(RegistryHolds, fmt.Sprintf("agent %s is deleted, but answers", o.subject))
		case reply.Status == actor.Succeeded:
			w.Stats.Points[RegisteredAgentServed]++
		}
		rc.scheduleNext()
	}
	w.submit(c)
}

// inconclusive reports whether a reply does not show whether the agent exists.
func inconclusive(reply *actor.Reply) bool {
	return reply.Refusal != nil && (reply.Refusal.Reason == actor.Busy || reply.Refusal.Reason == actor.Deadline || reply.Refusal.Reason == actor.Stopped || reply.Refusal.Reason == actor.Unavailable)
}

// drawOp draws the next operation.
func (rc *registryClient) drawOp() *registryOp {
	w := rc.w
	at := w.entropy.Int(len(registeredAgents))
	name, kind := registeredAgents[at].name, registeredAgents[at].kind
	principal := [...]string{agents.Operator, "client-1", "key:ab"}[w.entropy.Int(3)]
	switch w.entropy.Int(12) {
	default:
		o := &registryOp{operation: agents.OpPut, principal: principal, subject: name, present: true}
		if kind == actor.External {
			o.operation = agents.OpRegister
		}
		volatile := w.plan.RegisteredVolatile[at]
		if durable, ok := rc.durable[name]; ok && w.plan.DurabilityChanges {
			if volatile = !durable; principal == agents.Operator && w.entropy.Int(2) == 1 {
				volatile, o.changes = durable, rc.present[name]
			}
		}
		if rc.present[name] && w.entropy.Int(8) == 7 && principal != agents.Operator { // a client cannot change the durability of an agent
			volatile, o.wantRefusals = !volatile, []actor.Reason{actor.Rejected}
		}
		o.body = rc.drawSpec(name, kind, volatile)
		w.transcripts.learnBody(o.body)
		if !rc.present[name] && rc.changed[name] && principal != agents.Operator { // a former definition has another durability
			o.wantRefusals = []actor.Reason{actor.Rejected}
		} else if !rc.present[name] && rc.quotaUsedUp(principal) {
			o.wantRefusals = []actor.Reason{actor.Budget}
		}
		if spec, err := agents.ReadJSON(o.body); err == nil && spec.Hash() != rc.spec[name] && !rc.mayChange(name, principal) {
			o.wantRefusals = []actor.Reason{actor.Rejected}
		}
		return o
	case 5, 6, 7:
		o := &registryOp{operation: agents.OpDelete, principal: principal, subject: name, body: memberJSON("agent_id", name)}
		if !rc.present[name] {
			o.wantRefusals = []actor.Reason{actor.NotFound}
		} else if !rc.mayChange(name, principal) {
			o.wantRefusals = []actor.Reason{actor.Rejected}
		}
		return o
	case 8, 9:
		if p := rc.createKey(); p != nil {
			return &registryOp{operation: agents.OpCreateKey, principal: principal, subject: p.record.ID, present: true, body: p.record.Encode(), key: p}
		}
	case 10:
		if p := rc.pickKey(func(p *apiKey) bool { return p.valid && !p.revoked }); p != nil {
			p.valid = false // unknown until the revocation is acknowledged
			return &registryOp{operation: agents.OpRevokeKey, principal: principal, subject: p.record.ID, body: memberJSON("key_id", p.record.ID), key: p}
		}
	case 11:
	}
	if w.entropy.Int(2) == 1 {
		if o := rc.drawInvalidOp(principal); o != nil {
			return o
		}
	}
	m := invalidOps[w.entropy.Int(len(invalidOps))]
	native := w.plan.Agents[0].Name
	return &registryOp{operation: m.operation, principal: principal, subject: "no " + m.operation, body: []byte(strings.ReplaceAll(m.body, "NATIVE", native)), wantRefusals: []actor.Reason{m.reason}}
}

func memberJSON(member, name string) []byte {
	return invariant.Must(json.Marshal(map[string]string{member: name}))
}

// pickKey returns a random key for which the callback ok returns true, or nil if there is
// no such key.
func (rc *registryClient) pickKey(ok func(*apiKey) bool) *apiKey {
	if rc == nil || len(rc.keys) == 0 {
		return nil
	}
	at := rc.w.entropy.Int(len(rc.keys))
	for i := range rc.keys {
		if p := rc.keys[(at+i)%len(rc.keys)]; ok(p) {
			return p
		}
	}
	return nil
}

// createKey creates an API key as the gateway does. It returns nil if there are enough
// keys.
func (rc *registryClient) createKey() *apiKey {
	w := rc.w
	if len(rc.keys) == apiKeysMax {
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
	if s := &invalidKeys[w.entropy.Int(len(invalidKeys))]; w.entropy.Int(2) == 1 { // request an invalid key first
		if _, _, refusal := ingress.NewKey(random, s.name, "", s.scopes, w.now, w.now.Add(s.expires)); refusal == nil || refusal.Reason != actor.Invalid {
			w.fail(RegistryHolds, fmt.Sprintf("invalid key accepted: %+v: %v", s, refusal))
			return nil
		}
	}
	key, secret, refusal := ingress.NewKey(random, "key "+strconv.Itoa(len(rc.keys)), "", scopes, w.now, expires)
	if refusal != nil {
		w.fail(RegistryHolds, "valid key refused: "+refusal.Error())
		return nil
	}
	p := &apiKey{record: key, secret: secret}
	rc.keys = append(rc.keys, p)
	return p
}

// invalidKeys are keys whose creation MUST be refused.
var invalidKeys = [...]struct {
	name    string
	scopes  []ingress.Scope
	expires actor.Duration
}{
	{"a", nil, time.Hour}, {"a", []ingress.Scope{ingress.ScopeRead, ingress.ScopeRead}, time.Hour}, {"a", []ingress.Scope{"all"}, time.Hour},
	{"a", []ingress.Scope{ingress.ScopeRead}, 0}, {"a", []ingress.Scope{ingress.ScopeRead}, -time.Hour},
	{"a\nb", []ingress.Scope{ingress.ScopeRead}, time.Hour}, {strings.Repeat("a", ingress.KeyNameBytesMax+1), []ingress.Scope{ingress.ScopeRead}, time.Hour},
}

// apiKeysMax is the maximum number of API keys in a run.
const apiKeysMax = 12

// drawSpec draws the spec of an agent, encoded as clients send it or as converted from
// a file.
func (rc *registryClient) drawSpec(name string, kind actor.AgentKind, volatile bool) []byte {
	w := rc.w
	durability := [...]string{"journaled", "none"}[boolIndex(volatile)]
	if kind == actor.External {
		spec := externalSpec(name, [...]string{agents.RetryNever, agents.RetrySafe, agents.RetryMatched}[w.entropy.Int(3)])
		spec["concurrency"], spec["durability"] = 1+w.entropy.Int(4), durability
		spec["limits"] = map[string]any{"invoke_timeout_ms": 5000 + w.entropy.Int(5000)} // at most registeredInvokeTimeMax
		return invariant.Must(json.Marshal(spec))
	}
	spec := declaredSpec(name, modelNames[w.entropy.Int(2)], 3+w.entropy.Int(3))
	spec["prompt"] = fmt.Sprintf("You are %s, in your version %d.", name, w.entropy.Int(8))
	spec["description"], spec["durability"] = "an agent added through the registry", durability
	if w.entropy.Int(2) == 1 {
		spec["agents"] = [...][]string{{w.plan.Agents[0].Name, name}, {registeredAgents[0].name, registeredAgents[1].name}}[w.entropy.Int(2)]
		spec["on_failure"] = [...]string{agents.ReturnError, agents.FailRun}[w.entropy.Int(2)]
		spec["parameters"] = map[string]any{"temperature": 0.5, "max_tokens": 100 + w.entropy.Int(100), "seed": 7}
		spec["capabilities"] = []string{"tools", "patience"}
		spec["tools"] = append(spec["tools"].([]string), "missing.tool")
	}
	if w.entropy.Int(2) == 0 {
		return invariant.Must(json.Marshal(spec))
	}
	text := string(invariant.Must(toml.Marshal(spec)))
	if malformed := malformedSpecs[w.entropy.Int(len(malformedSpecs))]; w.entropy.Int(2) == 1 { // read a malformed file first
		_, err := agents.ReadTOML(oversizedParts.Replace(strings.ReplaceAll(malformed, "SPEC", text)))
		if err == nil {
			w.fail(RegistryHolds, fmt.Sprintf("malformed file accepted: %q", malformed))
		} else {
			w.Stats.Points[SpecFileRejected]++
			w.log.note(w.now, "malformed file rejected: %v", err)
		}
	}
	read := invariant.Must(agents.ReadTOML(text))
	if missing := read.AvailabilityWarnings(w.tools, modelNames[:1]); len(missing) > 0 {
		w.log.note(w.now, "%s: %s", &read, strings.Join(missing, "; "))
	}
	rc.checkLoops(read)
	body := read.Encode()
	w.addToCorpus(specCodec, body)
	return body
}

// registeredInvokeTimeMax is the maximum time that a registered agent has for an answer.
const registeredInvokeTimeMax = 10 * time.Second

// malformedSpecs are agent files with a mistake each. SPEC is replaced by a valid spec,
// and oversizedParts replaces the other words in capitals.
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

// oversizedParts makes files exceed one bound each: the size of the source, the size of
// the spec, or the number of problems.
var oversizedParts = strings.NewReplacer("SOURCE", strings.Repeat("a", agents.SourceBytesMax), "KEPT", strings.Repeat(`\u0001`, agents.SpecBytesMax/6+1),
	"MEMBERS", tomlMembers(300), "WRONG", tomlMembers(30), "TOOLS", strings.Repeat("'a', ", 100), "NAME", strings.Repeat("b", 100))

func tomlMembers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "m%d = 1\n", i)
	}
	return b.String()
}

// invalidOps are operations that the registry MUST refuse, with the reason. NATIVE is
// replaced by the name of a built-in agent.
var invalidOps = [...]struct {
	operation, body string
	reason          actor.Reason
}{
	{"agent.praise", `{}`, actor.Invalid},
	{agents.OpPut, `{"agent_id":"NATIVE","prompt":"be me"}`, actor.Rejected},
	{agents.OpPut, `{"agent_id":"troupe.session"}`, actor.Invalid},
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

// refusesKey reports whether the gateway of the node refuses the client's API key. A
// key whose revocation was acknowledged MUST be refused, and a key whose creation was
// acknowledged MUST be accepted.
func (w *Simulation) refusesKey(n *node, c *client) bool {
	p := c.apiKey
	if p == nil {
		return false
	}
	admitted := n.admitsKey(p.secret, ingress.ScopeCall)
	uncertain := w.registryClient.uncertain[p.record.ID]
	switch {
	case admitted && p.revoked && !uncertain:
		w.fail(RegistryHolds, fmt.Sprintf("%s accepts client %d with revoked key %s", n.id, c.no, p.record.ID))
	case !admitted && p.valid && !p.revoked && !uncertain && p.record.Allows(ingress.ScopeCall) && !p.record.Expired(w.now.Add(w.plan.maxSkew())):
		w.fail(RegistryHolds, fmt.Sprintf("%s rejects client %d with valid key %s", n.id, c.no, p.record.ID))
	}
	if admitted {
		w.Stats.Points[APIKeyAccepted]++
		return false
	}
	w.Stats.Points[APIKeyRejected]++
	w.log.note(w.now, "%s rejects client %d with key %s", n.id, c.no, p.record.ID)
	if c.onReply != nil {
		c.onReply(nil)
	}
	return true
}

// admitsKey reports whether the gateway of the node accepts a request with this secret.
func (n *node) admitsKey(secret string, scope ingress.Scope) bool {
	id, ok := ingress.KeyID(secret)
	for i := range n.catalog.keys {
		if k := &n.catalog.keys[i]; ok && k.ID == id {
			return k.Matches(secret) && !k.Expired(n.clock.now(n.w.now)) && k.Allows(scope)
		}
	}
	return false
}

// assignKey may assign an API key to a client: usually a valid one, sometimes a forged
// one.
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

// checkLoops checks the warning about call loops that the author of a spec gets before
// it is registered. Each loop is a path along which every agent may call the next.
func (rc *registryClient) checkLoops(spec agents.Spec) {
	w, specs := rc.w, []agents.Spec{spec}
	if d := w.nodes[0].catalog; d != nil {
		specs = append(slices.DeleteFunc(slices.Clone(d.Specs), func(s agents.Spec) bool { return s.ID == spec.ID }), spec)
	}
	loops := agents.CallCycles(specs)
	if slices.Contains(spec.Agents, spec.ID) && !slices.Contains(loops, spec.ID+" -> "+spec.ID) {
		w.fail(RegistryHolds, fmt.Sprintf("%s may call itself, but the reported loops are %q", spec.ID, loops))
	}
	for _, loop := range loops {
		w.Stats.Points[CallLoopReported]++
		path := strings.Split(loop, " -> ")
		for i, to := range path[1:] {
			if !slices.ContainsFunc(specs, func(s agents.Spec) bool { return s.ID == path[i] && slices.Contains(s.Agents, to) }) {
				w.fail(RegistryHolds, fmt.Sprintf("call loop %s reported, but %s may not call %s", loop, path[i], to))
			}
		}
	}
}
