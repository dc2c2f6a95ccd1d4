// SPDX-License-Identifier: Apache-2.0
// The error of this package, with the code of the server and what to do.

// hints by code, in the words of docs/errors.md. A test compares the codes with that page.
const hints = {
  agent_busy: "Retry after retryAfter seconds. With scope caller, wait for an answer of an open call first.",
  call_cycle: "Answer without the call: the target waits for this very answer. A retry cannot help.",
  call_wait_cycle: "Finish the turn, then retry. A retry in the same turn closes the cycle again.",
  call_depth: "Do the work here, or return enough for the caller to request it.",
  timeout: "Request more time or less work.",
  agent_not_found: "List the agents with troupe.agents.list(), or start the agent.",
  call_rejected: "Read the message, which quotes the agent or the tool.",
  agent_unavailable: "Retry later. With the same idempotency key the call is not executed twice.",
  cancelled: "None: the caller, a person or a later message cancelled the call.",
  budget_exceeded: "Call fewer agents, shorten answers with max_tokens, or grant the root more.",
  invalid_request: "Correct the field that is named.",
  outcome_unknown: "Inspect the outcome before a retry: the operation may have been performed.",
  client_offline: "Retry when a device of the user is online.",
  events_exceeded: "Send fewer pieces, or raise the limit that the message names.",
  model_auth: "Correct the key in key_env of the model.",
  model_not_found: "Correct the name or the URL of the model.",
  model_rejected: "Correct the request: the message quotes the provider.",
  approval_rejected: "Do without the call, or ask the person.",
  approval_decided: "None: the first decision counts.",
  policy_blocked: "Use another tool, or change the rule that is named.",
  unauthorized: "Pass a valid key or token: `troupe keys create` makes a key, POST /v1/tokens a token for a browser.",
  forbidden_scope: "Use a key that has the scope that is named.",
  forbidden: "Use the credentials of a person, not those of an agent.",
  forbidden_run: "Name one run.",
  forbidden_user: "Omit the user, or use a key of `troupe keys create --act-as-user`.",
  forbidden_host: "Use an address of the server, or start it with --hosts.",
  forbidden_origin: "Start the server with --origin for this page, and use a token that names its origin.",
  run_not_found: "Check the ID. The token of a run ends with the run.",
  session_not_found: "List the sessions with troupe.sessions.list().",
  session_deleted: "Choose another name for the session.",
  tool_not_found: "List the tools with GET /v1/tools.",
  tool_call_not_found: "Check the ID, and the user that the run belongs to.",
  tool_call_ended: "None: the tool call has its result.",
  approval_not_found: "List the approvals that wait with troupe.approvals.list().",
  entity_not_found: "Check the name and the scope. What was forgotten does not come back.",
  context_not_found: "Check the key. Contexts are deleted with their session.",
  key_not_found: "List the keys with `troupe keys list`.",
  not_found: "Check the URL of the server and its version.",
  events_dropped: "Read from firstSeq on, those of a session after the cursor in the message, or without a cursor if it has none.",
  method_not_allowed: "Check the URL of the server and its version.",
  upgrade_required: "Connect to this path with troupe.channel().",
  session_busy: "Wait for the end of the run, or send ifBusy \"queue\" or \"interrupt\".",
  context_version: "Read the context, and repeat the change with its version.",
  storage_full: "Delete sessions, or free space on the server's disk.",
  storage_share: "Delete sessions of this user.",
  backup_exists: "Choose another name for the backup.",
  disk_full: "Free space on the server's disk.",
  forbidden_folder: "Start the server with another --backups.",
  internal: "Read the log of the server, which has the details.",
  // Codes of this package.
  server_unreachable: "Check the URL, that the server runs, and its --origin for a page of another origin. A repeat with the same key has no second effect.",
  not_an_answer: "Check the URL: this is not the answer of a Troupe server.",
  run_open: "Wait longer: the run continues. troupe.runs.wait() follows it.",
  websocket_missing: "Pass the option WebSocket, such as the class of the package ws, or use Node 22 or later.",
};

// TroupeError is a failure with a code of the server or of this package.
export class TroupeError extends Error {
  constructor(code, message, more = {}) {
    super(message, more.cause === undefined ? undefined : { cause: more.cause });
    this.name = "TroupeError";
    this.code = code;
    this.hint = hints[code] ?? "";
    this.status = more.status ?? 0; // of HTTP; 0 if the server gave no answer, or of a run
    this.retryAfter = more.retryAfter ?? 0; // seconds; 0 if a retry does not help
    this.field = more.field ?? ""; // offending part of a request
    this.scope = more.scope ?? ""; // owner of the exceeded limit, of agent_busy
    this.chain = more.chain ?? []; // path of a cycle
    this.runId = more.runId ?? ""; // run that failed, if it exists
    this.firstSeq = more.firstSeq ?? 0; // first event that is left, of events_dropped
    this.key = more.key ?? ""; // idempotency key of the request, with which a repeat has no second effect
  }
}

// codes are those that have a hint.
export const codes = () => Object.keys(hints);

// retryAfterOf returns the seconds of a header Retry-After, which is a number or a date. A date is compared with that of
// the server, whose clock may differ from this one.
export function retryAfterOf(headers, now = Date.now()) {
  const text = headers.get("retry-after");
  if (!text) return 0;
  if (/^\s*\d+(\.\d+)?\s*$/.test(text)) return Number(text);
  const at = Date.parse(text);
  const sent = Date.parse(headers.get("date") ?? "");
  return Number.isNaN(at) ? 0 : Math.max(0, (at - (Number.isNaN(sent) ? now : sent)) / 1000);
}

// refusalOf returns the error for an answer of the server that is no success.
export function refusalOf(status, headers, text, key = "") {
  let p;
  try {
    p = JSON.parse(text);
  } catch {
    // not of this server: a proxy
  }
  if (!p || typeof p.code !== "string") p = { code: "not_an_answer", detail: `the server answered ${status}${text ? ` with ${JSON.stringify(text.slice(0, 80))}` : ""}` };
  return new TroupeError(p.code, p.detail || p.title || `the server answered ${status}`, {
    status,
    retryAfter: Number(p.retry_after) || retryAfterOf(headers),
    field: p.field,
    scope: p.scope,
    chain: p.chain,
    runId: p.run_id,
    firstSeq: p.first_seq,
    key,
  });
}

// failureOf returns the error for the failure of a run.
export function failureOf(error, runId, cancelled) {
  const e = error ?? {};
  return new TroupeError(e.code || (cancelled ? "cancelled" : "call_rejected"), e.detail || e.message || (cancelled ? "the run was cancelled" : "the run failed"), {
    retryAfter: (e.retry_after_ms ?? 0) / 1000,
    field: e.field,
    scope: e.scope,
    chain: e.call_chain,
    runId,
  });
}
