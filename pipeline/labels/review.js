"use strict";
const { head, rows } = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const KEYS = { j: () => move(1), k: () => move(-1), u: undo, s: () => decide(null), c: () => $("comment").focus(),
  f: () => $("open").click(), "?": ask };
[KEYS.ArrowRight, KEYS.ArrowLeft] = [KEYS.j, KEYS.k];
const FIELDS = "run folder row lineage id reviewer label comment labelled_at stratum stratum_rows sample".split(" ");
const RUNS = /^['=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/; // what spreadsheets run gets a mark, as output.defuse does

// What is kept: an entry {label, comment, at} by row. No label: it is open; null: it was skipped.
const BASE = `review/${head.run}/${head.digest}/`;
const memory = new Map();
let store = null;
try {
  localStorage.setItem(BASE, "");
  localStorage.removeItem(BASE);
  store = localStorage;
} catch { /* what NOT_KEPT says */ }
const kept = (key) => memory.get(key) ?? store?.getItem(BASE + key);
let who = kept("reviewer") ?? "";
let place = Math.min(Number(kept("place") ?? 0), rows.length - 1);
let entries = [];
let undone = [];

function take(name) {
  who = name;
  keep("reviewer", who);
  entries = rows.map((_, i) => JSON.parse(kept(`${who}/${i}`) ?? null) ?? undefined);
  undone = [];
}

function keep(key, text) {
  memory.set(key, text);
  try {
    store?.setItem(BASE + key, text);
  } catch {
    say("This browser keeps no more: save a file now.");
  }
}

function write(i, entry) {
  entries[i] = { at: new Date().toISOString(), ...entry };
  keep(`${who}/${i}`, JSON.stringify(entries[i]));
}

const isLabelled = (i) => typeof entries[i]?.label === "string";

// What happens.
function decide(label) {
  undone.push([place, entries[place]?.label]);
  write(place, { label, comment: entries[place]?.comment });
  say("");
  move(1);
}

function undo() {
  if (!undone.length) return;
  const [i, label] = undone.pop();
  write(i, { label, comment: entries[i].comment });
  go(i);
}

function move(by) {
  const isOpen = $("open").checked;
  let i = place + by;
  if (isOpen) { // round the end, so that skipped rows come again
    const many = rows.length;
    const around = Array.from({ length: many }, (_, n) => (place + by * (n + 1) + many * many) % many);
    i = around.find((n) => !isLabelled(n)) ?? place;
  }
  const left = entries.filter((entry) => entry?.label === undefined).length;
  if (i >= rows.length) say(`This was the last row. ${left ? `${left} are still open.` : "Save the labels."}`);
  go(Math.max(0, Math.min(i, rows.length - 1)));
}

function go(i) {
  place = i;
  keep("place", i);
  show();
  scrollTo(0, 0);
}

// What is seen.
function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}

function say(text) { $("said").textContent = text; }

function value(field) {
  if (field === null) return make("div", "null", "value null");
  const box = make("div", typeof field === "string" ? field : field.json, field.json ? "value code" : "value");
  box.dir = "auto";
  for (const [role, text] of field.turns ?? []) {
    const turn = make("div", undefined, "turn");
    const said = make("div", text);
    said.dir = "auto";
    turn.append(make("b", role), said);
    box.append(turn);
  }
  return box;
}

function show() {
  const [row, lineage, , , fields, pictures] = rows[place];
  $("row").replaceChildren(...fields.map((field, i) => {
    const section = make("section");
    const alt = `picture of ${head.columns[i]}`;
    section.append(make("h3", head.columns[i]), value(field));
    section.append(...pictures[i].map((src) => Object.assign(make("img"), { alt, src })));
    return section;
  }));
  for (const box of document.querySelectorAll(".value")) {
    if (box.scrollHeight > box.clientHeight) { // the keyboard can scroll it
      [box.tabIndex, box.role, box.ariaLabel] = [0, "region", box.previousSibling.textContent];
      box.scrollTop = 0;
    }
  }
  $("title").textContent = `Row ${row ?? rows[place][2]}${lineage?.length ? `, lineage ${lineage.join(".")}` : ""}`;
  $("comment").value = entries[place]?.comment ?? "";
  tell();
}

function tell() {
  const now = entries[place]?.label;
  const labelled = rows.filter((_, i) => isLabelled(i)).length;
  const skipped = entries.filter((each) => each?.label === null).length;
  const since = kept(`${who}/saved`) ?? "";
  const unsaved = entries.filter((each) => each && each.at > since).length;
  const more = (skipped ? `, ${skipped} skipped` : "") + (unsaved ? `, ${unsaved} not in a file yet` : "");
  $("progress").textContent = `${place + 1} of ${rows.length}: ${labelled} labelled${more}`;
  [$("bar").max, $("bar").value] = [rows.length, labelled + skipped];
  for (const [i, button] of [...$("choices").children].entries()) button.ariaPressed = now === head.choices[i];
  $("skip").ariaPressed = now === null;
  $("undo").disabled = !undone.length;
  $("back").disabled = !place && !$("open").checked;
}

// Files.
function records() {
  return rows.flatMap(([row, lineage, id, stratum], i) => {
    const entry = entries[i];
    if (!entry) return [];
    const [name, many] = head.strata[stratum];
    const said = { reviewer: who, label: entry.label ?? null, comment: entry.comment ?? "", labelled_at: entry.at };
    const of = { run: head.run, folder: head.folder, row, ...(lineage?.length ? { lineage } : {}), id };
    return [{ ...of, ...said, stratum: name, stratum_rows: many, sample: head.sample }];
  });
}

function cell(field) {
  const text = Array.isArray(field) ? field.join(".") : String(field ?? "");
  const safe = typeof field === "string" && RUNS.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function save(ending) {
  const all = records();
  const isTable = ending !== ".jsonl";
  const table = [FIELDS, ...all.map((record) => FIELDS.map((name) => record[name]))];
  const lines = isTable ? table.map((line) => line.map(cell).join(",")) : all.map((record) => JSON.stringify(record));
  const link = make("a");
  link.download = `labels-${head.job}-${who}`.replace(/[^\p{L}\p{N}_-]+/gu, "_") + ending;
  link.href = URL.createObjectURL(new Blob([isTable ? "\ufeff" : "", lines.join("\n"), "\n"]));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  keep(`${who}/saved`, new Date().toISOString());
  say(`${all.length} rows are in ${link.download}, where this browser puts downloads.`);
  tell();
}

function tableOf(text) {
  const table = [[]];
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/g)) {
    table.at(-1).push((quoted?.replaceAll('""', '"') ?? plain).replace(/^'/, ""));
    if (end !== ",") table.push([]);
  }
  const [names, ...lines] = table.filter((line) => line.length === FIELDS.length);
  return lines.map((line) => Object.fromEntries(line.map((field, i) => [names[i], field || null])));
}

function keyOf(row, lineage, id) {
  return row === null ? `id ${id}` : `${row} ${(lineage ?? "").toString().replaceAll(",", ".")}`;
}

async function load(file) {
  try {
    const text = (await file.text()).replace(/^\ufeff/, "");
    const lines = () => text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
    const found = /\.csv$/i.test(file.name) ? tableOf(text) : lines();
    const names = [...new Set(found.map((record) => record.reviewer))];
    if (names.length !== 1 || !names[0]) throw new Error(`it has labels of ${names.length} reviewers, not of one`);
    const placeOf = new Map(rows.map(([row, lineage, id], i) => [keyOf(row, lineage, id), i]));
    const placed = found.map((record) => [record, placeOf.get(keyOf(record.row, record.lineage, record.id))]);
    const ours = placed.filter(([record, i]) => record.run === head.run && i !== undefined);
    if (!ours.length) throw new Error("none of its rows is on this page");
    if (names[0] !== who) take(names[0]);
    for (const [{ label, comment, labelled_at: at }, i] of ours) {
      if (!(entries[i]?.at > at)) write(i, { label, comment, at });
    }
    say(`${ours.length} of ${found.length} rows of ${file.name} are here; labels are those of ${who}.`);
    show();
  } catch (error) {
    say(`${file.name} cannot be loaded: ${error.message}`);
  }
}

// Who labels, and how.
function ask() {
  $("name").value = who;
  $("keep").hidden = true;
  $("dialog").showModal();
}

$("dialog").addEventListener("cancel", (event) => { if (!who) event.preventDefault(); });
$("dialog").addEventListener("submit", (event) => {
  const name = $("name").value.trim();
  if (!name) event.preventDefault();
  else if (name !== who) {
    const [before, old] = [entries, who];
    take(name);
    if ($("take").checked) {
      before.forEach((entry, i) => {
        if (entry && !entries[i]) write(i, entry);
        keep(`${old}/${i}`, "null");
      });
    }
    show();
  }
  $("take").checked = false;
});
$("name").addEventListener("input", () => {
  const many = entries.filter(Boolean).length;
  $("keep").hidden = !many || $("name").value.trim() === who;
  $("take").nextElementSibling.textContent = `The name changes; the ${many} rows of ${who} stay mine.`;
});

const letters = head.choices.map((choice) => [...choice][0].toLowerCase());
const keysOf = head.choices.map((choice, i) => {
  if (head.choices.every((each) => /^\d$/.test(each))) return [choice]; // points are typed as they are
  const alone = letters.filter((each) => each === letters[i]).length === 1;
  const isFree = alone && !(letters[i] in KEYS) && /\p{L}/u.test(letters[i]);
  return [...(i < 9 ? [String(i + 1)] : []), ...(isFree ? [letters[i]] : [])];
});
head.choices.forEach((choice, i) => {
  const button = make("button", `${choice} `);
  button.append(...keysOf[i].flatMap((key) => [make("kbd", key), " "]));
  button.setAttribute("aria-keyshortcuts", keysOf[i].join(" "));
  button.addEventListener("click", () => decide(choice));
  $("choices").append(button);
  for (const key of keysOf[i]) KEYS[key] = () => decide(choice);
});

const ABOUT = [...head.choices.map((choice, i) => [keysOf[i].join(" "), choice]),
  ["j \u2192", "next row"], ["k \u2190", "row before"], ["s", "skip"], ["u", "undo"], ["c", "comment; Esc leaves it"],
  ["f", "only unlabelled rows"], ["?", "this help"]];
$("keys").append(...ABOUT.filter(([key]) => key).flatMap(([keys, text]) => {
  const term = make("dt");
  term.append(...keys.split(" ").flatMap((key) => [make("kbd", key), " "]));
  return [term, make("dd", text)];
}));
const NOT_KEPT = "This browser keeps nothing for this page: save a file before you close it.";
const KEPT = store ? "Labels are kept in this browser as you go." : NOT_KEPT;
$("kept").textContent = `${KEPT} Nothing leaves this machine: what counts is the file that you save.`;
document.title = `Review: ${head.job}`;
$("job").textContent = head.job;
$("question").textContent = head.verdict === null ? "Your label" : `What should ${head.verdict} be?`;

const BUTTONS = { back: KEYS.k, next: KEYS.j, skip: KEYS.s, undo, about: ask,
  jsonl: () => save(".jsonl"), csv: () => save(".defused.csv"), pick: () => $("file").click() };
for (const [id, act] of Object.entries(BUTTONS)) $(id).addEventListener("click", act);
$("open").addEventListener("change", () => { if ($("open").checked && isLabelled(place)) move(1); else tell(); });
$("file").addEventListener("change", async () => {
  if ($("file").files.length) await load($("file").files[0]);
  $("file").value = "";
});
$("comment").addEventListener("input", () => {
  write(place, { label: entries[place]?.label, comment: $("comment").value });
  tell();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog").open) return;
  if (event.target.matches("textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act || (event.repeat && act !== KEYS.j && act !== KEYS.k)) return;
  event.preventDefault();
  act();
});
addEventListener("beforeunload", (event) => { if (!store && entries.some(Boolean)) event.preventDefault(); });

take(who);
show();
if (!store) say(NOT_KEPT);
if (!who) ask();
