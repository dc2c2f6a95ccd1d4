// SPDX-License-Identifier: Apache-2.0
// What failed, in the words of the person who sent the message.

// What the person can do about a failure: send the message again as it is, or change it.
const again = "again";
const edit = "edit";

// failures has a sentence for each code of a run or a message, and what may help.
const failures = {
  agent_busy: ["The agent has too much to do just now.", again],
  agent_not_found: ["This agent does not exist any more.", edit],
  agent_unavailable: ["The agent cannot be reached just now.", again],
  approval_rejected: ["A step was not approved.", edit],
  budget_exceeded: ["The message or its answer reached a limit.", edit],
  call_cycle: ["The agents asked one another in a circle.", edit],
  call_depth: ["Too many agents asked one another.", edit],
  call_rejected: ["The agent, or one of its tools, reported an error.", again],
  call_wait_cycle: ["The agents waited for one another.", again],
  client_offline: ["The device that should do a step is not connected.", again],
  events_exceeded: ["The answer became too long.", edit],
  forbidden: ["You may not do this.", ""],
  forbidden_scope: ["Your key does not permit this.", ""],
  forbidden_user: ["Your key does not permit this.", ""],
  internal: ["The server made a mistake.", again],
  invalid_request: ["The message cannot be sent like this.", edit],
  model_auth: ["The server may not use the model of this agent. Its operator can mend that.", again],
  model_not_found: ["The model of this agent does not exist. Its operator can mend that.", again],
  model_rejected: ["The model refused the message.", edit],
  outcome_unknown: ["It is not known whether a step was performed. Look before you send the message again.", edit],
  policy_blocked: ["The rules of this server do not allow a step.", edit],
  session_busy: ["An earlier message is not answered yet.", again],
  storage_full: ["The server has no space left. Its operator can mend that.", again],
  storage_share: ["You have used up your space. Delete conversations.", again],
  timeout: ["The answer took too long.", again],
  unauthorized: ["Your key is not valid.", ""],
};

// failure returns the sentence of a code and whether the same message may be sent again, or a changed one.
export function failure(code) {
  const [text, helps] = Object.hasOwn(failures, code) ? failures[code] : ["This did not work.", again];
  return { text, again: helps === again, edit: helps === edit };
}

// limitEnds returns when a limit on the messages of a user ends, in ms; undefined if a failure is not about one. The time
// to wait counts from the failure, which may be of an earlier day.
export function limitEnds(m, now = Date.now()) {
  if (m.code !== "budget_exceeded") return undefined;
  const at = m.ts ?? now;
  const seconds = Number(m.detail?.retry_after ?? m.retry_after);
  if (seconds > 0) return at + seconds * 1000;
  const day = 24 * 3600 * 1000; // of UTC
  return /\buser_messages_per_day\b/.test(m.message ?? "") ? (Math.floor(at / day) + 1) * day : undefined;
}

// limitReached returns what a limit that ends at a time means for the person.
export function limitReached(until, now = Date.now()) {
  if (until <= now) return { text: "You had reached the limit of your messages. You can write again.", again: true, edit: false };
  const then = new Date(until);
  const today = then.toDateString() === new Date(now).toDateString();
  const time = then.toLocaleString(undefined, { ...(today ? {} : { dateStyle: "medium" }), timeStyle: "short" });
  return { text: `You have reached the limit of your messages. No further messages are possible until ${time}.`, again: false, edit: false };
}
