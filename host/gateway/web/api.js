// SPDX-License-Identifier: Apache-2.0
// Requests to the HTTP API with the key of this tab.

const slot = "troupe.key";

export const apiKey = () => sessionStorage.getItem(slot) ?? "";
export function setApiKey(key) {
  if (key) sessionStorage.setItem(slot, key);
  else sessionStorage.removeItem(slot);
}

// isToken reports whether a key is a token that a website has given to this tab, and not a person's own.
export const isToken = (key) => key.startsWith("troupe_token.");

// Problem is an answer of the server that refuses a request.
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || `the server answered ${status}`);
    this.status = status;
    this.code = body.code ?? "";
  }
}

// parse decodes JSON. A whole number with more digits than a number of this language keeps them, so that a
// person approves what is sent, where the browser has JSON.rawJSON; it is for json() only.
export const parse = (text) =>
  JSON.parse(text, (_, value, context) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source && JSON.rawJSON ? JSON.rawJSON(context.source) : value);

// request sends a request and returns the decoded answer.
export async function request(method, path, body) {
  const headers = {};
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const decoded = await answer.text().then(parse).catch(() => ({}));
  if (!answer.ok) throw new Problem(answer.status, decoded);
  return decoded;
}
