// A document with as much of the DOM as the script of the status page needs to take a picture, show dialogs and ask for actions.
// `node page_document.js SCENARIO` runs the script in it, then SCENARIO, the body of an async function, and prints as JSON what
// that returns. The page comes on standard input.
"use strict";
const fs = require("fs"), vm = require("vm");

class Element {
  constructor() {
    Object.assign(this, { textContent: "", className: "", value: "", dataset: {}, children: [], listeners: {} });
    Object.assign(this, { hidden: false, disabled: false, open: false });
  }
  get firstChild() { return this.children[0] || null; }
  get nextSibling() { return null; }
  append(...parts) { this.children.push(...parts); }
  insertBefore(part) { this.children.push(part); }
  replaceChildren(...parts) { this.children = parts; }
  remove() {}
  setAttribute() {}
  removeAttribute() {}
  addEventListener(name, act) { (this.listeners[name] = this.listeners[name] || []).push(act); }
  fire(name) { for (const act of this.listeners[name] || []) act({ preventDefault() {} }); }
  click() { if (!this.disabled) this.fire("click"); }
  showModal() { this.open = true; }
  close() { this.open = false; setTimeout(() => this.fire("close"), 0); }
}

const known = {}, asked = [], find = (selector) => known[selector] = known[selector] || new Element();
const page = {
  document: {
    documentElement: { dataset: { scope: "fleet" } }, hidden: false, querySelector: find, createElement: () => new Element(),
    querySelectorAll: (selectors) => selectors.split(", ").map(find), addEventListener() {},
  },
  EventSource: class extends Element {}, requestAnimationFrame: (act) => setTimeout(act, 0), setInterval() {},
  fetch: (path, options) => new Promise((resolve) => asked.push({
    path, body: options && options.body ? JSON.parse(options.body) : null,
    answer: (body, ok = true) => resolve({ ok, json: async () => body }),
  })),
  performance, Intl, URLSearchParams, AbortSignal, setTimeout, clearTimeout,
};
vm.createContext(page);
vm.runInContext(fs.readFileSync(0, "utf8").match(/<script>(.*?)<\/script>/s)[1], page);

// what scenarios use, besides `find` and `asked`: `run` a script in the page, and `settle` what is due
const run = (script, given = {}) => vm.runInContext(script, Object.assign(page, given));
const settle = () => new Promise((resolve) => setTimeout(() => setTimeout(resolve, 0), 0));
const scenario = new (Object.getPrototypeOf(async () => {}).constructor)("find", "asked", "run", "settle", process.argv[2]);
scenario(find, asked, run, settle).then((found) => { console.log(JSON.stringify(found)); process.exit(0); });
