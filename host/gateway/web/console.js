// SPDX-License-Identifier: Apache-2.0
// The console: what waits for a person, runs, agents and figures, of all users.

import { apiKey, request, setApiKey } from "./api.js";
import { byId, el } from "./dom.js";
import { refusal } from "./format.js";
import { Inbox } from "./inbox.js";
import { Numbers, Parts } from "./figures.js";
import { RunPage } from "./runpage.js";
import { RunList } from "./runlist.js";
import { useTheme } from "./theme.js";

const period = 2000; // ms between two reads of a list

const views = { inbox: Inbox, runs: RunList, run: RunPage, parts: Parts, numbers: Numbers };
const view = byId("view");
let page = null; // the open view: refresh() reads it again, close() ends it
let timer = 0;

export function setState(state) {
  byId("status").dataset.state = state;
  byId("status-text").textContent = { ready: "Live", away: "Connecting again", connecting: "Connecting" }[state];
}

// route opens the view that the address names, such as #run/ID/USER or #runs?status=FAILED.
function route() {
  const [path, query] = location.hash.slice(1).split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  if (name === "view") return;
  page?.close?.();
  const View = views[name] ?? Inbox;
  for (const a of document.querySelectorAll(".tabs a")) {
    const current = views[a.dataset.view] === View || (View === RunPage && a.dataset.view === "runs");
    if (current) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  view.replaceChildren();
  view.scrollTop = 0;
  page = new View(view, { rest, query: new URLSearchParams(query), setState, refused });
  refresh();
}

// refused shows why the server does not answer a request. It returns whether the problem is the key. A key that lacks the
// scope of one action, which shows that itself, is kept.
function refused(e, action = false) {
  if (!e.status) {
    setState("away");
    return false;
  }
  if (e.status !== 401 && (action || e.code !== "forbidden_scope")) return false;
  byId("key-error").textContent = apiKey() ? refusal(e) : "";
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
  return true;
}

async function refresh() {
  clearTimeout(timer);
  const of = page, began = Date.now();
  try {
    await count();
    await of.refresh();
    setState("ready");
  } catch (e) {
    if (!refused(e) && of === page && e.status) of.failed?.(e);
  }
  if (of === page && !byId("key-dialog").open) timer = setTimeout(refresh, Math.max(document.hidden ? 5 * period : period, 4 * (Date.now() - began))); // a list that is slow to read is read less often
}

// count shows the number of approvals that wait.
async function count() {
  const { approvals, next_cursor } = await request("GET", "/v1/approvals?user=*&limit=100");
  byId("waiting").hidden = approvals.length === 0;
  byId("waiting").textContent = next_cursor ? "100+" : approvals.length;
  document.title = `${approvals.length ? `(${next_cursor ? "100+" : approvals.length}) ` : ""}Console · Troupe`;
}

// Digits open the views; j and k, or the arrows, move in a list.
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || /INPUT|TEXTAREA|SELECT/.test(e.target.tagName)) return;
  const tab = document.querySelectorAll(".tabs a")[Number(e.key) - 1];
  if (tab) location.hash = tab.hash;
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[e.key];
  if (!step) return;
  const all = [...view.querySelectorAll("[data-step]")];
  const at = all.indexOf(document.activeElement);
  if (all.length === 0 || (at < 0 && e.key.startsWith("Arrow"))) return;
  e.preventDefault();
  const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  next.focus();
});

byId("key-form").addEventListener("submit", (e) => {
  e.preventDefault();
  setApiKey(byId("key").value.trim());
  byId("key").value = "";
  byId("key-dialog").close();
  byId("forget-key").hidden = !apiKey();
  route();
});
byId("forget-key").addEventListener("click", () => {
  setApiKey("");
  location.reload();
});
byId("forget-key").hidden = !apiKey();
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => !document.hidden && page && refresh());
useTheme(byId("theme"));
route();
