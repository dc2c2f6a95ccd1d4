// SPDX-License-Identifier: Apache-2.0
// Builds elements. Texts are set as text, never as HTML.

// el returns an element. Properties that begin with "on" are listeners; "text" is its text,
// "class" its class; others are attributes, which null, undefined and false omit.
export function el(name, properties = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") e.textContent = value;
    else if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else e.setAttribute(key, value === true ? "" : value);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

export const byId = (id) => document.getElementById(id);

// copyButton returns a button that copies the text that a function returns.
export function copyButton(text, label) {
  const b = el("button", { class: "button quiet small", type: "button", text: "Copy", "aria-label": label, onclick: async () => {
    b.textContent = (await copied(text())) ? "Copied" : "Cannot copy";
    setTimeout(() => (b.textContent = "Copy"), 1500);
  } });
  return b;
}

// copied copies a text to the clipboard and reports whether it could. Pages have navigator.clipboard on https and
// on loopback only.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    const field = el("textarea", { class: "visually-hidden", readonly: true });
    field.value = text;
    document.body.append(field);
    field.select();
    const ok = document.execCommand("copy");
    field.remove();
    focused?.focus();
    return ok;
  }
}

// announce lets screen readers read a text.
export function announce(text) {
  const live = byId("live");
  live.replaceChildren(el("p", { text }));
}

// ago returns a short text for a time, in milliseconds.
export function ago(then, now = Date.now()) {
  const minutes = Math.floor((now - then) / 60000);
  if (minutes < 1) return "now";
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h`;
  return new Date(then).toLocaleDateString(undefined, { month: "short", day: "numeric" });
}

// json returns a value as indented JSON, or a text as it is.
export const json = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

const invisible = /(?![\n\t])[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]/gu;

// visible returns a text with invisible characters, and those that reorder others, as escapes of JSON.
export const visible = (text) =>
  String(text).replace(invisible, (c) => c.split("").map((unit) => "\\u" + unit.charCodeAt(0).toString(16).padStart(4, "0")).join(""));
