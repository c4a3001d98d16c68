// Live charts, made of the differences between looks at the server's counters.
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { Interval, TOGETHER, look } from "./metrics.js";
import { Failure, Field, label, short, visible } from "./parts.js";
import { usePolling } from "./polling.js";

const EVERY_MS = 1000;
const SHOWN_S = 300;
const LEAST_S = 60;
/** Looks that a rate or a percentile is about: single ones jump. */
const WINDOW = 5;
/** Lines that one can tell from each other by their colours. */
const MOST_LINES = 6;
const EACH = "(each)";

/** Each chart: its lines for one model, and the one line for each where several are shown. */
const CHARTS = [
  { title: "Generated tokens", unit: "per second", lines: { tokens: (i) => i.rate("generated_tokens_total") } },
  { title: "Prompt tokens", unit: "per second", lines: { tokens: (i) => i.rate("prompt_tokens_total") } },
  {
    title: "Requests",
    unit: "per second",
    lines: { answered: (i) => i.rate("requests_total"), "with an error": (i) => i.rate("failed") },
  },
  {
    title: "Requests at a time",
    unit: "now",
    lines: {
      "with a worker": (i) => i.now.in_flight_requests ?? 0,
      "in the batch": (i) => i.now.running_requests ?? 0,
      "waiting in the worker": (i) => i.now.waiting_requests ?? 0,
      queued: (i) => i.now.queued_requests ?? 0,
    },
  },
  { title: "Time to first token", unit: "ms", lines: percentiles("time_to_first_token_seconds"), several: "p95" },
  { title: "Between tokens", unit: "ms", lines: percentiles("inter_token_latency_seconds"), several: "p95" },
  { title: "KV cache", unit: "% used", lines: { used: (i) => i.cacheUse }, most: 100 },
  { title: "Batch size", unit: "mean of steps", lines: { sequences: (i) => i.mean("batch_size") } },
];

function percentiles(name) {
  const shares = { p50: 0.5, p95: 0.95, p99: 0.99 };
  return Object.fromEntries(Object.entries(shares).map(([key, share]) => [key, (i) => i.milliseconds(name, share)]));
}

/** Looks so far: they outlive the view, as long as the page is open. */
const looks = [];

export function Charts({ state }) {
  const [count, setCount] = useState(looks.length);
  const [failure, setFailure] = useState(null);
  const [chosen, setChosen] = useState(EACH);
  usePolling(async () => {
    try {
      looks.push(await look());
      while (looks[0].timeS < looks.at(-1).timeS - SHOWN_S) looks.shift();
      setCount((before) => before + 1);
      setFailure(null);
    } catch (error) {
      setFailure(error);
    }
  }, EVERY_MS);

  const names = state.models.map(label);
  const known = chosen === TOGETHER || names.includes(chosen);
  const shown = known ? [chosen] : busiest(names);
  const others = known ? 0 : names.length - shown.length;
  return html`
    <h1>Charts</h1>
    <form class="bar" onSubmit=${(event) => event.preventDefault()}>
      <${Field} label="Model">
        <select value=${known ? chosen : EACH} onChange=${(event) => setChosen(event.target.value)}>
          <option value=${EACH}>each</option>
          ${names.length > 1 && html`<option value=${TOGETHER}>all together</option>`}
          ${names.map((name) => html`<option value=${name}>${visible(name)}</option>`)}
        </select>
      <//>
      <p class="muted">The last ${SHOWN_S / 60} minutes, while this page is open; updated each second.
        ${others > 0 && ` Shown are the ${shown.length} models with the most requests, of ${names.length}.`}</p>
    </form>
    <${Failure} of=${failure} />
    <div class="charts">
      ${CHARTS.map(
        (chart) => html`<${Chart} key=${`${chart.title} ${shown}`} chart=${chart} models=${shown} count=${count} />`,
      )}
    </div>`;
}

/** Those of the models that had the most requests since the server began, in the order in which they are given. */
function busiest(names) {
  const requests = (name) => looks.at(-1)?.models.get(name)?.requests_total ?? 0;
  const most = [...names].sort((one, other) => requests(other) - requests(one)).slice(0, MOST_LINES);
  return names.filter((name) => most.includes(name));
}

/** The lines of a chart: [{name, of}] where `of` makes a value of two looks. */
function linesOf({ lines, several }, models) {
  const of = (line, model) => (before, after) => line(new Interval(before, after, model));
  if (models.length === 1) return Object.entries(lines).map(([name, line]) => ({ name, of: of(line, models[0]) }));
  const [first, line] = several ? [several, lines[several]] : Object.entries(lines)[0];
  return models.map((model) => {
    const name = visible(model);
    return { name: several ? `${name} ${first}` : name, of: of(line, model) };
  });
}

function dataOf(lines) {
  const times = looks.map(({ timeS }) => timeS);
  const values = lines.map(({ of }) =>
    looks.map((after, at) => (at === 0 ? null : of(looks[Math.max(0, at - WINDOW)], after))),
  );
  return [times, ...values];
}

function Chart({ chart, models, count }) {
  const lines = useMemo(() => linesOf(chart, models), [String(models)]);
  const data = dataOf(lines);
  const now = lines.map(({ name }, at) => `${name} ${short(data[at + 1].at(-1))}`).join(", ");
  return html`
    <figure class="chart card" data-chart=${chart.title} data-looks=${count}>
      <figcaption><strong>${chart.title}</strong> <span class="muted">${chart.unit}</span></figcaption>
      <ul class="legend">
        ${lines.map(
          ({ name }, at) => html`<li><span class=${`swatch line-${at % MOST_LINES}`} aria-hidden="true"></span><span class="name" title=${name}>${name}</span>
            <b>${short(data[at + 1].at(-1))}</b></li>`,
        )}
      </ul>
      <${Plot} chart=${chart} lines=${lines} data=${data} text=${`${chart.title}, ${chart.unit}: ${now}`} />
      <details>
        <summary>As a table</summary>
        <${Values} lines=${lines} data=${data} title=${chart.title} />
      </details>
    </figure>`;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function Plot({ chart, lines, data, text }) {
  const place = useRef(null);
  const plot = useRef(null);
  useEffect(() => {
    plot.current = new uPlot(optionsOf(chart, lines, place.current), data, place.current);
    const resized = new ResizeObserver(([{ contentRect }]) =>
      plot.current.setSize({ width: contentRect.width, height: contentRect.height }),
    );
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const recolour = () => plot.current.redraw(false, true);
    resized.observe(place.current);
    scheme.addEventListener("change", recolour);
    return () => {
      resized.disconnect();
      scheme.removeEventListener("change", recolour);
      plot.current.destroy();
    };
  }, [lines]);
  useEffect(() => plot.current.setData(data));
  return html`<div class="plot" ref=${place} role="img" aria-label=${text}></div>`;
}

function optionsOf({ most }, lines, place) {
  const axis = {
    stroke: () => colour("--muted"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  return {
    width: place.clientWidth,
    height: place.clientHeight,
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: {
      x: {
        range: (_plot, low, high) => {
          const last = high ?? Date.now() / 1000;
          return [Math.min(low ?? last, last - LEAST_S), last];
        },
      },
      y: { range: (_plot, _low, high) => [0, most ?? Math.max(1, (high ?? 0) * 1.1)] },
    },
    axes: [
      { ...axis, size: 28, space: 70, values: "{HH}:{mm}:{ss}" },
      { ...axis, size: 48, space: 32, values: (_plot, ticks) => ticks.map(short) },
    ],
    series: [
      {},
      ...lines.map(({ name }, at) => ({
        label: name,
        stroke: () => colour(`--line-${at % MOST_LINES}`),
        width: 2,
        points: { show: false },
      })),
    ],
  };
}

const ROWS = 10;

/** The last values as text, for whoever sees no picture. */
function Values({ lines, data, title }) {
  const [times, ...values] = data;
  const from = Math.max(0, times.length - ROWS);
  return html`
    <table>
      <caption class="unseen">${title}</caption>
      <thead><tr><th scope="col">Time</th>${lines.map(({ name }) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>
        ${times.slice(from).map(
          (timeS, at) => html`<tr>
            <th scope="row">${new Date(1000 * timeS).toLocaleTimeString("en-GB")}</th>
            ${values.map((line) => html`<td>${short(line[from + at])}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>`;
}
