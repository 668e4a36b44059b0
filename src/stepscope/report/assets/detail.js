// One opened step: its facts, families, largest kernels and named parts.
const gradeTag = (view, name) => {
  const [word, meaning] = view.grades[name] || [name, ""];
  return make("span", { class: "grade", title: meaning }, word);
};

const swatchOf = (view, category) => {
  const found = view.categories.find(([name]) => name === category);
  return make("i", { class: "swatch", style: `background:${found ? found[2] : "transparent"}` });
};

const grid = (title, heads, rows) => make("div", null,
  make("table", null,
    make("caption", null, ...title),
    make("thead", null, make("tr", null, ...heads.map(([name, kind]) => make("th", { scope: "col", class: kind }, name)))),
    make("tbody", null, ...rows.map((cells) => make("tr", null, ...cells)))));

const nsCell = (ns, of) => make("td", { class: "n" }, make("data", { value: ns, "data-of": of }, showNs(ns)));

const familyGrid = (view, step, key) => {
  const claimable = view.claimable.get(step.rank);
  const rows = view.families(key).toSorted((a, b) => b[3] - a[3]).map(([, , account, ns]) => {
    const [category, family] = view.accounts.families[account];
    const share = claimable && step.window_ns ? showShare(ns / step.window_ns) : view.text("withheld");
    return [
      make("th", { scope: "row" }, swatchOf(view, category), make("small", null, `${category} `), family),
      nsCell(ns, `family.${category}.${family}`), make("td", { class: "n" }, share)];
  });
  const t = view.text;
  return grid([t("Families in this step"), " ", gradeTag(view, "classified")],
    [[t("family")], [t("exclusive"), "n"], [t("of the window"), "n"]], rows);
};

const kernelGrid = (view, step, key) => {
  const rows = view.kernels(key).map(([, , account, name, count, ns]) => {
    const [category, family] = view.accounts.kernels[account];
    const full = view.accounts.names[name];
    return [
      make("td", null, make("code", { title: full }, full)),
      make("td", { class: "family" }, swatchOf(view, category), family || category),
      make("td", { class: "n" }, showCount(count)), nsCell(ns, "kernel")];
  });
  const t = view.text;
  const hint = make("small", null, t("sums over durations may exceed the window: overlaps count twice"));
  return grid([t("Largest kernels in this step"), " ", gradeTag(view, "recorded"), " ", hint],
    [[t("kernel")], [t("family")], [t("count"), "n"], [t("sum of durations"), "n"]], rows);
};

const partGrid = (view, key) => {
  const t = view.text;
  const rows = view.parts(key).map(([, , part, ns]) => [make("th", { scope: "row" }, part), nsCell(ns, "part")]);
  return rows.length ? grid([t("Parts that the engine names"), " ", gradeTag(view, "recorded")], [[t("part")], [t("host time"), "n"]], rows) : null;
};

const stepFacts = (view, step) => {
  const t = view.text;
  const fact = (name, value) => make("span", null, `${t(name)}: `, make("b", null, value));
  const facts = [make("span", null, `${t("Marked by")}: `, make("b", null, step.source), " ", gradeTag(view, step.grade))];
  if (step.host_duration_ns !== null) facts.push(fact("Host range", showNs(step.host_duration_ns)));
  if (step.device_busy_ns !== null) facts.push(fact("Device busy", showNs(step.device_busy_ns)));
  if (step.num_padded_tokens !== null) facts.push(fact("Padding", `${showCount(step.num_padded_tokens)} ${t("tokens")}`));
  return make("p", { class: "facts" }, ...facts);
};

const stepDetail = (view, step) => {
  const key = `${step.rank}/${step.step_id}`;
  const some = view.families(key).length + view.kernels(key).length > 0;
  const tables = some
    ? make("div", { class: "pair" }, make("div", null, familyGrid(view, step, key), partGrid(view, key)), kernelGrid(view, step, key))
    : make("p", { class: "refusal" }, view.text("Nothing is recorded for this step."));
  return make("div", null, stepFacts(view, step), tables);
};
