-- What a run cost. A row that was written before has NULL until `troupe doctor --tables` writes it anew.
ALTER TABLE troupe.run_rows
    ADD COLUMN cost_micros          bigint, -- millionths of the currency of the configuration
    ADD COLUMN unpriced_tokens      bigint, -- of models that had no price when they answered
    ADD COLUMN tree_cost_micros     bigint,
    ADD COLUMN tree_unpriced_tokens bigint;

CREATE OR REPLACE VIEW troupe.runs AS
SELECT r.run_id, r.session_id, coalesce(root.agent_id, CASE WHEN r.call_depth = 0 THEN r.agent_id END) AS root_agent_id,
       r.status, r.started_at, r.ended_at, r.error_jsonb,
       r.agent_id, r.user_id, r.principal, r.created_at, r.parent_run_id, r.root_run_id, r.call_depth, r.correlation_id,
       r.project_id, r.priority, r.outcome, r.answer, r.input_tokens, r.output_tokens, r.tree_input_tokens, r.tree_output_tokens,
       r.cost_micros, r.unpriced_tokens, r.tree_cost_micros, r.tree_unpriced_tokens
FROM troupe.run_rows r LEFT JOIN troupe.run_rows root ON root.run_id = r.root_run_id;
