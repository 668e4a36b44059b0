// The data in the file: base64 -> gzip -> JSON -> columns. `restore` is that of stepscope/report/embed.py.
const readText = async (id) => {
  const packed = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
};

const restore = (packed) => {
  if (Array.isArray(packed)) return packed.map(restore);
  if (packed === null || typeof packed !== "object") return packed;
  if (!packed.$fields) return Object.fromEntries(Object.entries(packed).map(([key, value]) => [key, restore(value)]));
  const columns = packed.$columns.map(restore);
  return columns[0].map((_, row) => Object.fromEntries(packed.$fields.map((name, i) => [name, columns[i][row]])));
};

// rows of [rank, step_id, ...] -> rank and step -> its rows
const byStep = (rows) => {
  const found = new Map();
  for (const row of rows) {
    const key = `${row[0]}/${row[1]}`;
    if (found.has(key)) found.get(key).push(row);
    else found.set(key, [row]);
  }
  return found;
};

const readPayload = async () => {
  const { document: packed, ...rest } = JSON.parse(await readText("payload"));
  const view = restore(rest);
  const text = (english) => view.texts[english] ?? english;
  const translated = (english) => view.translated[english] ?? english;
  const steps = restore(packed.steps).rows;
  const ranks = restore(packed.coverage);
  const claimable = new Map(ranks.ranks.map((row) => [row.rank, row.idle_claimable]));
  const reasons = new Map();
  for (const reason of ranks.reasons) {
    if (reason.withholds && !reasons.has(reason.rank)) reasons.set(reason.rank, translated(reason.text));
  }
  let families, kernels, parts; // indexed when a step is first opened
  return {
    ...view, text, steps, claimable, reasons,
    families: (key) => (families ??= byStep(packed.step_families.rows)).get(key) || [],
    kernels: (key) => (kernels ??= byStep(packed.step_kernels.rows)).get(key) || [],
    parts: (key) => (parts ??= byStep(restore(packed.parts).map((p) => [p.rank, p.step_id, p.part, p.duration_ns]))).get(key) || [],
    accounts: { families: packed.step_families.accounts, kernels: packed.step_kernels.accounts, names: packed.step_kernels.names },
    whole: () => restore(packed),
  };
};
