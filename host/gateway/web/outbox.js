// SPDX-License-Identifier: Apache-2.0
// What the person has written and the server has not accepted: messages and drafts. It is kept for a reload of this
// tab, and no longer. It is the person's whose key the tab has.

const unsentSlot = "troupe.unsent"; // [{request, written}]
const draftsSlot = "troupe.drafts"; // texts by session; "" is the place for a new conversation
const userSlot = "troupe.user";

const draftsMax = 50;
// A request_id makes a repeat harmless for 24 h. An older message is not sent without the person.
const repeatMax = 23 * 3600 * 1000;

function read(slot, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(slot)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

// write keeps a value. If the browser keeps no more, the former one is dropped: it would be an old one.
function write(slot, value) {
  try {
    sessionStorage.setItem(slot, JSON.stringify(value));
  } catch {
    sessionStorage.removeItem(slot);
  }
}

// keepUnsent keeps the messages of requests that were not answered.
export const keepUnsent = (channel) =>
  write(unsentSlot, [...channel.requests.values()].filter((r) => r.type === "agent_invoke").map((request) => ({ request, written: channel.written.has(request.request_id) })));

// takeUnsent returns the messages that were kept. One that is too old becomes a draft of its session.
export function takeUnsent() {
  const all = read(unsentSlot, []);
  const old = all.filter((u) => Date.now() - u.request.ts > repeatMax);
  for (const { request: r } of old) keepDraft(r.session_id, [draft(r.session_id), r.message.content].filter(Boolean).join("\n\n"));
  return all.filter((u) => !old.includes(u));
}

export const draft = (session) => read(draftsSlot, {})[session ?? ""] ?? "";

export function keepDraft(session, text) {
  const { [session ?? ""]: _, ...others } = read(draftsSlot, {});
  const all = text ? { ...others, [session ?? ""]: text } : others;
  write(draftsSlot, Object.fromEntries(Object.entries(all).slice(-draftsMax)));
}

// forgetAll drops all, for another person.
export const forgetAll = () => [unsentSlot, draftsSlot, userSlot].forEach((slot) => sessionStorage.removeItem(slot));

// belongsTo reports whether what is kept is a user's, who has it from now on. Otherwise it is dropped.
export function belongsTo(user) {
  const before = read(userSlot, user);
  if (before !== user) forgetAll();
  write(userSlot, user);
  return before === user;
}
