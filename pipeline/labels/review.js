const $ = (id) => document.getElementById(id);
const KEYS = { j: () => move(1), k: () => move(-1), u: undo, s: () => decide(null), c: () => $("comment").focus(),
  f: () => $("open").click(), "?": ask };
[KEYS.ArrowRight, KEYS.ArrowLeft] = [KEYS.j, KEYS.k];
let atEnd = false; // the row on screen was the last to label: what is pressed now is not meant for it

// What happens.
function decide(label) {
  if (!who) return ask();
  if (atEnd) return say("This was the last row: undo its label (u), or move, to change it.");
  undone.push([place, entries[place]?.label]);
  write(place, { label, comment: entries[place]?.comment });
  say("");
  atEnd = !move(1);
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
    i = around.find((n) => !isLabelled(n)) ?? many;
  }
  const isLast = i >= rows.length;
  if (isLast) {
    const left = rows.filter((_, n) => entries[n]?.label === undefined).length;
    say(`This was the last row. ${left ? `${left} are still open.` : "Save the labels."}`);
  }
  if (isLast && isOpen) show(); else go(Math.max(0, Math.min(i, rows.length - 1)));
  return !isLast;
}

function go(i) {
  place = i;
  atEnd = false;
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
  const [row, lineage, id, , fields, pictures] = rows[place];
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
  const number = row === null ? null : `${id === null ? "Row" : "row"} ${row}`;
  const names = [id, number, lineage?.length ? `lineage ${lineage.join(".")}` : null];
  $("title").textContent = names.filter((name) => name !== null).join(", ");
  $("comment").value = entries[place]?.comment ?? "";
  tell();
}

function tell() {
  const now = entries[place]?.label;
  const labelled = rows.filter((_, i) => isLabelled(i)).length;
  const skipped = entries.filter((each) => each?.label === null).length;
  const unsaved = entries.filter((each) => each && !each.saved).length;
  const more = (skipped ? `, ${skipped} skipped` : "") + (unsaved ? `, ${unsaved} not in a file yet` : "");
  $("progress").textContent = `${place + 1} of ${rows.length}: ${labelled} labelled${more}`;
  [$("bar").max, $("bar").value] = [rows.length, labelled + skipped];
  for (const [i, button] of [...$("choices").children].entries()) button.ariaPressed = now === head.choices[i];
  $("skip").ariaPressed = now === null;
  const full = `This browser keeps no more: save a file now, ${loose.size} rows are in this open page alone.`;
  $("warning").textContent = store ? (loose.size ? full : "") : NOT_KEPT;
  $("room").hidden = !store || !loose.size || !spare().length;
  $("undo").disabled = !undone.length;
  $("back").disabled = !place && !$("open").checked;
}

// Who labels, and how.
function ask() {
  $("name").value = who;
  $("keep").hidden = true;
  $("refused").textContent = "";
  if (!$("dialog").open) $("dialog").showModal();
}

$("dialog").addEventListener("close", () => { if (!who) ask(); }); // Escape closes it, too
$("dialog").addEventListener("submit", (event) => {
  const name = $("name").value.trim();
  const isTaken = name !== who && $("take").checked && rows.some((_, i) => entryOf(name, i));
  if (isTaken) $("refused").textContent = `${name} has labels already, which would be mixed with these.`;
  if (!name || isTaken) return event.preventDefault();
  if (name !== who) ($("take").checked ? rename : take)(name);
  $("take").checked = false;
  show();
});
$("name").addEventListener("input", () => {
  const many = entries.filter(Boolean).length;
  $("keep").hidden = !many || $("name").value.trim() === who;
  $("take").nextElementSibling.textContent = `The name changes; the ${many} rows of ${who} stay mine.`;
});

// A digit means the choice with that number, if choices have numbers, else the choice in that place. First letters
// are keys if every choice without a number has one of its own.
const numbers = head.choices.map((choice) => {
  const text = /^\s*[+-]?\d+(\.\d+)?/.exec(choice)?.[0];
  return text === undefined ? null : Number(text);
});
const letters = head.choices.map((choice) => [...choice][0].toLowerCase());
const hasNumbers = numbers.some((number) => number !== null);
const hasLetters = letters.every((letter, i) => numbers[i] !== null || (/\p{L}/u.test(letter) && !(letter in KEYS)
  && letters.indexOf(letter) === letters.lastIndexOf(letter)));
const keysOf = head.choices.map((_, i) => {
  const digit = hasNumbers ? numbers[i] : i + 1;
  const isAlone = !hasNumbers || numbers.indexOf(digit) === numbers.lastIndexOf(digit);
  const isKey = isAlone && digit !== null && /^\d$/.test(String(digit));
  return [...(isKey ? [String(digit)] : []), ...(hasLetters && numbers[i] === null ? [letters[i]] : [])];
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
$("question").textContent = head.question;

const BUTTONS = { back: KEYS.k, next: KEYS.j, skip: KEYS.s, undo, about: ask, room: makeRoom,
  jsonl: () => save(".jsonl"), csv: () => save(".defused.csv"), pick: () => $("file").click() };
for (const [id, act] of Object.entries(BUTTONS)) $(id).addEventListener("click", act);
$("open").addEventListener("change", () => {
  atEnd = false;
  if ($("open").checked && isLabelled(place)) move(1); else tell();
});
$("file").addEventListener("change", async () => {
  if ($("file").files.length) await load($("file").files[0]);
  $("file").value = "";
});
$("comment").addEventListener("input", () => {
  if (!who) return ask();
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
addEventListener("beforeunload", (event) => { if (loose.size) event.preventDefault(); });
addEventListener("storage", (event) => { // another tab has written
  if (event.key?.startsWith(`${BASE}${who}/`)) refresh([Number(event.key.slice(`${BASE}${who}/`.length))]);
});
addEventListener("focus", () => refresh(rows.keys()));

take(who);
show();
if (!who) ask();
