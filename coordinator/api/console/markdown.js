// The part of Markdown that models write, as elements: headings, lists, code, bold and italic.

import { element } from "./element.js";

const FENCE = /^\s*```/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^\s*(?:[-*+]|(\d+)[.)])\s+(.*)$/;
const INLINE = /(`[^`]+`|\*\*[^*]+\*\*|\*[^*\s][^*]*\*)/;

/** Elements for a text, which may end anywhere: it is drawn while it comes. */
export function render(text) {
  const lines = text.split("\n");
  const blocks = [];
  while (lines.length > 0) {
    if (FENCE.test(lines[0])) blocks.push(takeCode(lines));
    else if (ITEM.test(lines[0])) blocks.push(takeList(lines));
    else if (HEADING.test(lines[0])) blocks.push(element("h4", "", ...inline(HEADING.exec(lines.shift())[2])));
    else if (lines[0].trim() === "") lines.shift();
    else blocks.push(takeParagraph(lines));
  }
  return blocks;
}

function takeCode(lines) {
  lines.shift();
  const code = [];
  while (lines.length > 0 && !FENCE.test(lines[0])) code.push(lines.shift());
  lines.shift();
  const block = element("pre", "", element("code", "", code.join("\n")));
  block.tabIndex = 0;
  return block;
}

function takeList(lines) {
  const first = ITEM.exec(lines[0]);
  const list = element(first[1] ? "ol" : "ul");
  if (first[1]) list.start = Number(first[1]);
  while (lines.length > 0 && ITEM.test(lines[0])) {
    list.append(element("li", "", ...inline(ITEM.exec(lines.shift())[2])));
    while (lines.length > 1 && lines[0].trim() === "" && ITEM.test(lines[1])) lines.shift();
  }
  return list;
}

function takeParagraph(lines) {
  const taken = [];
  do taken.push(lines.shift());
  while (lines.length > 0 && lines[0].trim() !== "" && ![FENCE, ITEM, HEADING].some((start) => start.test(lines[0])));
  return element("p", "", ...inline(taken.join("\n")));
}

function inline(text) {
  return text.split(INLINE).filter(Boolean).map((part) => {
    if (/^`.+`$/s.test(part)) return element("code", "", part.slice(1, -1));
    if (/^\*\*.+\*\*$/s.test(part)) return element("strong", "", part.slice(2, -2));
    if (/^\*[^*]+\*$/s.test(part)) return element("em", "", part.slice(1, -1));
    return part;
  });
}
