// A line over the last minutes, as large as its box; pointing at it tells the value there.

import { element, setText } from "./element.js";
import { age, duration } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 60;
const LEAST_SECONDS = 60;

/** A chart in `box`; `read` gives a sample's value, `tell` the value as text. */
export class Chart {
  constructor(box, { read, tell, name }) {
    this._read = read;
    this._tell = tell;
    this._name = name;
    this._samples = [];
    this._svg = document.createElementNS(SVG, "svg");
    this._svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this._svg.setAttribute("preserveAspectRatio", "none");
    this._svg.setAttribute("role", "img");
    [this._area, this._line, this._rule] = ["area", "line", "rule"].map((className) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", className);
      this._svg.append(path);
      return path;
    });
    this._readout = element("p", "readout");
    this._readout.setAttribute("aria-hidden", "true");
    box.append(this._svg, this._readout);
    box.addEventListener("pointermove", (event) => this._point(event));
    box.addEventListener("pointerleave", () => this._unpoint());
  }

  /** Draw these samples, oldest first. */
  draw(samples) {
    this._samples = samples;
    if (samples.length === 0) return;
    this._seconds = Math.max(LEAST_SECONDS, samples.at(-1).at - samples[0].at);
    const peak = Math.max(...samples.map(this._read));
    const scale = (HEIGHT - 4) / Math.max(peak, 1e-9);
    const points = samples.map((sample) => [
      this._x(sample),
      HEIGHT - 1 - (peak > 0 ? this._read(sample) * scale : 0),
    ]);
    const line = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");
    this._line.setAttribute("d", `M${line}`);
    this._area.setAttribute("d", `M${points[0][0].toFixed(1)},${HEIGHT}L${line}L${WIDTH},${HEIGHT}Z`);
    this._svg.setAttribute(
      "aria-label",
      `${this._name} over the last ${duration(samples.at(-1).at - samples[0].at)}: ` +
        `now ${this._tell(samples.at(-1))}, at most ${this._tell(this._peak())}`,
    );
  }

  _peak() {
    return this._samples.reduce((most, one) => (this._read(one) > this._read(most) ? one : most));
  }

  _x(sample) {
    return WIDTH * (1 - (this._samples.at(-1).at - sample.at) / this._seconds);
  }

  _point(event) {
    if (this._samples.length === 0) return;
    const box = this._svg.getBoundingClientRect();
    const x = (WIDTH * (event.clientX - box.left)) / box.width;
    const nearest = this._samples.reduce((best, sample) =>
      Math.abs(this._x(sample) - x) < Math.abs(this._x(best) - x) ? sample : best,
    );
    this._rule.setAttribute("d", `M${this._x(nearest)},0V${HEIGHT}`);
    setText(this._readout, `${this._tell(nearest)}, ${age(this._samples.at(-1).at - nearest.at)}`);
  }

  _unpoint() {
    this._rule.removeAttribute("d");
    setText(this._readout, "");
  }
}
