// The tiles: tokens, requests, KV cache and prefix cache.

import { Chart } from "./chart.js";
import { setText } from "./element.js";
import { compact, count, percent, plural, rate } from "./format.js";

const MAX_SAMPLES = 300;
const byId = (id) => document.getElementById(id);

/** Shows the load; keeps the samples that the charts show. */
export class LoadTiles {
  constructor() {
    this._samples = [];
    this._rateChart = new Chart(byId("rate-chart"), {
      name: "Generated tokens per second",
      read: (sample) => sample.generated_rate,
      tell: (sample) => `${rate(sample.generated_rate)} tokens/s`,
    });
    this._requestsChart = new Chart(byId("requests-chart"), {
      name: "Requests running and waiting",
      read: (sample) => sample.num_running + sample.num_waiting,
      tell: (sample) => `${count(sample.num_running)} running, ${count(sample.num_waiting)} waiting`,
    });
  }

  /** Show a state; one with a history begins anew. */
  show({ status, load, history, kv_usage: kvUsage, prefix_hit_ratio: hitRatio }) {
    this._samples = history ?? [...this._samples, load].slice(-MAX_SAMPLES);
    this._rateChart.draw(this._samples);
    this._requestsChart.draw(this._samples);

    setText(byId("rate"), rate(load.generated_rate));
    setText(byId("rate-side"), `${rate(load.prompt_rate)} prompt tokens/s`);
    setText(byId("running"), count(status.num_running));
    setText(byId("waiting"), `${count(status.num_waiting)} waiting`);
    const used = status.num_blocks - status.num_free_blocks;
    setText(byId("kv"), percent(kvUsage));
    const preempted = status.num_preemptions && `, ${plural(status.num_preemptions, "preemption")}`;
    const blocks = `${compact(used)} of ${compact(status.num_blocks)} blocks`;
    setText(byId("kv-side"), `${blocks}${preempted || ""}`);
    byId("kv-bar").style.width = `${100 * kvUsage}%`;
    setText(byId("prefix"), percent(hitRatio));
    setText(
      byId("prefix-side"),
      `${compact(status.num_cached_tokens)} of ${compact(status.num_prompt_tokens)} prompt tokens`,
    );
    byId("prefix-bar").style.width = `${100 * hitRatio}%`;
  }
}
