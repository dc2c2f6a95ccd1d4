-- Tables for people to query. They are written in the transaction of the batch that they show, and lose
-- what the log loses. The names and columns up to "Further" are fixed; more columns may follow.

CREATE TABLE troupe.sessions (
    session_id     text        NOT NULL,
    user_id        text        NOT NULL,
    created_at     timestamptz NOT NULL,
    metadata_jsonb jsonb       NOT NULL DEFAULT '{}',
    -- Further
    title          text,
    PRIMARY KEY (user_id, session_id)
);

CREATE TABLE troupe.run_rows (
    run_id         uuid PRIMARY KEY,
    session_id     text        NOT NULL,
    agent_id       text        NOT NULL,
    user_id        text        NOT NULL,
    principal      text,
    status         text,
    created_at     timestamptz,
    started_at     timestamptz,
    ended_at       timestamptz,
    error_jsonb    jsonb,
    parent_run_id  uuid,
    root_run_id    uuid,
    call_depth     int         NOT NULL,
    correlation_id text,
    project_id     text,
    priority       text,
    outcome        text,
    answer         text,
    input_tokens   bigint      NOT NULL,
    output_tokens  bigint      NOT NULL,
    tree_input_tokens  bigint  NOT NULL,
    tree_output_tokens bigint  NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX ON troupe.run_rows (created_at);
CREATE INDEX ON troupe.run_rows (user_id, session_id);
CREATE INDEX ON troupe.run_rows (root_run_id);
CREATE INDEX ON troupe.run_rows (correlation_id) WHERE correlation_id IS NOT NULL;

CREATE VIEW troupe.runs AS
SELECT r.run_id, r.session_id, coalesce(root.agent_id, CASE WHEN r.call_depth = 0 THEN r.agent_id END) AS root_agent_id,
       r.status, r.started_at, r.ended_at, r.error_jsonb,
       r.agent_id, r.user_id, r.principal, r.created_at, r.parent_run_id, r.root_run_id, r.call_depth, r.correlation_id,
       r.project_id, r.priority, r.outcome, r.answer, r.input_tokens, r.output_tokens, r.tree_input_tokens, r.tree_output_tokens
FROM troupe.run_rows r LEFT JOIN troupe.run_rows root ON root.run_id = r.root_run_id;

CREATE TABLE troupe.event_rows (
    run_id  uuid        NOT NULL,
    seq     bigint      NOT NULL,
    ts      timestamptz NOT NULL,
    type    text        NOT NULL,
    payload jsonb       NOT NULL,
    PRIMARY KEY (run_id, seq)
);
CREATE INDEX ON troupe.event_rows (ts);

CREATE VIEW troupe.events AS
SELECT run_id || '.' || seq AS event_id, run_id, ts, type, payload AS payload_jsonb, seq FROM troupe.event_rows;

CREATE TABLE troupe.tool_calls (
    tool_call_id text PRIMARY KEY,
    run_id       uuid   NOT NULL,
    tool_name    text   NOT NULL,
    kind         text   NOT NULL,
    status       text   NOT NULL,
    args_jsonb   jsonb,
    result_jsonb jsonb,
    error_jsonb  jsonb,
    approval_id  text,
    -- Further
    created_at    timestamptz NOT NULL,
    dispatched_at timestamptz,
    ended_at      timestamptz,
    decision      text,
    seq           bigint NOT NULL -- number of the event that created it
);
CREATE INDEX ON troupe.tool_calls (run_id);
CREATE INDEX ON troupe.tool_calls (tool_name, created_at);

CREATE TABLE troupe.approvals (
    approval_id  text PRIMARY KEY,
    run_id       uuid NOT NULL,
    tool_call_id text NOT NULL,
    status       text NOT NULL,
    created_at   timestamptz NOT NULL,
    decided_at   timestamptz,
    decided_by   text,
    reason       text,
    -- Further
    summary    text,
    expires_at timestamptz,
    seq        bigint NOT NULL
);
CREATE INDEX ON troupe.approvals (run_id);
CREATE INDEX ON troupe.approvals (created_at) WHERE status = 'PENDING';

CREATE TABLE troupe.agents (
    agent_id           text PRIMARY KEY,
    name               text NOT NULL,
    endpoint           text,
    capabilities_jsonb jsonb NOT NULL,
    status             text,
    last_heartbeat_at  timestamptz,
    -- Further
    kind       text,
    owner      text,
    spec_jsonb jsonb NOT NULL,
    changed_at timestamptz
);

CREATE TABLE troupe.tools (
    tool_name      text PRIMARY KEY,
    kind           text NOT NULL,
    policy_jsonb   jsonb,
    timeout_ms     bigint,
    metadata_jsonb jsonb,
    -- Further
    owner      text,
    spec_jsonb jsonb NOT NULL
);

CREATE TABLE troupe.context_blobs (
    context_key text   NOT NULL,
    owner_type  text,
    owner_id    text,
    version     bigint NOT NULL,
    data_jsonb  jsonb  NOT NULL,
    created_at  timestamptz NOT NULL,
    -- Further
    user_id     text NOT NULL,
    session_id  text NOT NULL,
    PRIMARY KEY (user_id, session_id, context_key, version)
);
