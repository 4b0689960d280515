// How figures and keys are written, and how elements are made.

/** The label of a dotted key of a file: known parts in words, others as they are. */
function keyLabel(key) {
  return key.split(".").map((part) => (WORDS["key_" + part] ? word("key_" + part) : part.replaceAll("_", " "))).join(" · ");
}

function scaled(value, base, units, digits) {
  let unit = 0;
  while (Math.abs(value) >= base * 0.9995 && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  return (unit === 0 ? String(Math.round(value)) : value.toFixed(digits)) + units[unit];
}

const write = {
  count: (value) => scaled(value, 1000, ["", "k", "M", "B", "T"], 1),
  bytes: (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"], 1),
  share: (value) => (100 * value).toFixed(1) + "%",
  whole: (value) => Math.round(value).toLocaleString("en"),
  seconds: (value) => (value < 0.9995 ? (1000 * value).toPrecision(3) + " ms" : value.toPrecision(3) + " s"),
  /** Four digits, with an exponent where that is shorter. */
  figure(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e6) return value.toExponential(2);
    return value.toFixed(Math.max(0, 3 - Math.max(0, Math.floor(Math.log10(size)))));
  },
  /** The two largest units. */
  duration(value) {
    const [d, h, m, s] = language === "zh" ? [" 天 ", " 时 ", " 分 ", " 秒"] : ["d ", "h ", "m ", "s"];
    if (value < 9.95) return value.toFixed(1) + " " + s.trim();
    const parts = [[86400, d], [3600, h], [60, m], [1, s]], whole = Math.round(value);
    const first = Math.max(0, parts.findIndex(([unit]) => whole >= unit));
    const text = parts.slice(first, first + 2).map(([unit, name], i) => {
      const n = Math.floor((i ? whole % parts[first][0] : whole) / unit);
      return (i ? String(n).padStart(2, "0") : n) + name;
    });
    return text.join("").trim();
  },
  time: (value) => new Date(1000 * value).toLocaleString(language === "zh" ? "zh-CN" : "en-GB", { dateStyle: "medium", timeStyle: "short" }),
  /** Any value of a file, by the look of its key. */
  fact(key, value) {
    if (typeof value !== "number") return String(value);
    if (/(^|[._])bytes$/.test(key) && !/per_bytes?$/.test(key)) return write.bytes(value);
    if (/(^|[._])seconds$/.test(key)) return write.duration(value);
    return Number.isInteger(value) && Math.abs(value) < 1e15 ? value.toLocaleString("en") : write.figure(value);
  },
};

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const $ = (selector) => document.querySelector(selector);
const figureOrText = (value) => (typeof value === "number" ? write.figure(value) : String(value));
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const kindLabel = (kind) => (WORDS["kind_" + kind] ? word("kind_" + kind) : kind.replaceAll("_", " "));
const labelOf = (key) => (WORDS[key] ? word(key) : key);
const grouped = (value) => value.toLocaleString("en");
