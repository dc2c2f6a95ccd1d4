// SPDX-License-Identifier: Apache-2.0
// Types of troupe.js. Members of answers are those of the HTTP API, docs/api.md; further ones may be added to them.
// Times are in seconds, but for members that end in _ms and _ts.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/**
 * A key or token, or a function that returns one. A function that returns a promise is asked once, and again with the one
 * that the server has refused; another one is asked for each request.
 */
export type Token = string | ((about?: { refused: string }) => string | null | undefined | Promise<string | null | undefined>);

export type WebSocketClass = new (url: string, protocols?: string[]) => unknown;

export interface Options {
  /** URL of the server; by default the origin of the page, in Node http://127.0.0.1:8283 */
  url?: string;
  /** API key. Not for pages: give them a token. */
  key?: Token;
  token?: Token;
  /** user that a key with act_as_user acts for */
  user?: string;
  /** seconds that the server may be away before a method gives up; default 60, 0 sends each request once */
  patience?: number;
  fetch?: typeof fetch;
  /** decodes JSON; default JSON.parse */
  parse?: (text: string) => any;
  /** class of WebSockets where none is global, as in Node before 22 */
  WebSocket?: WebSocketClass;
}

export interface Cancelable {
  signal?: AbortSignal;
}

export interface Keyed extends Cancelable {
  /** idempotency key; default a new one */
  key?: string;
}

export interface MessageOptions extends Keyed {
  /** session of the conversation; without one a session begins */
  session?: string;
  ifBusy?: "queue" | "reject" | "interrupt";
  priority?: "high" | "normal" | "low";
  /** seconds of the run; default 600 */
  runTimeout?: number;
}

export interface SendOptions extends MessageOptions {
  /** seconds to wait for the answer; then the error run_open, and the run continues */
  timeout?: number;
}

export interface StreamOptions extends Cancelable {
  /** seconds without an event while connections fail; default that of the client */
  patience?: number;
  onState?: (state: "ready" | "away") => void;
}

export interface EventsOptions extends StreamOptions {
  /** cursor behind which the events begin; default the first event */
  after?: string;
  /** whether the events of the runs below are included */
  tree?: boolean;
}

export type Content = string | { type: "text"; text: string }[];

export interface Usage {
  input_tokens?: number;
  output_tokens?: number;
  total_tokens?: number;
}

export interface Answer {
  run_id: string;
  agent_id: string;
  session_id: string;
  status: "succeeded" | "partial" | (string & {});
  content: string;
  warnings?: string[];
  usage?: Usage;
  tree_usage?: Usage;
}

export interface Started {
  run_id: string;
  agent_id: string;
  session_id: string;
  status: string;
  path: string;
}

export type EventType =
  | "user_input" | "run_started" | "llm_call_started" | "llm_call_done" | "agent_invoke_started" | "agent_invoke_done"
  | "agent_stream_delta" | "agent_state" | "attempt" | "tool_call_created" | "tool_dispatched" | "tool_result"
  | "policy_decision" | "approval_created" | "approval_decision" | "approval_expired" | "approval_required"
  | "agent_called_child" | "agent_child_done" | "agent_call_refused" | "timeout_clamped" | "wait_opened"
  | "signal_received" | "wait_expired" | "message_left_out" | "run_paused" | "run_resumed"
  | "run_done" | "run_failed" | "run_cancelled";

export interface RunEvent {
  run_id: string;
  seq: number;
  event_id: string;
  ts: string;
  type: EventType | (string & {});
  /** absent for a customer, who gets the texts only */
  payload?: { text?: string; [name: string]: any };
}

export interface Run {
  run_id: string;
  agent_id: string;
  session_id: string;
  status: string;
  agent_state?: string;
  text?: string;
  last_seq?: number;
  error?: { code: string; detail?: string; [name: string]: any };
  approvals?: { approval_id: string; [name: string]: any }[];
  usage?: Usage;
  tree_usage?: Usage;
  [name: string]: any;
}

export interface Session {
  session_id: string;
  user_id?: string;
  title?: string;
  metadata?: { [name: string]: Json };
  created_at?: string;
  last_message_at?: string;
  updated_at?: string;
  agents?: { agent_id: string; messages: number; runs: number; open_runs?: number; usage?: Usage }[];
  usage?: Usage;
  [name: string]: any;
}

export interface Message {
  message_id: string;
  role: "user" | "assistant" | "system" | "tool" | (string & {});
  content: string;
  origin?: string;
  run_id?: string;
  created_at?: string;
  [name: string]: any;
}

export interface Messages {
  session_id: string;
  agent_id: string;
  messages: Message[];
  total?: number;
  next_before?: string;
  open?: Message[];
}

/** an amount that is added to a budget, money in units of the currency of the server */
export interface Raise {
  tokens?: number;
  money?: number;
}

export interface Approval {
  approval_id: string;
  status: "PENDING" | "APPROVED" | "REJECTED" | "EXPIRED" | (string & {});
  tool_call_id?: string;
  tool_name?: string;
  args?: Json;
  args_summary?: string;
  run_id?: string;
  root_run_id?: string;
  agent_id?: string;
  session_id?: string;
  principal?: string;
  created_at?: string;
  expires_at?: string;
  decided_at?: string;
  decided_by?: string;
  reason?: string;
  /** budget: of a request to the model tool_name beyond the budget of its run */
  kind?: "tool" | "budget" | (string & {});
  /** what an approval adds to the budget while it waits */
  raise?: Raise;
  may_decide?: boolean;
  [name: string]: any;
}

export interface Agent {
  agent_id: string;
  name?: string;
  status?: string;
  [name: string]: any;
}

/** A failure with a code of docs/errors.md or of this package, and what to do. */
export class TroupeError extends Error {
  constructor(code: string, message: string, more?: Partial<Omit<TroupeError, "code" | "message" | "hint">>);
  readonly code: string;
  readonly hint: string;
  /** of HTTP; 0 if the server gave no answer, or of a run */
  readonly status: number;
  /** seconds; 0 if a retry does not help */
  readonly retryAfter: number;
  readonly field: string;
  readonly scope: string;
  readonly chain: string[];
  readonly runId: string;
  readonly firstSeq: number;
  /** idempotency key, with which a repeat has no second effect */
  readonly key: string;
}

/** The events of a run or a session, each once and in order, over lost connections and restarts of the server. */
export class EventStream implements AsyncIterableIterator<RunEvent> {
  private constructor();
  readonly runId: string;
  readonly sessionId: string;
  /** ID of the last event, to continue in another process */
  readonly cursor: string;
  /** the event that ended the run */
  readonly last: RunEvent | undefined;
  /** the answer as far as it was received; a repeated attempt may have replaced pieces of it */
  readonly text: string;
  next(): Promise<IteratorResult<RunEvent, any>>;
  return(value?: any): Promise<IteratorResult<RunEvent, any>>;
  [Symbol.asyncIterator](): this;
  /** reads to the end; rejects with the failure of the run */
  answer(): Promise<Answer>;
  /** ends the stream; the run continues */
  close(): void;
}

export interface ToolContext {
  /** aborted at the deadline of the call, and when the channel is closed */
  signal: AbortSignal;
  tool_call_id: string;
  run_id: string;
  session_id: string;
}

export interface ChannelOptions {
  /** name of this device, 1 to 64 of A-Z a-z 0-9 . _ -; without one the connection is the device */
  device?: string;
  /** an object about the client, such as {app: "web"} */
  meta?: { [name: string]: Json };
  /** client tools by name; a result is any JSON, an error fails the call */
  tools?: { [name: string]: (args: any, context: ToolContext) => unknown };
  /** seconds without an answer after which a request is given up; default 60 */
  patience?: number;
  WebSocket?: WebSocketClass;
}

export interface ChannelMessage {
  type: "run_started" | "delta" | "state" | "approval_required" | "tool_request" | "done" | "error" | (string & {});
  ts: number;
  run_id?: string;
  session_id?: string;
  cursor?: string;
  [name: string]: any;
}

export interface ChannelEvents {
  status: { state: "connecting" | "ready" | "waiting" | "refused" | "closed"; wait?: number; reason?: string; quiet?: boolean };
  ready: { user_id: string; device_id?: string };
  message: ChannelMessage;
  answer: { request: { type: string; request_id: string; [name: string]: any }; message: ChannelMessage };
  requests: undefined;
  unfollowed: string;
  toolfailed: { tool_call_id: string; error: Error };
}

/** A WebSocket to agents that reconnects, resumes and repeats by itself. */
export class Channel extends EventTarget {
  private constructor();
  readonly state: "idle" | ChannelEvents["status"]["state"];
  /** opens a connection in place of the present one */
  connect(): void;
  close(): void;
  /** sends a message; the answer follows as messages */
  send(agent: string, message: string | { role: "user"; content: Content }, options?: Keyed & { session?: string; runTimeout?: number }): Promise<{ run_id: string; session_id: string }>;
  approve(approval: string, options?: Keyed & { reason?: string; raise?: Raise }): Promise<void>;
  reject(approval: string, options?: Keyed & { reason?: string }): Promise<void>;
  cancel(run: string, options?: Keyed): Promise<void>;
  /** follows a session behind a cursor, with "" from its first message, with "end" from now on */
  follow(session: string, after?: string): void;
  forget(session: string): void;
  addEventListener<K extends keyof ChannelEvents>(type: K, listener: (event: Event & { detail: ChannelEvents[K] }) => void, options?: AddEventListenerOptions | boolean): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: AddEventListenerOptions | boolean): void;
}

export interface RequestOptions extends Keyed {
  body?: unknown;
  query?: { [name: string]: string | number | boolean | null | undefined };
  headers?: { [name: string]: string };
  /** seconds to wait for an answer; default 330 */
  seconds?: number;
  /** whether a POST without key may be sent again */
  safe?: boolean;
  patience?: number;
}

export class Troupe {
  constructor(options?: Options);
  readonly url: string;
  readonly agents: {
    list(options?: Cancelable): AsyncGenerator<Agent, void, void>;
    get(agent: string, options?: Cancelable): Promise<Agent>;
  };
  readonly approvals: {
    list(options?: Cancelable): AsyncGenerator<Approval, void, void>;
    get(approval: string, options?: Cancelable): Promise<Approval>;
    approve(approval: string, options?: Keyed & { reason?: string; raise?: Raise }): Promise<Approval>;
    reject(approval: string, options?: Keyed & { reason?: string }): Promise<Approval>;
  };
  readonly runs: {
    list(filters?: Cancelable & { [name: string]: any }): AsyncGenerator<Run, void, void>;
    get(run: string, options?: Cancelable): Promise<Run>;
    tree(run: string, options?: Cancelable): Promise<Run[]>;
    cancel(run: string, options?: Cancelable): Promise<{ run_id: string; status: string }>;
    retry(run: string, options?: Cancelable): Promise<{ run_id: string; status: string }>;
    signal(run: string, name: string, options?: Keyed & { payload?: unknown }): Promise<{ run_id: string; name: string; status: string }>;
    events(run: string, options?: EventsOptions): EventStream;
    wait(run: string, options?: Cancelable & { timeout?: number }): Promise<Answer>;
  };
  readonly sessions: {
    list(options?: Cancelable): AsyncGenerator<Session, void, void>;
    get(session: string, options?: Cancelable): Promise<Session>;
    create(options?: Keyed & { session?: string; title?: string; metadata?: { [name: string]: Json } }): Promise<Session>;
    delete(session: string, options?: Cancelable & { cancel?: boolean }): Promise<void>;
    messages(session: string, options?: Cancelable & { agent?: string; limit?: number; before?: string }): Promise<Messages>;
    history(session: string, options?: Cancelable & { agent?: string }): AsyncGenerator<Message, void, void>;
    events(session: string, options?: Omit<EventsOptions, "tree">): EventStream;
  };
  /** sends a message and returns the answer, also one for which a person must decide first */
  send(agent: string, message: Content, options?: SendOptions): Promise<Answer>;
  /** sends a message and returns as soon as it is on disk */
  start(agent: string, message: Content, options?: MessageOptions): Promise<Started>;
  /** sends a message when the first event is asked for, and returns the events of its run */
  stream(agent: string, message: Content, options?: MessageOptions & StreamOptions): EventStream;
  /** events of any path of the HTTP API */
  events(path: string, options?: StreamOptions & { after?: string; runId?: string }): EventStream;
  channel(options?: ChannelOptions): Channel;
  /** any request of the HTTP API */
  request(method: string, path: string, options?: RequestOptions): Promise<any>;
  pages(path: string, name: string, query?: RequestOptions["query"], signal?: AbortSignal): AsyncGenerator<any, void, void>;
}
