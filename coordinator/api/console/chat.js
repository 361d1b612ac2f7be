// The chat pane: a conversation that survives a reload of the page, one answer at a time.

import { Refusal, stream } from "./completion.js";
import { button, element, setText } from "./element.js";
import { count, latency, rate } from "./format.js";
import { render } from "./markdown.js";

const KEY = "stepwire-chat";
const IDEAS = [
  "What is the capital of France?",
  "Explain what a KV cache is in two sentences.",
  "Write a haiku about copper wire.",
];
const byId = (id) => document.getElementById(id);

/** The pane; `turns` alternate between the user and the model. */
export class Chat {
  constructor() {
    this._turns = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
    this._answering = null;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this._answering) this._answering.abort();
      else this._ask(byId("message").value.trim());
    });
    byId("message").addEventListener("keydown", (event) => this._key(event));
    byId("message").addEventListener("input", fitMessage);
    byId("settings").addEventListener("submit", (event) => event.preventDefault());
    byId("new-chat").addEventListener("click", () => this._begin());
    byId("show-settings").addEventListener("click", () => {
      const isShown = byId("settings").toggleAttribute("hidden") === false;
      byId("show-settings").setAttribute("aria-expanded", String(isShown));
    });
    this._draw();
  }

  _key(event) {
    if (event.key === "Escape") this._answering?.abort();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!this._answering) byId("composer").requestSubmit();
  }

  _begin() {
    this._answering?.abort();
    this._turns = [];
    this._keep();
    this._draw();
    byId("message").focus();
  }

  _draw() {
    const turns = this._turns.map(({ role, content, note }) => {
      const turn = new Turn(role);
      turn.show(content);
      turn.note(note ?? "");
      return turn.element;
    });
    byId("turns").replaceChildren(...turns);
    if (turns.length === 0) byId("turns").append(this._invitation());
    scrollToEnd();
  }

  _invitation() {
    const ideas = IDEAS.map((idea) => element("li", "", button(idea, () => this._ask(idea), "idea")));
    return element("div", "invitation", element("p", "", "Talk to the model that is served here."), element("ul", "", ...ideas));
  }

  async _ask(question) {
    if (!question || this._answering) return;
    byId("turns").querySelector(".invitation")?.remove();
    byId("message").value = "";
    fitMessage();
    this._turns.push({ role: "user", content: question });
    const asked = new Turn("user");
    asked.show(question);
    byId("turns").append(asked.element);
    await this._answer();
  }

  async _answer() {
    const turn = new Turn("assistant");
    byId("turns").append(turn.element);
    this._setAnswering(new AbortController());
    const turns = this._turns;
    const meter = new Meter();
    let text = "";
    try {
      for await (const part of stream(this._messages(), { ...this._options(), signal: this._answering.signal })) {
        if (part.text) {
          text += part.text;
          meter.start();
          turn.showSoon(text);
        } else meter.end(part);
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        turn.show(text);
        turn.fail(complaint(error), () => this._retry(turn));
        this._setAnswering(null);
        return;
      }
      meter.stop();
    }
    this._setAnswering(null);
    turn.show(text);
    turn.note(meter.text());
    if (turns !== this._turns || !text) return;
    turns.push({ role: "assistant", content: text, note: meter.text() });
    this._keep();
  }

  async _retry(turn) {
    if (this._answering) return;
    turn.element.remove();
    byId("message").focus();
    await this._answer();
  }

  _messages() {
    const system = byId("system").value.trim();
    const turns = this._turns.map(({ role, content }) => ({ role, content }));
    return system ? [{ role: "system", content: system }, ...turns] : turns;
  }

  _options() {
    return {
      temperature: byId("temperature").valueAsNumber || 0,
      maxTokens: byId("max-tokens").valueAsNumber || 512,
    };
  }

  _setAnswering(controller) {
    this._answering = controller;
    const isAnswering = controller !== null;
    byId("turns").setAttribute("aria-busy", String(isAnswering));
    setText(byId("send"), isAnswering ? "Stop" : "Send");
    byId("send").classList.toggle("stop", isAnswering);
    scrollToEnd();
  }

  _keep() {
    sessionStorage.setItem(KEY, JSON.stringify(this._turns));
  }
}

class Turn {
  constructor(role) {
    this._body = element("div", "body");
    this._note = element("p", "note");
    this._isDue = false;
    // What people write stays as they wrote it.
    this._isPlain = role === "user";
    const speaker = element("p", "unseen", role === "user" ? "You" : "Model");
    this.element = element("div", `turn ${role}`, speaker, this._body, this._note);
    if (role === "assistant") this._body.append(element("span", "waiting"));
  }

  show(text) {
    this._text = text;
    this._isDue = false;
    this._body.replaceChildren(...(this._isPlain ? [text] : render(text)));
  }

  /** Show with the next frame of the screen: tokens may come faster than that. */
  showSoon(text) {
    this._text = text;
    if (this._isDue) return;
    this._isDue = true;
    requestAnimationFrame(() => {
      if (!this._isDue) return;
      const isAtEnd = isScrolledToEnd();
      this.show(this._text);
      if (isAtEnd) scrollToEnd();
    });
  }

  note(text) {
    setText(this._note, text);
  }

  fail(text, retry) {
    this.element.classList.add("failed");
    this._note.replaceChildren(text, " ", button("Try again", retry));
    this._note.setAttribute("role", "alert");
    scrollToEnd();
  }
}

/** How fast an answer came. */
class Meter {
  constructor() {
    this._askedAt = performance.now();
    this._firstAt = null;
    this._end = null;
    this._isStopped = false;
  }

  start() {
    this._firstAt ??= performance.now();
  }

  end({ usage, finishReason }) {
    this._end = { tokens: usage.completion_tokens, finishReason, at: performance.now() };
  }

  stop() {
    this._isStopped = true;
  }

  text() {
    if (this._isStopped) return "Stopped";
    if (this._end === null || this._firstAt === null) return "";
    const { tokens, finishReason, at } = this._end;
    const seconds = (at - this._firstAt) / 1000;
    const facts = [
      `${count(tokens)} tokens`,
      `first after ${latency((this._firstAt - this._askedAt) / 1000)}`,
    ];
    if (tokens > 1 && seconds > 0) facts.push(`${rate((tokens - 1) / seconds)} tokens/s`);
    if (finishReason === "length") facts.push("cut at the token limit");
    return facts.join(" · ");
  }
}

function complaint(error) {
  return error instanceof Refusal ? error.message : "The connection to the coordinator was lost.";
}

function fitMessage() {
  const box = byId("message");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function isScrolledToEnd() {
  const turns = byId("turns");
  return turns.scrollHeight - turns.scrollTop - turns.clientHeight < 40;
}

function scrollToEnd() {
  byId("turns").scrollTop = byId("turns").scrollHeight;
}
