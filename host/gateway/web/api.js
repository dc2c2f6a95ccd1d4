// SPDX-License-Identifier: Apache-2.0
// The client of this tab, with its key.

import { Troupe } from "./troupe.js";

const slot = "troupe.key";

export const apiKey = () => sessionStorage.getItem(slot) ?? "";
export function setApiKey(key) {
  if (key) sessionStorage.setItem(slot, key);
  else sessionStorage.removeItem(slot);
}

// isToken reports whether a key is a token that a website has given to this tab, and not a person's own.
export const isToken = (key) => key.startsWith("troupe_token.");

// parse decodes JSON. A whole number with more digits than a number of this language keeps them, so that a
// person approves what is sent, where the browser has JSON.rawJSON; it is for json() only.
const parse = (text) =>
  JSON.parse(text, (_, value, context) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source && JSON.rawJSON ? JSON.rawJSON(context.source) : value);

// troupe sends each request once: a page says what has failed. Its errors have a status if the server has answered.
export const troupe = new Troupe({ token: apiKey, patience: 0, parse });

// request sends a request and returns the decoded answer.
export const request = (method, path, body) => troupe.request(method, path, { body });
