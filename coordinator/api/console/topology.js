// A card for every rank: where it runs, which layers it has, what it does, and why it was lost.

import { element, setText } from "./element.js";
import { bytes, duration } from "./format.js";

const DOING = {
  IDLE: "idle",
  WAIT_INPUT: "waiting for input",
  COMPUTE: "computing",
  SENDING: "sending",
  COMPILING: "compiling",
};

/** "Stage 1", and with tensor parallelism "Stage 1, TP 0". */
export function rankName({ replica, stage, tensor_parallel: index }, isShared = index > 0) {
  const place = `Stage ${stage}${isShared ? `, TP ${index}` : ""}`;
  return replica > 0 ? `Replica ${replica}, ${place.toLowerCase()}` : place;
}

/** What to call the state of a rank, and how to colour it. */
export function rankState(worker, status) {
  if (worker.cause) return { state: "bad", text: "Lost" };
  if (status.phase === "DRAINING") return { state: "busy", text: "Draining" };
  return status.is_serving ? { state: "good", text: "Serving" } : { state: "busy", text: "Waiting" };
}

/** The cards of all ranks, kept from state to state. */
export class Topology {
  constructor(list, empty) {
    this._list = list;
    this._empty = empty;
    this._cards = new Map();
  }

  /** Show the ranks of a state. */
  show(status) {
    const numLayers = Math.max(0, ...status.workers.map((worker) => worker.end_layer));
    const isShared = status.workers.some((worker) => worker.rank.tensor_parallel > 0);
    const names = status.workers.map((worker) => rankName(worker.rank, isShared));
    for (const [name, card] of this._cards) {
      if (!names.includes(name)) {
        card.element.remove();
        this._cards.delete(name);
      }
    }
    status.workers.forEach((worker, index) => {
      if (!this._cards.has(names[index])) {
        const card = new RankCard(names[index]);
        this._cards.set(names[index], card);
        this._list.append(card.element);
      }
      const card = this._cards.get(names[index]);
      card.show(worker, { status, numLayers });
      // Ranks of one stage work side by side: what flows on comes from the stage before.
      card.element.dataset.linked = worker.rank.tensor_parallel === 0 && index > 0;
    });
    const isFlowing = status.is_serving && status.num_running > 0;
    this._list.dataset.links = isFlowing ? "flowing" : status.is_serving ? "idle" : "broken";
    this._empty.hidden = status.workers.length > 0;
  }
}

class RankCard {
  constructor(name) {
    this._badge = element("p", "badge");
    this._cause = element("p", "cause");
    this._own = element("div", "own");
    this._facts = Object.fromEntries(
      ["Layers", "Address", "Device", "Weights", "Now"].map((fact) => [fact, element("dd")]),
    );
    const rows = Object.entries(this._facts).map(([fact, value]) =>
      element("div", "", element("dt", "", fact), value),
    );
    const strip = element("div", "strip", this._own);
    strip.setAttribute("aria-hidden", "true");
    const heading = element("div", "card-heading", element("h3", "", name), this._badge);
    this._article = element("article", "card", heading, this._cause, strip, element("dl", "", ...rows));
    this._article.setAttribute("aria-label", name);
    this.element = element("li", "", this._article);
  }

  show(worker, { status, numLayers }) {
    const { state, text } = rankState(worker, status);
    this._article.dataset.state = state;
    setText(this._badge, text);
    setText(this._cause, worker.cause);
    this._cause.hidden = !worker.cause;
    this._own.style.marginLeft = `${(100 * worker.first_layer) / numLayers}%`;
    this._own.style.width = `${(100 * (worker.end_layer - worker.first_layer)) / numLayers}%`;
    const { Layers, Address, Device, Weights, Now } = this._facts;
    setText(Layers, `${worker.first_layer}–${worker.end_layer - 1} of ${numLayers}`);
    setText(Address, worker.address || "in the coordinator");
    setText(Device, worker.device);
    const reads = worker.num_loads === 1 ? "read once" : `read ${worker.num_loads} times`;
    setText(Weights, `${bytes(worker.parameter_bytes)}, ${reads}`);
    setText(Now, doing(worker));
  }
}

function doing(worker) {
  if (!worker.phase) return "–";
  const words = DOING[worker.phase] ?? worker.phase.toLowerCase();
  return worker.seconds_in_phase < 1 ? words : `${words} for ${duration(worker.seconds_in_phase)}`;
}
