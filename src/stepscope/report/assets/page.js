// Start: read the data, draw the step table, then charts as they come near.
const report = (error) => {
  const place = document.getElementById("trouble");
  place.textContent = String(error?.message || error);
  place.hidden = false;
};

const save = (view) => {
  const link = make("a", { download: "stepscope.json" });
  link.href = URL.createObjectURL(new Blob([JSON.stringify(view.whole(), null, 1)], { type: "application/json" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

const start = async () => {
  const view = await readPayload();
  const steps = setUpSteps(view);
  const plots = setUpPlots(view, (anchor) => {
    if (location.hash === `#${anchor}`) steps.show(anchor);
    else location.hash = anchor;
  });
  const follow = () => { if (location.hash.startsWith("#step-")) steps.show(location.hash.slice(1)); };
  addEventListener("hashchange", follow);
  follow();
  const prepare = () => { steps.beforePrint(); return plots.drawAll(); };
  addEventListener("beforeprint", prepare);
  document.getElementById("print").addEventListener("click", () => plots.drawAll().then(() => print()));
  document.getElementById("save").addEventListener("click", () => save(view));
  performance.mark("stepscope:ready");
  document.documentElement.dataset.ready = "yes";
};

if (typeof DecompressionStream === "undefined") {
  report(document.getElementById("trouble").dataset.old);
} else start().catch(report);
