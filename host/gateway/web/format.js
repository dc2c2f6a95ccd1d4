// SPDX-License-Identifier: Apache-2.0
// Texts and elements that several views of the console show.

import { el, visible } from "./dom.js";

const tones = { DONE: "ok", SUCCEEDED: "ok", FAILED: "danger", CANCELLED: "", RUNNING: "busy", QUEUED: "busy", PAUSED_WAITING_APPROVAL: "warn", Parked: "warn", healthy: "ok", unhealthy: "danger" };

export const tone = (status) => tones[status] ?? "";

const words = { PAUSED_WAITING_APPROVAL: "waits", Parked: "parked" };

// chip shows a status.
export const chip = (status) => el("span", { class: "chip", "data-tone": tone(status), text: visible(words[status] ?? status.toLowerCase()) });

// statusOf returns the status of a run, or Parked.
export const statusOf = (run) => (run.agent_state === "Parked" ? "Parked" : run.status);

export const tokens = (usage) => (usage?.total_tokens ? usage.total_tokens.toLocaleString() : "");

// took returns a duration in ms as text.
export function took(ms) {
  if (!(ms >= 0)) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 5400000) return `${Math.round(ms / 60000)} min`;
  return `${Math.round(ms / 3600000)} h`;
}

// until returns the time to a deadline as text.
export const until = (at) => (Date.parse(at) > Date.now() ? `expires in ${took(Date.parse(at) - Date.now())}` : "expired");

// keyCommand makes a key for the console.
export const keyCommand = "troupe keys create --scope operator --scope read --scope call --data DIR";

// refusal returns why the server refuses a request. A key that lacks one scope needs the others of the console too.
export function refusal(e) {
  const lacks = e.code === "forbidden_scope" && /lacks the scope (\w+)/.exec(e.message)?.[1];
  if (!lacks) return visible(e.message);
  return lacks === "admin" ? "Your key lacks the scope admin." : `Your key lacks the scope ${lacks}. A key for the console: ${keyCommand}`;
}

export const runLink = (run, space) => `#run/${run}/${space}`;

// spaceOf returns the namespace in the name of an actor, by which an operator names the user of what it asks for:
// queries have no escapes, and names of users may need some.
export const spaceOf = (actor) => (actor.split("/").length > 2 ? actor.split("/")[0] : "default");

// table returns a table with these columns: [title, cell(row), class].
export function table(columns, rows, link) {
  const body = el("tbody", {}, ...rows.map((row) => {
    const open = link && (() => (location.hash = link(row)));
    return el("tr", open ? { class: "link", tabindex: "0", "data-step": true, onclick: open, onkeydown: (e) => e.key === "Enter" && open() } : {},
      ...columns.map(([, cell, kind]) => {
        const content = cell(row);
        return el("td", { class: kind, title: typeof content === "string" ? visible(content) : null }, typeof content === "string" ? visible(content) : content);
      }));
  }));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...columns.map(([title, , kind]) => el("th", { class: kind, scope: "col", text: title })))), body));
}

// keepFocus replaces the children of an element, and focuses the element that stands where the focused one stood.
export function keepFocus(root, ...children) {
  const at = [...root.querySelectorAll("[data-step]")].indexOf(document.activeElement);
  root.replaceChildren(...children);
  if (at >= 0) root.querySelectorAll("[data-step]")[at]?.focus({ preventScroll: true });
}
