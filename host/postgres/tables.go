// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// tables are the changes of the tables for people in a transaction. They follow from its entries, and
// the deletions from its rows.
type tables struct {
	sessions  columns
	found     columns // sessions whose first entry may have been cut
	metadata  columns
	runs      columns
	events    columns
	created   columns // tool calls
	changed   columns // tool calls
	asked     columns // approvals
	decided   columns // approvals
	ended     []string
	agents    columns
	noAgents  []string
	tools     columns
	noTools   []string
	contexts  columns
	uncontext columns
	deletions []store.Deletion // of what earlier batches wrote
	forgotten []store.Deletion // sessions, with what this batch writes
}

// columns are the columns of rows, each as an array of text or NULL. PostgreSQL converts them.
type columns [][]*string

// add adds a row. An empty *string is NULL.
func (c *columns) add(values ...*string) {
	if *c == nil {
		*c = make(columns, len(values))
	}
	for i, v := range values {
		(*c)[i] = append((*c)[i], v)
	}
}

func (c columns) args() (all []any) {
	for _, column := range c {
		all = append(all, column)
	}
	return all
}

// The values of columns.
func text(s string) *string { s = asText(s); return &s }

func textOrNull(s string) *string {
	if s == "" {
		return nil
	}
	return text(s)
}

func number[T int | int64 | uint64 | uint32](n T) *string {
	s := fmt.Sprint(n)
	return &s
}

func timeOrNull(at actor.Time) *string {
	if at == 0 {
		return nil
	}
	return timeOf(at)
}

func timeOf(at actor.Time) *string {
	s := time.Unix(0, int64(at)).UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	return &s
}

func idOrNull(id actor.CallID) *string {
	if id.IsZero() {
		return nil
	}
	s := id.String()
	return &s
}

func jsonOf(b []byte) *string { s := AsJSON(b); return &s }

// refusalOrNull returns a refusal as answers of the API show it.
func refusalOrNull(r *actor.Refusal) *string {
	if r == nil {
		return nil
	}
	return jsonOf(runs.AppendRefusal(nil, r))
}

// tablesOf returns the changes of the tables with the entries of a batch. Its summaries are those of its
// rows. Of the runtime's own actors only what they keep for users is shown.
func tablesOf(entries []store.Entry, summaries columns) (t tables, err error) {
	t.runs = summaries
	calls := map[runs.ToolCallID]*toolChange{}
	var order []*toolChange
	for i := range entries {
		e := &entries[i]
		if _, ok := e.Record.(store.Forgotten); ok {
			t.forgotten = append(t.forgotten, store.Deletion{Tenant: e.Actor.Tenant, Session: e.Actor.Key})
		}
		t.session(e)
		t.items(e)
		if actor.IsSystemAgent(e.Actor.Agent) {
			continue
		}
		events, err := e.AllEvents()
		if err != nil {
			return t, err
		}
		for _, raw := range events {
			ev, err := runs.Decode(raw.Body)
			if err != nil { // no event of a run is like that; the batch is not lost over it
				ev = runs.Event{At: store.TimeOf(e.Record)}
			}
			t.events.add(idOrNull(raw.Run), number(raw.Seq), timeOf(ev.At), text(ev.Type.String()), jsonOf(raw.Body))
			if ev.Type.Ends() {
				t.ended = append(t.ended, raw.Run.String())
			}
			order = tool(calls, order, e, &ev)
		}
	}
	for _, c := range order {
		c.addTo(&t)
	}
	return t, nil
}

// addSummary adds a row of troupe.run_rows.
func addSummary(c *columns, tenant string, s *runs.Summary) {
	if actor.IsSystemAgent(s.Actor.Agent) {
		return
	}
	var answer, outcome *string
	if s.Status == runs.Done {
		answer, outcome = text(s.Text), text(s.Outcome.String())
	}
	status := textOrNull(s.Status.String())
	if s.Status == 0 {
		status = nil
	}
	session, _ := s.Actor.Session()
	c.add(idOrNull(s.Run), text(session), text(s.Actor.Agent), text(tenant), textOrNull(s.User), status, timeOrNull(s.Created), timeOrNull(s.Started), timeOrNull(s.Ended),
		refusalOrNull(s.Refusal), idOrNull(s.Parent), idOrNull(s.Root), number(s.Depth), textOrNull(s.Workflow), textOrNull(s.Project), textOrNull(s.Priority), outcome, answer,
		number(s.Usage.Input), number(s.Usage.Output), number(s.Tree.Input), number(s.Tree.Output),
		number(s.Usage.Cost), number(s.Usage.Unpriced()), number(s.Tree.Cost), number(s.Tree.Unpriced()))
}

// session adds the session of an entry, if it is the first of its actor.
func (t *tables) session(e *store.Entry) {
	session, ok := e.Actor.Session()
	if _, forgotten := e.Record.(store.Forgotten); !ok || forgotten || e.N != 1 {
		return
	}
	t.sessions.add(text(session), text(e.Actor.Tenant), timeOf(store.TimeOf(e.Record)))
}

// items notes the changes of the registry, of sessions and of contexts, which are items of the state of
// the runtime's own actors.
func (t *tables) items(e *store.Entry) {
	updates := store.StateUpdatesOf(e.Record)
	switch {
	case len(updates) == 0:
	case e.Actor == agents.RegistryID:
		for _, item := range updates {
			t.registered(item)
		}
	case e.Actor.Agent == actor.SessionAgent:
		var title, metadata *string
		for _, item := range updates {
			switch item.Name {
			case agents.SessionTitle:
				title = text(string(item.Value))
			case agents.SessionMetadata:
				metadata = jsonOf([]byte(cmp.Or(string(item.Value), "{}")))
			}
		}
		if title != nil || metadata != nil {
			t.metadata.add(text(e.Actor.Tenant), text(e.Actor.Key), title, metadata)
		}
	case e.Actor.Agent == actor.ContextAgent:
		for _, c := range agents.ContextChanges(updates) {
			if c.Value == nil {
				t.uncontext.add(text(e.Actor.Tenant), text(e.Actor.Key), text(c.ID+"."+e.Actor.Key), number(c.Version))
				continue
			}
			t.contexts.add(text(c.ID+"."+e.Actor.Key), text(c.Info.OwnerType), text(c.Info.OwnerID), number(c.Version), jsonOf(c.Value), timeOf(c.At), text(e.Actor.Tenant), text(e.Actor.Key))
		}
	}
}

// registered notes a change of an item of the registry. Of keys nothing is shown.
func (t *tables) registered(item actor.StateItem) {
	family, name, _ := strings.Cut(item.Name, "/")
	var record struct {
		Spec  json.RawMessage `json:"spec"`
		Owner string          `json:"owner"`
		At    string          `json:"at"`
	}
	var spec struct {
		Name         string          `json:"name"`
		Kind         string          `json:"kind"`
		Endpoint     string          `json:"endpoint"`
		Capabilities json.RawMessage `json:"capabilities"`
		Policy       json.RawMessage `json:"policy"`
		TimeoutMS    int64           `json:"timeout_ms"`
		Metadata     json.RawMessage `json:"metadata"`
	}
	if len(item.Value) > 0 && (json.Unmarshal(item.Value, &record) != nil || json.Unmarshal(record.Spec, &spec) != nil) {
		return // the node refuses it as well
	}
	var at *string
	if _, err := time.Parse(time.RFC3339Nano, record.At); err == nil {
		at = &record.At
	}
	orNull := func(v json.RawMessage) *string {
		if len(v) == 0 {
			return nil
		}
		return jsonOf(v)
	}
	switch {
	case family == "agent" && len(item.Value) == 0:
		t.noAgents = append(t.noAgents, asText(name))
	case family == "agent":
		capabilities := jsonOf([]byte("[]"))
		if len(spec.Capabilities) > 0 {
			capabilities = jsonOf(spec.Capabilities)
		}
		t.agents.add(text(name), text(spec.Name), textOrNull(spec.Endpoint), capabilities, textOrNull(spec.Kind), textOrNull(record.Owner), jsonOf(record.Spec), at)
	case family == "tool" && len(item.Value) == 0:
		t.noTools = append(t.noTools, asText(name))
	case family == "tool":
		var timeout *string
		if spec.TimeoutMS != 0 {
			timeout = text(strconv.FormatInt(spec.TimeoutMS, 10))
		}
		t.tools.add(text(name), text(spec.Kind), orNull(spec.Policy), timeout, orNull(spec.Metadata), textOrNull(record.Owner), jsonOf(withoutSecrets(record.Spec)))
	}
}

// withoutSecrets returns the spec of a tool without the values of its headers, which may be keys of its
// service.
func withoutSecrets(spec json.RawMessage) []byte {
	var members map[string]json.RawMessage
	var headers map[string]map[string]any
	if json.Unmarshal(spec, &members) != nil || json.Unmarshal(members["headers"], &headers) != nil {
		return spec
	}
	for _, h := range headers {
		if _, ok := h["value"]; ok {
			h["value"] = "[hidden]"
		}
	}
	shown, err := json.Marshal(headers)
	if err != nil {
		return nil
	}
	members["headers"] = shown
	if shown, err = json.Marshal(members); err != nil {
		return nil
	}
	return shown
}

// deleteRows notes what rows delete.
func (t *tables) deleteRows(rows []store.Row) error {
	for i := range rows {
		d, ok, err := store.DeletionOf(&rows[i])
		if err != nil {
			return err
		}
		if ok {
			t.deletions = append(t.deletions, d)
		}
	}
	return nil
}

// queue adds the statements to a transaction.
func (t *tables) queue(b *pgx.Batch) {
	add := func(c columns, query string) {
		if c != nil {
			b.Queue(query, c.args()...)
		}
	}
	t.queueDeletions(b) // of what earlier batches wrote
	add(t.sessions, `INSERT INTO troupe.sessions (session_id, user_id, created_at)
		SELECT s, u, c::timestamptz FROM unnest($1::text[], $2::text[], $3::text[]) AS n(s, u, c) ON CONFLICT DO NOTHING`)
	add(t.found, `INSERT INTO troupe.sessions (session_id, user_id, created_at)
		SELECT s, u, coalesce((SELECT min(created_at) FROM troupe.run_rows WHERE user_id = u AND session_id = s), now()) FROM unnest($1::text[], $2::text[]) AS n(s, u) ON CONFLICT DO NOTHING`)
	add(t.metadata, `UPDATE troupe.sessions t SET title = nullif(coalesce(n.title, t.title), ''), metadata_jsonb = coalesce(n.m::jsonb, t.metadata_jsonb)
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS n(u, s, title, m) WHERE t.user_id = n.u AND t.session_id = n.s`)
	add(t.runs, `INSERT INTO troupe.run_rows SELECT a::uuid, b, c, d, e, f, g::timestamptz, h::timestamptz, i::timestamptz, j::jsonb, k::uuid, l::uuid, m::int, n, o, p, q, r,
			s::bigint, t::bigint, u::bigint, v::bigint, w::bigint, x::bigint, y::bigint, z::bigint
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[],
			$14::text[], $15::text[], $16::text[], $17::text[], $18::text[], $19::text[], $20::text[], $21::text[], $22::text[], $23::text[], $24::text[], $25::text[], $26::text[])
			AS given(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z)
		ON CONFLICT (run_id) DO UPDATE SET (session_id, agent_id, user_id, principal, status, created_at, started_at, ended_at, error_jsonb, parent_run_id, root_run_id, call_depth,
			correlation_id, project_id, priority, outcome, answer, input_tokens, output_tokens, tree_input_tokens, tree_output_tokens, cost_micros, unpriced_tokens, tree_cost_micros,
			tree_unpriced_tokens) =
			ROW(excluded.session_id, excluded.agent_id, excluded.user_id, excluded.principal, excluded.status, excluded.created_at, excluded.started_at, excluded.ended_at,
			excluded.error_jsonb, excluded.parent_run_id, excluded.root_run_id, excluded.call_depth, excluded.correlation_id, excluded.project_id, excluded.priority,
			excluded.outcome, excluded.answer, excluded.input_tokens, excluded.output_tokens, excluded.tree_input_tokens, excluded.tree_output_tokens, excluded.cost_micros,
			excluded.unpriced_tokens, excluded.tree_cost_micros, excluded.tree_unpriced_tokens)`)
	add(t.events, `INSERT INTO troupe.event_rows SELECT a::uuid, b::bigint, c::timestamptz, d, e::jsonb
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS n(a, b, c, d, e)
		ON CONFLICT (run_id, seq) DO UPDATE SET ts = excluded.ts, type = excluded.type, payload = excluded.payload`)
	add(t.created, `INSERT INTO troupe.tool_calls SELECT a, b::uuid, c, d, e, f::jsonb, g::jsonb, h::jsonb, i, j::timestamptz, k::timestamptz, l::timestamptz, m, n::bigint
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[],
			$14::text[]) AS x(a, b, c, d, e, f, g, h, i, j, k, l, m, n) ON CONFLICT DO NOTHING`)
	add(t.changed, `UPDATE troupe.tool_calls t SET
			status = CASE WHEN n.status IS NULL OR t.status = 'BLOCKED' THEN t.status
				WHEN n.status = '`+dispatchedStatus+`' THEN CASE t.kind WHEN '`+runs.KindClient+`' THEN 'WAITING_CLIENT' ELSE 'RUNNING' END
				WHEN n.status = '`+timedOutStatus+`' THEN CASE WHEN t.status IN ('CREATED', 'POLICY_CHECKED') THEN 'FAILED' ELSE 'TIMEOUT' END
				ELSE n.status END,
			result_jsonb = coalesce(n.result::jsonb, t.result_jsonb), error_jsonb = coalesce(n.error::jsonb, t.error_jsonb), approval_id = coalesce(n.approval, t.approval_id),
			dispatched_at = coalesce(t.dispatched_at, n.dispatched::timestamptz), ended_at = coalesce(n.ended::timestamptz, t.ended_at), decision = coalesce(n.decision, t.decision)
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[]) AS n(id, status, result, error, approval, dispatched, ended, decision)
		WHERE t.tool_call_id = n.id`)
	add(t.asked, `INSERT INTO troupe.approvals (approval_id, run_id, tool_call_id, status, created_at, summary, expires_at, seq)
		SELECT a, b::uuid, c, 'PENDING', d::timestamptz, e, f::timestamptz, g::bigint
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[]) AS n(a, b, c, d, e, f, g) ON CONFLICT DO NOTHING`)
	add(t.decided, `UPDATE troupe.approvals t SET status = n.status, decided_at = n.at::timestamptz, decided_by = n.by, reason = n.why
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS n(id, status, at, by, why) WHERE t.approval_id = n.id`)
	if len(t.ended) > 0 {
		b.Queue(`UPDATE troupe.tool_calls t SET status = 'FAILED', ended_at = r.ended_at FROM troupe.run_rows r
			WHERE t.run_id = ANY($1::text[]::uuid[]) AND r.run_id = t.run_id AND t.ended_at IS NULL AND t.status NOT IN ('SUCCEEDED', 'FAILED', 'TIMEOUT', 'BLOCKED')`, t.ended)
		b.Queue(`UPDATE troupe.approvals a SET status = 'EXPIRED', decided_at = r.ended_at, reason = 'the run has ended' FROM troupe.run_rows r
			WHERE a.run_id = ANY($1::text[]::uuid[]) AND r.run_id = a.run_id AND a.status = 'PENDING'`, t.ended)
	}
	t.queueItems(b, add)
	for _, d := range t.forgotten {
		queueSession(b, d)
	}
}

// queueSession adds the statements that delete a session with its runs.
func queueSession(b *pgx.Batch, d store.Deletion) {
	tenant, session := asText(d.Tenant), asText(d.Session)
	for _, table := range []string{"event_rows", "tool_calls", "approvals"} {
		b.Queue("DELETE FROM troupe."+table+" t USING troupe.run_rows r WHERE r.user_id = $1 AND r.session_id = $2 AND t.run_id = r.run_id", tenant, session)
	}
	for _, table := range []string{"run_rows", "sessions", "context_blobs"} {
		b.Queue("DELETE FROM troupe."+table+" WHERE user_id = $1 AND session_id = $2", tenant, session)
	}
}

func (t *tables) queueItems(b *pgx.Batch, add func(columns, string)) {
	if len(t.noAgents) > 0 {
		b.Queue("DELETE FROM troupe.agents WHERE agent_id = ANY($1)", t.noAgents)
	}
	if len(t.noTools) > 0 {
		b.Queue("DELETE FROM troupe.tools WHERE tool_name = ANY($1)", t.noTools)
	}
	add(t.agents, `INSERT INTO troupe.agents (agent_id, name, endpoint, capabilities_jsonb, kind, owner, spec_jsonb, changed_at)
		SELECT DISTINCT ON (a) a, b, c, d::jsonb, e, f, g::jsonb, h::timestamptz
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[]) WITH ORDINALITY AS n(a, b, c, d, e, f, g, h, at) ORDER BY a, at DESC
		ON CONFLICT (agent_id) DO UPDATE SET name = excluded.name, endpoint = excluded.endpoint, capabilities_jsonb = excluded.capabilities_jsonb, kind = excluded.kind,
			owner = excluded.owner, spec_jsonb = excluded.spec_jsonb, changed_at = excluded.changed_at`)
	add(t.tools, `INSERT INTO troupe.tools (tool_name, kind, policy_jsonb, timeout_ms, metadata_jsonb, owner, spec_jsonb)
		SELECT DISTINCT ON (a) a, b, c::jsonb, d::bigint, e::jsonb, f, g::jsonb
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[]) WITH ORDINALITY AS n(a, b, c, d, e, f, g, at) ORDER BY a, at DESC
		ON CONFLICT (tool_name) DO UPDATE SET kind = excluded.kind, policy_jsonb = excluded.policy_jsonb, timeout_ms = excluded.timeout_ms, metadata_jsonb = excluded.metadata_jsonb,
			owner = excluded.owner, spec_jsonb = excluded.spec_jsonb`)
	add(t.contexts, `INSERT INTO troupe.context_blobs SELECT a, b, c, d::bigint, e::jsonb, f::timestamptz, g, h
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[]) AS n(a, b, c, d, e, f, g, h)
		ON CONFLICT (user_id, session_id, context_key, version) DO UPDATE SET data_jsonb = excluded.data_jsonb, created_at = excluded.created_at`)
	add(t.uncontext, `DELETE FROM troupe.context_blobs t USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS n(u, s, k, v)
		WHERE t.user_id = n.u AND t.session_id = n.s AND t.context_key = n.k AND t.version = n.v::bigint`)
}

// queueDeletions adds the statements that delete what rows delete.
func (t *tables) queueDeletions(b *pgx.Batch) {
	var runIDs, cutRuns []string
	var cutTo []int64
	for _, d := range t.deletions {
		switch {
		case d.Session != "":
			queueSession(b, d)
		case d.Events == 0:
			runIDs = append(runIDs, d.Run.String())
		default:
			cutRuns, cutTo = append(cutRuns, d.Run.String()), append(cutTo, int64(d.Events))
		}
	}
	if len(runIDs) > 0 {
		for _, table := range []string{"run_rows", "event_rows", "tool_calls", "approvals"} {
			b.Queue("DELETE FROM troupe."+table+" WHERE run_id = ANY($1::text[]::uuid[])", runIDs)
		}
	}
	if len(cutRuns) > 0 {
		for _, table := range []string{"event_rows", "tool_calls", "approvals"} {
			b.Queue("DELETE FROM troupe."+table+" t USING unnest($1::text[], $2::bigint[]) AS n(run, upto) WHERE t.run_id = n.run::uuid AND t.seq <= n.upto", cutRuns, cutTo)
		}
	}
}
