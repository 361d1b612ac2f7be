// The generations that were lost, newest first: when, and by whose fault.

import { element, setText } from "./element.js";
import { age } from "./format.js";

/** The list of failures; it is rebuilt only when there is another. */
export class Failures {
  constructor(list, empty) {
    this._list = list;
    this._empty = empty;
    this._shown = "";
    this._times = [];
  }

  /** Show the failures of a state, as seen at a Unix time. */
  show(losses, now) {
    const key = JSON.stringify(losses);
    if (key !== this._shown) this._rebuild(losses);
    this._shown = key;
    for (const [time, endedAt] of this._times) {
      setText(time, age(now - endedAt));
    }
    this._empty.hidden = losses.length > 0;
  }

  _rebuild(losses) {
    this._times = [];
    this._list.replaceChildren(
      ...losses.map((loss) => {
        const at = new Date(1000 * loss.ended_at);
        const time = element("time");
        time.dateTime = at.toISOString();
        time.title = at.toLocaleString();
        this._times.push([time, loss.ended_at]);
        const about = element("p", "about", time, ` · generation ${loss.generation}`);
        return element("li", "", element("p", "what", loss.cause), about);
      }),
    );
  }
}
