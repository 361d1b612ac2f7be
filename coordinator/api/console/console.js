// Joins the parts of the page: the feed on one side, what it shows on the other.

import { Chat } from "./chat.js";
import { setText } from "./element.js";
import { Failures } from "./failures.js";
import { follow } from "./feed.js";
import { age, count, plural } from "./format.js";
import { LoadTiles } from "./load.js";
import { rankName, Topology } from "./topology.js";

const byId = (id) => document.getElementById(id);

const PHASES = {
  STARTING: { text: "Starting", state: "busy" },
  WAITING: { text: "Waiting", state: "bad" },
  LOADING: { text: "Loading", state: "busy" },
  SERVING: { text: "Serving", state: "good" },
  DRAINING: { text: "Draining", state: "busy" },
};
const LINKS = {
  lost: "No connection to the coordinator; trying again. What is shown is how it was.",
  silent: "The coordinator has been silent for seconds. What is shown is how it was.",
};

const tiles = new LoadTiles();
const topology = new Topology(byId("pipeline"), byId("no-workers"));
const failures = new Failures(byId("failures"), byId("no-failures"));
let last = null;

function show(state) {
  const { status, load, version } = state;
  tiles.show(state);
  topology.show(status);
  failures.show(status.lost_generations, load.at);
  setText(byId("model"), status.model);
  setText(byId("version"), version);
  setText(byId("step"), stepText(status));
  setText(byId("totals"), totalsText(status));
  const { text, state: colour } = PHASES[status.phase];
  showPhase(text, colour);
  showNotice(status.is_serving ? "" : noticeText(status), colour);
  announce(last, status);
  last = status;
}

function stepText(status) {
  if (!status.epoch) return "";
  const { epoch, generation, step, last_step_age: seconds } = status;
  const when = seconds === null || seconds < 1 ? "" : `, ${age(seconds)}`;
  return `Epoch ${epoch} · generation ${generation} · step ${count(step)}${when}`;
}

function totalsText(status) {
  const bugs = [
    [status.num_invalid_steps, "invalid step"],
    [status.num_state_drifts, "state drift"],
  ];
  return bugs.filter(([number]) => number > 0).map((bug) => plural(...bug)).join(" · ");
}

/** What is being done, in the words of the coordinator. */
function noticeText({ phase, detail }) {
  return phase === "DRAINING" ? `Takes no new requests; ${detail}` : detail;
}

function showPhase(text, colour) {
  setText(byId("phase"), text);
  byId("phase").dataset.state = colour;
  document.title = `${colour === "good" ? "" : "⚠ "}Stepwire · ${text.toLowerCase()}`;
}

function showNotice(text, colour) {
  setText(byId("notice"), text);
  byId("notice").dataset.state = colour;
  byId("notice").hidden = !text;
}

/** Tell those who do not see the page what changed for the better or worse. */
function announce(before, now) {
  if (before === null) return;
  const lostBefore = new Set(before.workers.filter((one) => one.cause).map((one) => rankName(one.rank)));
  const lost = now.workers.filter((one) => one.cause && !lostBefore.has(rankName(one.rank)));
  const news = lost.map((one) => `${rankName(one.rank)} lost: ${one.cause}`);
  if (now.is_serving && !before.is_serving) news.push("Serving again");
  if (news.length > 0) setText(byId("announcement"), news.join(". "));
}

function showLink(link) {
  if (document.body.dataset.link === link) return;
  document.body.dataset.link = link;
  if (link === "open") return;
  showPhase(link === "lost" ? "No connection" : "Silent", "bad");
  showNotice(LINKS[link], "bad");
  setText(byId("announcement"), LINKS[link]);
}

for (const button of document.querySelectorAll(".views button")) {
  button.addEventListener("click", () => {
    document.body.dataset.view = button.dataset.view;
    for (const other of document.querySelectorAll(".views button")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
  });
}

new Chat();
follow("console/events", { onState: show, onLink: showLink });
