// Live charts, made of the differences between looks at the server's counters.
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { Interval, SERVER, TOGETHER, look } from "./metrics.js";
import { Failure, Field, bytes, label, short, visible } from "./parts.js";
import { usePolling } from "./polling.js";

const EVERY_MS = 1000;
const SHOWN_S = 300;
const LEAST_S = 60;
/** Looks that a rate or a percentile is about: single ones jump. */
const WINDOW = 5;
/** Models that are shown each by itself: lines that one can tell from each other. */
const MOST_MODELS = 6;
const EACH = "(each)";

/**
 * Each chart: its `lines` for one model; for `each` of several models, one of them, by its name, or a value of its own;
 * and the lines of the `server`, which belong to no model. Values are numbers, or what `as` makes texts of; the axis ends
 * at `most`, or above the highest of them, at `least` or more.
 */
const CHARTS = [
  { title: "Generated tokens", unit: "per second", lines: { tokens: (i) => i.rate("generated_tokens_total") } },
  { title: "Prompt tokens", unit: "per second", lines: { tokens: (i) => i.rate("prompt_tokens_total") } },
  { title: "Requests", unit: "answered per second", lines: { requests: (i) => i.rate("requests_total") } },
  {
    title: "Errors",
    unit: "per second",
    lines: { "4xx, refused": (i) => i.rate("refused"), "5xx, failed": (i) => i.rate("failed") },
    each: (i) => i.rate("refused") + i.rate("failed"),
    server: { "no model": (i) => i.rate("refused") + i.rate("failed") },
  },
  {
    title: "In flight",
    unit: "requests",
    lines: { "with a worker": (i) => i.now.in_flight_requests ?? 0, "in the batch": (i) => i.now.running_requests ?? 0 },
  },
  {
    title: "Queue",
    unit: "requests that wait",
    lines: { "for a worker": (i) => i.now.queued_requests ?? 0, "for the batch": (i) => i.now.waiting_requests ?? 0 },
    each: (i) => (i.now.queued_requests ?? 0) + (i.now.waiting_requests ?? 0),
  },
  { title: "Time to first token", unit: "ms", lines: percentiles("time_to_first_token_seconds"), each: "p95" },
  { title: "Between tokens", unit: "ms", lines: percentiles("inter_token_latency_seconds"), each: "p95" },
  { title: "KV cache", unit: "% used", lines: { used: (i) => i.cacheUse }, most: 100 },
  { title: "Batch size", unit: "mean of steps", lines: { sequences: (i) => i.mean("batch_size") } },
  {
    title: "Processor",
    unit: "cores in use",
    lines: { workers: (i) => i.rate("cpu_s") },
    server: { "front end": (i) => i.rate("cpu_s") },
    least: 0.1,
  },
  {
    title: "Memory",
    unit: "resident",
    lines: { workers: (i) => i.now.memory_bytes },
    server: { "front end": (i) => i.now.memory_bytes },
    as: bytes,
  },
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
          <option value=${EACH}>each by itself</option>
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
  const most = [...names].sort((one, other) => requests(other) - requests(one)).slice(0, MOST_MODELS);
  return names.filter((name) => most.includes(name));
}

/** The lines of a chart: [{name, of}] where `of` makes a value of two looks. */
function linesOf({ lines, each, server = {} }, models) {
  const made = (name, line, model) => ({ name, of: (before, after) => line(new Interval(before, after, model)) });
  const all = (lines, model) => Object.entries(lines).map(([name, line]) => made(name, line, model));
  if (models.length === 1) return [...all(lines, models[0]), ...all(server, SERVER)];
  const line = typeof each === "function" ? each : (lines[each] ?? Object.values(lines)[0]);
  const named = models.map((model) => made(each in lines ? `${visible(model)} ${each}` : visible(model), line, model));
  return [...named, ...all(server, SERVER)];
}

function dataOf(lines) {
  const times = looks.map(({ timeS }) => timeS);
  const values = lines.map(({ of }) =>
    looks.map((after, at) => (at === 0 ? null : of(looks[Math.max(0, at - WINDOW)], after))),
  );
  return [times, ...values];
}

function Chart({ chart, models, count }) {
  const { title, as = short } = chart;
  const cpus = looks.at(-1)?.cpus;
  const unit = title === "Processor" && cpus ? `${chart.unit}, of ${cpus}` : chart.unit;
  const lines = useMemo(() => linesOf(chart, models), [String(models)]);
  const data = dataOf(lines);
  const now = lines.map(({ name }, at) => `${name} ${as(data[at + 1].at(-1))}`).join(", ");
  return html`
    <figure class="chart card" data-chart=${title} data-looks=${count}>
      <figcaption><strong>${title}</strong> <span class="muted">${unit}</span></figcaption>
      <ul class="legend">
        ${lines.map(
          ({ name }, at) => html`<li><span class=${`swatch line-${at}`} aria-hidden="true"></span><span class="name" title=${name}>${name}</span>
            <b>${as(data[at + 1].at(-1))}</b></li>`,
        )}
      </ul>
      <${Plot} chart=${chart} lines=${lines} data=${data} text=${`${title}, ${unit}: ${now}`} />
      <details>
        <summary>As a table</summary>
        <${Values} lines=${lines} data=${data} title=${title} as=${as} />
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

/** Steps between the marks of an axis of bytes, so that they are whole numbers of their units. */
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);

function optionsOf({ most, least = 1, as }, lines, place) {
  const marks = as === bytes ? { incrs: POWERS, size: 68 } : { size: 48 };
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
      y: { range: (_plot, _low, high) => [0, most ?? Math.max(least, (high ?? 0) * 1.1)] },
    },
    axes: [
      { ...axis, size: 28, space: 70, values: "{HH}:{mm}:{ss}" },
      { ...axis, ...marks, space: 26, values: (_plot, ticks) => ticks.map(as ?? short) },
    ],
    series: [
      {},
      ...lines.map(({ name }, at) => ({
        label: name,
        stroke: () => colour(`--line-${at}`),
        width: 2,
        points: { show: false },
      })),
    ],
  };
}

const ROWS = 10;

/** The last values as text, for whoever sees no picture. */
function Values({ lines, data, title, as }) {
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
            ${values.map((line) => html`<td>${as(line[from + at])}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>`;
}
