// SPDX-License-Identifier: Apache-2.0
// The work of other agents that an agent of the conversation does not wait for: a card each, until its answer comes.

import { el } from "./dom.js";

// clock returns a time in milliseconds as minutes and seconds.
export const clock = (ms) => `${Math.floor(ms / 60000)}:${String(Math.floor(ms / 1000) % 60).padStart(2, "0")}`;

// TaskCards shows the pendingRequests of the state of a session.
export class TaskCards {
  constructor(root, cancel) {
    this.root = root;
    this.cancel = cancel;
    this.times = [];
  }

  get count() {
    return this.times.length;
  }

  show(pending, now = Date.now()) {
    this.times = [];
    const isReminder = (t) => t.skill === "remind" && t.agent === t.asker; // an agent cannot ask itself
    this.root.replaceChildren(...Object.values(pending).filter((t) => t.status !== "late" && !isReminder(t)).map((t) => {
      const time = el("span", { class: "muted" });
      this.times.push({ time, start: t.startTime });
      const cancel = el("button", { class: "button quiet small", type: "button", text: "Cancel", onclick: () => {
        cancel.disabled = true;
        this.cancel(t.taskId);
      } });
      const text = t.skill.replaceAll("_", " ") + (t.status === "waiting" ? ", which waits for a decision" : "");
      return el("div", { class: "activity" }, el("span", { class: "activity-icon", text: "↗", "aria-hidden": "true" }), el("span", { text }), time, cancel);
    }));
    this.root.hidden = this.count === 0;
    this.tick(now);
  }

  tick(now = Date.now()) {
    for (const t of this.times) t.time.textContent = clock(Math.max(now - t.start, 0));
  }
}
