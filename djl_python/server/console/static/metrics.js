// What /server/metrics and /console/processes count, and what can be said of the time between two looks at them.
//
// The server only counts up. Rates and percentiles are made here, from differences: nothing is sampled for pages that
// nobody has open.
import { getJson, request } from "./api.js";
import { label } from "./parts.js";

const PREFIX = "djl_";
const COUNTERS = ["generated_tokens_total", "prompt_tokens_total", "requests_total"];
const GAUGES = [
  "queued_requests",
  "in_flight_requests",
  "running_requests",
  "waiting_requests",
  "kv_cache_blocks_used",
  "kv_cache_blocks_total",
];
const HISTOGRAMS = ["time_to_first_token_seconds", "inter_token_latency_seconds"];
const NAMES = [
  ...COUNTERS,
  ...GAUGES,
  ...HISTOGRAMS.map((name) => `${name}_bucket`),
  "batch_size_sum",
  "batch_size_count",
];
const QUERY = NAMES.map((name) => `name[]=${PREFIX}${name}`).join("&");

const SAMPLE = /^(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

/** Samples of Prometheus' text format: [{name, labels, value}], without the prefix in their names. */
export function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) {
      labels[name] = value.replace(/\\[n"\\]/g, (escape) => ESCAPES[escape]);
    }
    samples.push({ name: found[1].slice(PREFIX.length), labels, value: Number(found[3]) });
  }
  return samples;
}

/** The key of what all models have together; no model has it as its name. */
export const TOGETHER = "";
/** The key of what belongs to no model: requests that reached none, and the front end's process. */
export const SERVER = " ";

/**
 * Samples by model ("name" or "name:version"), of all models together, and of none: sums over workers and other labels;
 * buckets as Map(bound -> count).
 */
export function byModel(samples) {
  const models = new Map();
  for (const { name, labels, value } of samples) {
    const keys = labels.model ? [label({ name: labels.model, version: labels.version }), TOGETHER] : [SERVER];
    for (const key of keys) add(entry(models, key), name, labels, value);
  }
  return models;
}

function entry(models, key) {
  if (!models.has(key)) models.set(key, {});
  return models.get(key);
}

function add(sums, name, labels, value) {
  if (labels.le !== undefined) {
    sums[name] ??= new Map();
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    sums[name].set(bound, (sums[name].get(bound) ?? 0) + value);
  } else {
    sums[name] = (sums[name] ?? 0) + value;
    if (name !== "requests_total" || labels.code < "400") return;
    const refused = labels.code < "500" ? "refused" : "failed";
    sums[refused] = (sums[refused] ?? 0) + value;
  }
}

/** One look: {timeS, models, cpus}. */
export async function look() {
  const asked = [request(`/server/metrics?${QUERY}`).then((answer) => answer.text()), getJson("/console/processes")];
  const [text, processes] = await Promise.all(asked);
  const models = byModel(parse(text));
  addProcesses(models, processes);
  return { timeS: Date.now() / 1000, models, cpus: processes.cpus };
}

function addProcesses(models, { front_end: frontEnd, models: workers }) {
  const owned = [[SERVER, frontEnd], ...workers.flatMap((one) => [label(one), TOGETHER].map((key) => [key, one]))];
  for (const [key, usage] of owned) {
    add(entry(models, key), "cpu_s", {}, usage.cpu_s);
    add(entry(models, key), "memory_bytes", {}, usage.memory_bytes);
  }
}

/**
 * The value below which a share of what was observed between two looks lies, as Prometheus' histogram_quantile has it:
 * linear within a bucket, the highest bound for what lies beyond it. null: nothing was observed.
 */
export function quantile(share, before, after) {
  const bounds = [...(after ?? new Map()).keys()].sort((one, other) => one - other);
  const counts = bounds.map((bound) => after.get(bound) - (before?.get(bound) ?? 0));
  const total = counts.at(-1) ?? 0;
  if (!(total > 0)) return null;
  const rank = share * total;
  const at = counts.findIndex((count) => count >= rank);
  if (bounds[at] === Infinity) return bounds[at - 1] ?? null;
  const [lower, fewer] = at > 0 ? [bounds[at - 1], counts[at - 1]] : [0, 0];
  const inside = counts[at] - fewer;
  return inside > 0 ? lower + ((bounds[at] - lower) * (rank - fewer)) / inside : bounds[at];
}

/** What happened to one model between two looks. A counter that went down began anew, with its model. */
export class Interval {
  constructor(before, after, model) {
    this.seconds = after.timeS - before.timeS;
    this.before = before.models.get(model) ?? {};
    this.now = after.models.get(model) ?? {};
  }

  grown(name) {
    const now = this.now[name] ?? 0;
    const before = this.before[name] ?? 0;
    return now >= before ? now - before : now;
  }

  rate(name) {
    return this.seconds > 0 ? this.grown(name) / this.seconds : null;
  }

  milliseconds(name, share) {
    const found = quantile(share, this.before[`${name}_bucket`], this.now[`${name}_bucket`]);
    return found === null ? null : 1000 * found;
  }

  mean(name) {
    const count = this.grown(`${name}_count`);
    return count > 0 ? this.grown(`${name}_sum`) / count : null;
  }

  /** Percent of the KV cache in use; null where the model has none. */
  get cacheUse() {
    const total = this.now.kv_cache_blocks_total;
    return total > 0 ? (100 * (this.now.kv_cache_blocks_used ?? 0)) / total : null;
  }
}
