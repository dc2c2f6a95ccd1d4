// SPDX-License-Identifier: Apache-2.0
// Requests over HTTP with their credentials, and their repetition within bounds.

import { refusalOf, TroupeError } from "./errors.js";

// Bytes of an answer that is no stream: a page of messages has 8 MiB of content.
const answerBytesMax = 64 << 20;

// Seconds to an answer. The server answers a message after two minutes at most, a long poll after one.
const answerSeconds = 330;

// Seconds that a limit may be exceeded, within the patience.
const busySeconds = 30;

export const now = () => performance.now() / 1000;

// backoff returns the seconds before an attempt: 0.1 to 2, of which the second half is random.
export const backoff = (attempt) => (0.5 + Math.random() / 2) * Math.min(0.1 * 2 ** Math.min(attempt, 10), 2);

// sleep waits. It rejects with the reason of a signal that is aborted, and leaves no listener on it.
export function sleep(seconds, signal) {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve();
    }, seconds * 1000);
    if (signal?.aborted) end();
    else signal?.addEventListener("abort", end, { once: true });
  });
}

// Link is a signal of its own for one request, which is aborted with that of the caller. A signal that lives long gets one
// listener at a time, which close removes.
export class Link {
  constructor(signal) {
    this.controller = new AbortController();
    this.outer = signal;
    this.end = () => this.controller.abort(signal.reason);
    if (signal?.aborted) this.end();
    else signal?.addEventListener("abort", this.end, { once: true });
  }

  get signal() {
    return this.controller.signal;
  }

  close() {
    this.outer?.removeEventListener("abort", this.end);
  }
}

// unlessAborted waits for a promise that knows no signal.
function unlessAborted(promise, signal) {
  return new Promise((resolve, reject) => {
    const end = () => reject(signal.reason);
    if (signal?.aborted) end();
    signal?.addEventListener("abort", end, { once: true });
    promise.then(resolve, reject).finally(() => signal?.removeEventListener("abort", end));
  });
}

// encode returns a value as JSON. Half a surrogate pair, as of a text that was cut, becomes a replacement character: the
// server refuses what is no Unicode.
export function encode(value) {
  const text = JSON.stringify(value);
  return text?.includes("\\ud") ? JSON.stringify(value, (_, v) => (typeof v === "string" ? v.replace(/\p{Surrogate}/gu, "\ufffd") : v)) : text;
}

// newKey returns an idempotency key: a UUIDv7, whose time orders the session that it begins.
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  let at = Date.now();
  for (let i = 5; i >= 0; i--, at = Math.floor(at / 256)) bytes[i] = at % 256;
  bytes[6] = 0x70 | (bytes[6] & 0x0f);
  bytes[8] = 0x80 | (bytes[8] & 0x3f);
  const hex = Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

// segment returns a name as one segment of a path. The paths of the server have no escapes, so another name is none.
export function segment(name, what) {
  if (typeof name === "string" && /^[A-Za-z0-9._:-]{1,255}$/.test(name) && name !== "." && name !== "..") return name;
  throw new TroupeError("invalid_request", `${what} is ${JSON.stringify(name)}, want 1 to 255 of A-Z a-z 0-9 . _ -`, { field: what });
}

// Credentials are the bearer of requests: a text, or a function that returns one. A function that returns a promise is
// asked once, and again when the server has refused what it gave; another one is asked for each request.
export class Credentials {
  constructor(source) {
    this.source = source;
  }

  async bearer() {
    return checked(await (this.kept ?? this.ask()));
  }

  ask(about) {
    const token = typeof this.source === "function" ? this.source(about) : this.source;
    if (typeof token?.then === "function") {
      this.kept = token;
      const drop = () => this.kept === token && (this.kept = undefined);
      token.then((text) => text || drop(), drop);
    }
    return token;
  }

  // renewed returns another bearer than the one that was refused, or "". Requests that were refused at the same time share
  // one call of the function.
  async renewed(refused) {
    if (typeof this.source !== "function") return "";
    const present = await this.bearer();
    if (present !== refused) return present;
    this.renewing ??= (async () => {
      this.kept = undefined;
      return checked(await this.ask({ refused }));
    })().finally(() => (this.renewing = undefined));
    const token = await this.renewing;
    return token === refused ? "" : token;
  }
}

// checked returns a bearer as it may stand in a header.
function checked(token) {
  if (token === undefined || token === null || token === "") return "";
  if (typeof token !== "string" || /[^\x21-\x7e]/.test(token)) throw new TroupeError("unauthorized", "the key or token is no text of printable characters", { status: 401 });
  return token;
}

// Requests sends requests to one server.
export class Requests {
  constructor({ url, credentials, user, patience, fetch, parse }) {
    Object.assign(this, { url, credentials, user, patience, parse });
    this.fetch = fetch ?? ((...of) => globalThis.fetch(...of));
  }

  // open sends a request once, or twice if the bearer was refused and there is another one, and returns the response with
  // its unread body. A request without an answer rejects with what fetch gives.
  async open(method, path, { body, query, headers, signal }) {
    const params = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null);
    const target = this.url + path + (params.length ? `${path.includes("?") ? "&" : "?"}${new URLSearchParams(params)}` : "");
    let token = await unlessAborted(this.credentials.bearer(), signal);
    for (let renewed = false; ; renewed = true) {
      const response = await this.fetch(target, {
        method,
        headers: { ...headers, ...(this.user && { "X-User-Id": this.user }), ...(token && { Authorization: `Bearer ${token}` }), ...(body !== undefined && { "Content-Type": "application/json" }) },
        body,
        signal,
        redirect: "manual", // the API has none, and a token is for this server
        cache: "no-store", // streams of one address do not wait for one another
      });
      if (response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400)) {
        await response.body?.cancel();
        throw new TroupeError("not_an_answer", `the server redirects ${path}`, { status: response.status });
      }
      if (response.status !== 401 || renewed) return response;
      const next = await unlessAborted(this.credentials.renewed(token), signal);
      if (!next) return response;
      await response.body?.cancel();
      token = next;
    }
  }

  // send performs a request until it has an answer, and returns the decoded one with its status. A POST is only repeated
  // with a key, or if it is marked as safe, because the answer to the first one may be lost.
  async send(method, path, { body, query, key, headers, signal, seconds = answerSeconds, safe, patience = this.patience } = {}) {
    const text = body === undefined ? undefined : encode(body);
    const repeatable = safe || key || method !== "POST";
    let lost = false;
    for (const retry = new Retry(patience, repeatable, key); ; ) {
      signal?.throwIfAborted();
      const link = new Link(signal);
      const timer = setTimeout(() => link.controller.abort(new Error(`no answer within ${seconds} s`)), seconds * 1000);
      let wait;
      try {
        retry.began();
        const response = await this.open(method, path, { body: text, query, headers: { ...headers, ...(key && { "Idempotency-Key": key }) }, signal: link.signal });
        const answer = await readText(response);
        if (response.ok) return { status: response.status, body: answer ? this.decode(answer, response.status) : {}, headers: response.headers };
        if (method === "DELETE" && lost && response.status === 404) return { status: 204, body: {}, headers: response.headers };
        wait = retry.refused(refusalOf(response.status, response.headers, answer, key));
      } catch (e) {
        signal?.throwIfAborted();
        if (e instanceof TroupeError) throw e;
        lost = true;
        wait = retry.lost(e, `${method} ${path}`);
      } finally {
        clearTimeout(timer);
        link.close();
      }
      await sleep(wait, signal);
    }
  }

  decode(text, status) {
    try {
      return this.parse(text);
    } catch (cause) {
      throw new TroupeError("not_an_answer", `the server answered ${status} with ${JSON.stringify(text.slice(0, 80))}`, { status, cause });
    }
  }
}

// readText reads the body of an answer.
export async function readText(response) {
  if (!response.body) return "";
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let text = "";
  for (let size = 0, part; !(part = await reader.read()).done; ) {
    size += part.value.length;
    if (size > answerBytesMax) {
      await reader.cancel();
      throw new TroupeError("not_an_answer", `the answer has more than ${answerBytesMax} bytes`, { status: response.status });
    }
    text += decoder.decode(part.value, { stream: true });
  }
  return text + decoder.decode();
}

// Retry bounds the repetition of one request, or the connections of one stream since its last event.
export class Retry {
  constructor(patience, repeatable = true, key = "") {
    Object.assign(this, { patience, repeatable, key });
    this.succeeded();
  }

  succeeded() {
    this.attempt = 0;
    this.failing = this.busy = undefined; // times of the first failure
  }

  // began marks the begin of an attempt.
  began() {
    this.at = now();
  }

  // lost returns the seconds before the next attempt, after one without an answer.
  lost(cause, what) {
    this.failing ??= this.at;
    if (!this.repeatable || now() - this.failing >= this.patience) {
      const message = this.repeatable ? `${what}: ${cause?.message ?? cause}` : `${what}: ${cause?.message ?? cause}; it may have been performed`;
      throw new TroupeError("server_unreachable", message, { cause, key: this.key });
    }
    return backoff(++this.attempt);
  }

  // refused returns the seconds before the next attempt, after a refusal that is the state of the server. Others are
  // thrown, and so is one that asks for more time than is left: it was not performed.
  refused(r) {
    const transient = [502, 503, 504].includes(r.status) && !r.runId && ["agent_unavailable", "timeout", "not_an_answer"].includes(r.code);
    const limited = r.code === "agent_busy" || r.status === 429;
    if (!limited && !(transient && this.repeatable)) throw r;
    const since = limited ? (this.busy ??= this.at) : (this.failing ??= this.at);
    const left = (limited && this.patience < Infinity ? Math.min(busySeconds, this.patience) : this.patience) - (now() - since);
    const wait = Math.max(r.retryAfter * (1 + Math.random() / 5), backoff(++this.attempt));
    if (left <= 0 || r.retryAfter > left) throw r;
    return wait;
  }
}
