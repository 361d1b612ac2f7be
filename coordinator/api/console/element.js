// Makes elements. Text is always set as text: nothing a model or a worker says becomes markup.

/** An element of this tag and class, with children that are elements or text. */
export function element(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** A button that calls `act`. */
export function button(text, act, className = "quiet") {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

/** Set a text only when it differs, so that selections and screen readers are left alone. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}
