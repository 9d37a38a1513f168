// Files of labels: what is saved, and read again.
const FIELDS = ("run folder row lineage id reviewer label skipped comment labelled_at stratum stratum_rows"
  + " sample defused").split(" ");
const RUNS = /^['=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/; // what spreadsheets run gets a mark, as output.defuse does

function records() {
  return rows.flatMap(([row, lineage, id, stratum], i) => {
    const entry = entries[i];
    if (!entry) return [];
    const [name, many] = head.strata[stratum];
    const label = { label: entry.label ?? null, ...(entry.label === null ? { skipped: true } : {}) };
    const said = { reviewer: who, ...label, comment: entry.comment ?? "", labelled_at: entry.at };
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
  if (!who) return ask();
  refresh(rows.keys());
  const all = records();
  const isTable = ending !== ".jsonl";
  const table = [FIELDS, ...all.map((record) => FIELDS.map((name) => ({ ...record, defused: true })[name]))];
  const lines = isTable ? table.map((line) => line.map(cell).join(",")) : all.map((record) => JSON.stringify(record));
  const link = make("a");
  link.download = `labels-${head.job}-${who}`.replace(/[^\p{L}\p{N}_-]+/gu, "_") + ending;
  link.href = URL.createObjectURL(new Blob([isTable ? "\ufeff" : "", lines.join("\n"), "\n"]));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  entries.forEach((entry, i) => { if (entry && !entry.saved) write(i, { ...entry, saved: true }); });
  say(`${all.length} rows are in ${link.download}, where this browser puts downloads.`);
  tell();
}

// A spreadsheet may have changed what is between fields, and added columns.
function tableOf(text, name) {
  const header = text.split("\n", 1)[0];
  const comma = [";", "\t"].find((each) => header.includes(each)) ?? ",";
  const fields = new RegExp(`(?:"((?:[^"]|"")*)"|([^"${comma}\\r\\n]*))(${comma}|\\r?\\n|$)`, "g");
  const table = [[]];
  for (const [, quoted, plain, end] of text.matchAll(fields)) {
    table.at(-1).push(quoted?.replaceAll('""', '"') ?? plain);
    if (end !== comma) table.push([]);
  }
  const [names, ...lines] = table;
  const mark = names.includes("defused") || name.includes(".defused") ? /^'/ : "";
  const filled = lines.filter((line) => line.some(Boolean));
  return filled.map((line) => Object.fromEntries(names.map((each, i) => [each, line[i]?.replace(mark, "") || null])));
}

function keyOf(row, lineage, id) {
  return (row ?? null) === null ? `id ${id}` : `${Number(row)} ${(lineage ?? "").toString().replaceAll(",", ".")}`;
}

async function load(file) {
  try {
    const text = (await file.text()).replace(/^\ufeff/, "");
    const lines = () => text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
    const found = /\.csv$/i.test(file.name) ? tableOf(text, file.name) : lines();
    const names = [...new Set(found.map((record) => record.reviewer))];
    if (names.length !== 1 || !names[0]) throw new Error(`it has labels of ${names.length} reviewers, not of one`);
    const placeOf = new Map(rows.map(([row, lineage, id], i) => [keyOf(row, lineage, id), i]));
    const placed = found.map((record) => [record, placeOf.get(keyOf(record.row, record.lineage, record.id))]);
    const ours = placed.filter(([record, i]) => record.run === head.run && i !== undefined);
    if (!ours.length) throw new Error("none of its rows is on this page");
    if (names[0] !== who) take(names[0]);
    for (const [{ label, skipped, comment, labelled_at: at }, i] of ours) {
      if (entries[i]?.at > at) continue;
      write(i, { label: label ?? (skipped ? null : undefined), comment: comment ?? undefined, at, saved: true });
    }
    say(`${ours.length} of ${found.length} rows of ${file.name} are here; labels are those of ${who}.`);
    show();
  } catch (error) {
    say(`${file.name} cannot be loaded: ${error.message}`);
  }
}
