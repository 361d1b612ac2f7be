// Numbers, sizes and times as people read them.

const WHOLE = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const ONE_DIGIT = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** 12345 is "12,345". */
export const count = (number) => WHOLE.format(number);

/** 41234567 is "41.2M": for places without room. */
export const compact = (number) => (number < 100_000 ? WHOLE : COMPACT).format(number);

/** One digit after the point below 10, none above. */
export const rate = (number) => (number < 10 ? ONE_DIGIT : WHOLE).format(
  number < 10 ? number : Math.round(number),
);

/** 0.256 is "26%"; what is not nothing is not shown as 0. */
export function percent(share) {
  if (share > 0 && share < 0.01) return "<1%";
  return `${Math.round(100 * share)}%`;
}

/** 134500000 is "135 MB". */
export function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = size < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(size) / 3));
  const value = size / 1000 ** power;
  return `${value < 10 ? ONE_DIGIT.format(value) : Math.round(value)} ${units[power]}`;
}

/** Seconds as "0.4 s", "12 s", "3 min" or "5 h". */
export function duration(seconds) {
  if (seconds < 10) return `${ONE_DIGIT.format(seconds)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

/** Seconds as "40 ms" below one, and as a duration above. */
export const latency = (seconds) =>
  seconds < 1 ? `${Math.round(1000 * seconds)} ms` : duration(seconds);

/** How long ago something was, "now" within a second. */
export const age = (seconds) => (seconds < 1 ? "now" : `${duration(seconds)} ago`);

/** 1 and "step" are "1 step", 2 are "2 steps". */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
