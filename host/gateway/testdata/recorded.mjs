// SPDX-License-Identifier: Apache-2.0
// The part of a browser that the modules of the pages use. Its elements only record what a module makes of them.

export class Recorded {
  children = [];
  dataset = {};
  listeners = {};
  style = { setProperty() {} };
  value = "";
  constructor(name) {
    this.name = name;
  }
  addEventListener(event, listener) {
    this.listeners[event] = listener;
  }
  setAttribute(key, value) {
    if (key === "aria-label" || key === "class" || key === "href") this[key] = value;
  }
  append(...children) {
    for (const c of children) {
      if (c instanceof Recorded) c.parent = this;
      this.children.push(c);
    }
  }
  prepend(...children) {
    this.append(...children);
  }
  appendChild(child) {
    this.append(child);
    return child;
  }
  replaceChildren(...children) {
    this.children = children;
  }
  remove() {
    if (this.parent) this.parent.children = this.parent.children.filter((c) => c !== this);
  }
  querySelector(selector) {
    return this.querySelectorAll(selector)[0] ?? new this.constructor();
  }
  querySelectorAll(selectors) {
    return this.all().filter((e) => selectors.split(", ").some((s) => (e.class ?? "").split(" ").includes(s.slice(1))));
  }
  all() {
    return [this, ...this.children.flatMap((c) => (c instanceof Recorded ? c.all() : []))];
  }
  set textContent(text) {
    this.children = [text];
  }
  get textContent() {
    return this.children.join("");
  }
  toString() {
    return this.children.join(" ");
  }
}

// useElements makes the modules of the pages create elements of a class.
export function useElements(Element) {
  globalThis.document = { createElement: (name) => new Element(name), getElementById: () => new Element() };
  globalThis.sessionStorage = { getItem: () => "" };
}

// answered waits until the answers of the server to the page are handled.
export async function answered() {
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
}
