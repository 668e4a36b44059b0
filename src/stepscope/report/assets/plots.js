// Charts: drawn when they come near the window, by the Vega bundle in the file, which is unpacked for the first of them.
let bundle;
const loadBundle = () => (bundle ??= readText("bundle").then((code) => {
  const element = document.createElement("script"); // runs because its hash stands in the page's policy
  element.textContent = code;
  document.head.append(element);
}));

const OPTIONS = { mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false, tooltip: { disableDefaultStyle: true } };
const MARGIN_PX = 70; // axis and its title

const fit = (spec, width, isShare, view) => {
  const fitted = structuredClone(spec);
  const tracks = fitted.encoding.y.field === "track" ? 90 : 0;
  fitted.width = Math.max(width - MARGIN_PX - tracks, 240);
  if (isShare) {
    fitted.encoding.y.stack = "normalize";
    fitted.encoding.y.title = view.text("of the window");
    fitted.encoding.y.axis = { format: "%" };
  }
  return fitted;
};

const drawChart = async (view, chart, onStep) => {
  const figure = document.getElementById(`chart-${chart.id}`);
  const place = figure.querySelector(".plot");
  const button = figure.querySelector("[data-share]");
  const isShare = button?.getAttribute("aria-pressed") === "true";
  await loadBundle();
  chart.drawn?.finalize();
  const result = await vegaEmbed(place, fit(JSON.parse(chart.spec), place.clientWidth, isShare, view), OPTIONS);
  Object.assign(chart, { drawn: result, width: place.clientWidth });
  if (!chart.links) return;
  figure.classList.add("links");
  result.view.addEventListener("click", (event, item) => { if (item?.datum?.anchor) onStep(item.datum.anchor); });
};

const setUpPlots = (view, onStep) => {
  const waiting = new Map(view.charts.map((chart) => [document.getElementById(`chart-${chart.id}`), chart]));
  const draw = (figure) => {
    const chart = waiting.get(figure);
    if (!chart) return Promise.resolve();
    waiting.delete(figure);
    watch.unobserve(figure);
    return drawChart(view, chart, onStep).catch(report);
  };
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
  }, { rootMargin: "300px 0px" });
  for (const [figure, chart] of waiting) {
    const place = figure.querySelector(".plot");
    const rows = chart.id === "budget-steps" ? new Set(JSON.parse(chart.spec).data.values.map((row) => row.rank)).size : 1;
    place.style.minHeight = `${Number(place.dataset.height) * rows + 60}px`;
    watch.observe(figure);
    figure.querySelector("[data-share]")?.addEventListener("click", (event) => {
      const button = event.currentTarget;
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      waiting.delete(figure);
      drawChart(view, chart, onStep).catch(report);
    });
  }
  let later;
  addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(() => {
      for (const chart of view.charts) {
        const place = document.querySelector(`#chart-${chart.id} .plot`);
        if (chart.drawn && place.clientWidth !== chart.width) drawChart(view, chart, onStep).catch(report);
      }
    }, 200);
  });
  return { drawAll: () => Promise.all([...waiting.keys()].map(draw)) };
};
