// The step table: blocks of rows that are there while near, so that 10,000 rows cost what 200 do.
const BLOCK = 100;
const ROW_PX = 26;
const MOST_PRINTED = 1000;

const anchorOf = (step) => `step-${step.rank === null ? "x" : step.rank}-${step.step_id}`;
const kvSum = (step) => (step.prefill_kv_sum === null || step.decode_kv_sum === null ? null : step.prefill_kv_sum + step.decode_kv_sum);

// A column that no step has (graph mode and kernels without a device lane) is left out.
const columnsOf = (view) => (view.columns ??= allColumns(view).filter(([, get, , isOptional]) => !isOptional || view.steps.some((s) => get(s) !== null)));
const allColumns = (view) => [
  ["rank", (s) => s.rank], ["step", (s) => s.step_id], ["phase", (s) => s.phase],
  ["tokens", (s) => s.num_scheduled_tokens, "num_scheduled_tokens"], ["prefill q", (s) => s.prefill_query_sum, "prefill_query_sum"],
  ["decode", (s) => s.num_decode_requests, "num_decode_requests"], ["kv_len", kvSum, "kv_sum"],
  ["window", (s) => s.window_ns, "window_ns"], ["budget", (s) => s.window_ns],
  ...view.categories.map(([name]) => [name, (s) => s[`exclusive_${name}_ns`], `exclusive_${name}_ns`]),
  ["graph", (s) => s.graph_mode, "graph_mode", true], ["kernels", (s) => s.num_kernels, "num_kernels", true],
];

const absent = (view, step, column) => {
  const isTime = column.startsWith("exclusive_") && step.phase !== "empty";
  const reason = isTime ? view.reasons.get(step.rank) || view.nulls[column] : view.nulls[column];
  return isTime ? make("span", { class: "withheld", title: reason }, view.text("withheld"))
    : make("span", { class: "missing", title: reason || view.text("not recorded") }, "–");
};

// A bar of the step's window in categories, against the longest window that is shown.
const miniBar = (view, step, longest) => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "mini");
  svg.setAttribute("viewBox", "0 0 1000 10");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  let x = 0;
  for (const [name, , colour] of view.categories) {
    const width = (1000 * (step[`exclusive_${name}_ns`] || 0)) / longest;
    if (!width) continue;
    const part = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of [["x", x], ["width", width], ["height", 10], ["fill", colour]]) part.setAttribute(key, value);
    svg.append(part);
    x += width;
  }
  return svg;
};

const stepCells = (view, step, longest) => columnsOf(view).map(([name, get, column]) => {
  const value = get(step);
  if (name === "rank") return make("td", null, value === null ? "?" : String(value));
  if (name === "step") {
    const label = view.text("Open step {step} of {rank}").replace("{step}", step.step_id).replace("{rank}", `rank ${step.rank ?? "?"}`);
    return make("td", null, make("button", { type: "button", class: "open", "aria-expanded": "false", "aria-label": label }, String(value)));
  }
  if (name === "phase") return make("td", null, value === null ? absent(view, step, "phase") : view.text(value));
  if (name === "budget") return make("td", null, value === null ? "" : miniBar(view, step, longest));
  if (value === null) return make("td", { class: "n" }, absent(view, step, column));
  if (name === "graph") return make("td", null, value);
  const isTime = column.endsWith("_ns");
  const zero = isTime && value === 0 ? "n zero" : "n";
  return make("td", { class: zero }, make("data", { value, "data-of": column }, isTime ? showMs(value) : showCount(value)));
});

const makeStepTable = (view) => {
  const table = document.getElementById("step-table");
  const box = document.getElementById("step-box");
  const columns = columnsOf(view);
  const open = new Set();
  const state = { rows: [], sort: null, down: false, longest: 1, blocks: [] };

  const stepRow = (step, index) => make("tr", { class: "step", id: anchorOf(step), "aria-rowindex": index + 2 }, ...stepCells(view, step, state.longest));
  const toggle = (row, step, wanted) => {
    const button = row.querySelector(".open");
    const isOpen = button.getAttribute("aria-expanded") === "true";
    if (isOpen === wanted) return;
    button.setAttribute("aria-expanded", String(wanted));
    if (!wanted) { open.delete(row.id); row.nextElementSibling.remove(); return; }
    open.add(row.id);
    row.after(make("tr", { class: "detail" }, make("td", { colspan: columns.length }, stepDetail(view, step))));
  };
  const fill = (block) => {
    if (block.filled) return;
    block.filled = true;
    const rows = state.rows.slice(block.from, block.to);
    block.body.replaceChildren(...rows.map((step, i) => stepRow(step, block.from + i)));
    rows.forEach((step) => { if (open.has(anchorOf(step))) toggle(document.getElementById(anchorOf(step)), step, true); });
  };
  const empty = (block) => {
    if (block.filled === false || block.body.contains(document.activeElement) || block.body.querySelector(".detail, .hit")) return;
    block.filled = false;
    const height = (block.to - block.from) * ROW_PX;
    block.body.replaceChildren(make("tr", { "aria-hidden": "true" }, make("td", { colspan: columns.length, style: `height:${height}px` })));
  };
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) (entry.isIntersecting ? fill : empty)(entry.target.block);
  }, { root: box, rootMargin: "1200px 0px" });

  const layOut = () => {
    watch.disconnect();
    table.querySelectorAll("tbody").forEach((body) => body.remove());
    state.blocks = [];
    for (let from = 0; from < state.rows.length; from += BLOCK) {
      const block = { from, to: Math.min(from + BLOCK, state.rows.length), body: make("tbody") };
      block.body.block = block;
      state.blocks.push(block);
      empty(block);
      if (from === 0) fill(block);
      table.append(block.body);
      watch.observe(block.body);
    }
    if (!state.rows.length) table.append(make("tbody", null, make("tr", null, make("td", { colspan: columns.length }, view.text("no row matches")))));
    table.setAttribute("aria-rowcount", state.rows.length + 1);
    const shown = view.text("{shown} of {all} rows");
    document.getElementById("shown").textContent = shown.replace("{shown}", showCount(state.rows.length)).replace("{all}", showCount(view.steps.length));
  };
  const choose = () => {
    const form = document.getElementById("filter");
    const [rank, phase] = [form.elements.rank.value, form.elements.phase.value];
    state.rows = view.steps.filter((s) => (rank === "*" || String(s.rank) === rank) && (phase === "*" ? s.phase !== "empty" : String(s.phase) === phase));
    const get = state.sort === null ? null : columns[state.sort][1];
    const order = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : (a < b) !== state.down ? -1 : 1);
    if (get) state.rows.sort((a, b) => order(get(a), get(b)));
    state.longest = state.rows.reduce((longest, s) => Math.max(longest, s.window_ns || 0), 1);
    layOut();
  };
  return { table, box, columns, state, toggle, fill, choose };
};

const setUpSteps = (view) => {
  const steps = makeStepTable(view);
  const { table, box, columns, state } = steps;
  const heads = columns.map(([name], i) => make("th", { scope: "col", class: i > 2 && name !== "budget" && name !== "graph" ? "n" : null }, make("button", { type: "button", "data-sort": i, title: view.docs[columns[i][2]] || null }, view.text(name))));
  table.querySelector("thead").append(make("tr", { "aria-rowindex": 1 }, ...heads));
  const form = document.getElementById("filter");
  const add = (select, values) => select.append(...["*", ...new Set(values.map(String))].map((v) => make("option", { value: v }, v === "*" ? view.text("all") : v === "null" ? "?" : view.text(v))));
  add(form.elements.rank, view.steps.map((s) => s.rank));
  add(form.elements.phase, view.steps.map((s) => s.phase));
  form.addEventListener("change", steps.choose);
  form.addEventListener("submit", (event) => event.preventDefault());
  const stepOf = (row) => state.rows[Number(row.getAttribute("aria-rowindex")) - 2];
  table.addEventListener("click", (event) => {
    const head = event.target.closest("[data-sort]");
    if (head) {
      const index = Number(head.dataset.sort);
      state.down = state.sort === index ? !state.down : false;
      state.sort = index;
      heads.forEach((th, i) => (i === index ? th.setAttribute("aria-sort", state.down ? "descending" : "ascending") : th.removeAttribute("aria-sort")));
      steps.choose();
      return;
    }
    const row = event.target.closest("tr.step");
    if (row && !getSelection().toString()) steps.toggle(row, stepOf(row), row.querySelector(".open").getAttribute("aria-expanded") !== "true");
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const buttons = [...table.querySelectorAll(".open")];
    const at = buttons.indexOf(document.activeElement);
    const next = buttons[at + (event.key === "ArrowDown" ? 1 : -1)];
    if (at >= 0 && next) { event.preventDefault(); next.focus(); }
  });
  steps.choose();
  return { show: (anchor) => showStep(steps, anchor), beforePrint: () => beforePrint(view, steps) };
};

// Bring a step's row into view and open it; a filter that hides it is taken off.
const showStep = (steps, anchor) => {
  let index = steps.state.rows.findIndex((step) => anchorOf(step) === anchor);
  if (index < 0) {
    document.getElementById("filter").reset();
    steps.choose();
    index = steps.state.rows.findIndex((step) => anchorOf(step) === anchor);
    if (index < 0) return;
  }
  steps.fill(steps.state.blocks[Math.floor(index / BLOCK)]);
  const row = document.getElementById(anchor);
  steps.table.querySelectorAll(".hit").forEach((old) => old.classList.remove("hit"));
  row.classList.add("hit");
  steps.toggle(row, steps.state.rows[index], true);
  row.scrollIntoView({ block: "center" });
  row.querySelector(".open").focus({ preventScroll: true });
};

const beforePrint = (view, steps) => {
  const { rows, blocks } = steps.state;
  blocks.slice(0, MOST_PRINTED / BLOCK).forEach(steps.fill);
  if (rows.length <= MOST_PRINTED) return;
  blocks.slice(MOST_PRINTED / BLOCK).forEach((block) => { block.body.hidden = true; });
  document.getElementById("shown").textContent += ` · ${view.text("The first {shown} rows are printed.").replace("{shown}", MOST_PRINTED)}`;
  addEventListener("afterprint", () => steps.choose(), { once: true });
};
