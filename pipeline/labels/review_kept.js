"use strict";
const { head, rows } = JSON.parse(document.getElementById("data").textContent);

// What is kept: an entry {label, comment, at, saved} by row. No label: it is open; null: it was skipped. saved: a file
// has it. The browser's store is what all tabs of a page share; what it does not take stays in the memory of this one.
const BASE = `review/${head.run}/${head.digest}/`;
const memory = new Map();
const loose = new Set(); // keys of entries that are neither in the store nor in a file
let store = null;
try {
  localStorage.getItem(BASE);
  store = localStorage;
} catch { /* what NOT_KEPT says */ }

let who = kept("reviewer") ?? "";
let place = Math.min(Number(kept("place") ?? 0), rows.length - 1);
let entries = [];
let undone = [];

function kept(key) { return memory.get(key) ?? store?.getItem(BASE + key); }

function keep(key, text) {
  try {
    store.setItem(BASE + key, text);
    memory.delete(key);
  } catch {
    memory.set(key, text);
  }
}

function newer(a, b) { return b && !(a?.at > b.at) ? b : a; }

function entryOf(name, i) {
  const found = [store?.getItem(`${BASE}${name}/${i}`), memory.get(`${name}/${i}`)];
  return found.map((text) => JSON.parse(text ?? null) ?? undefined).reduce(newer);
}

function write(i, entry) {
  const key = `${who}/${i}`;
  entries[i] = { ...entry, at: entry.at ?? new Date().toISOString() };
  keep(key, JSON.stringify(entries[i]));
  if (memory.has(key) && !entries[i].saved) loose.add(key); else loose.delete(key);
}

function take(name) {
  who = name;
  keep("reviewer", who);
  entries = rows.map((_, i) => entryOf(who, i));
  undone = [];
}

// Read what other tabs have written of some rows.
function refresh(places) {
  const { at } = entries[place] ?? {};
  for (const i of places) entries[i] = newer(entries[i], entryOf(who, i));
  if (entries[place]?.at !== at && document.activeElement !== $("comment")) show(); else tell();
}

// The labels of who, who has mistyped the name, become those of name, who has none.
function rename(name) {
  const [before, old] = [entries, who];
  take(name);
  before.forEach((entry, i) => {
    if (!entry) return;
    write(i, { ...entry, saved: undefined }); // the file has the other name
    memory.delete(`${old}/${i}`);
    loose.delete(`${old}/${i}`);
    store?.removeItem(`${BASE}${old}/${i}`);
  });
}

// Keys of labels of other pages that files have: they may go where a browser keeps no more.
function spare() {
  const others = Object.keys(store).filter((key) => /^review\/.*\/\d+$/.test(key) && !key.startsWith(BASE));
  return others.filter((key) => JSON.parse(store.getItem(key))?.saved);
}

function makeRoom() {
  for (const key of spare()) store.removeItem(key);
  for (const [key, text] of memory) {
    keep(key, text);
    if (!memory.has(key)) loose.delete(key);
  }
  tell();
}

const isLabelled = (i) => typeof entries[i]?.label === "string";
