// Numbers -> the same text as stepscope/units.py writes: ties go to the even digit, as in Python.
const fixed = (value, digits) => {
  const scaled = value * 10 ** digits;
  const isTie = Number.isInteger(value * 2 ** (digits + 1)) && !Number.isInteger(scaled);
  if (!isTie) return value.toFixed(digits);
  const below = Math.floor(scaled);
  return ((below % 2 ? below + 1 : below) / 10 ** digits).toFixed(digits);
};
const showMs = (ns) => fixed(ns / 1e6, 2);
const showCount = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, ",");
const showShare = (fraction) => `${fixed(100 * fraction, 1)} %`;
const showNs = (ns) => {
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"]]) {
    if (Math.abs(ns) >= size) {
      const value = ns / size;
      const digits = Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
      return `${fixed(value, digits)} ${unit}`;
    }
  }
  return `${ns} ns`;
};

// make("td", {class: "n"}, child, ...): an element; text is always text, never markup
const make = (tag, attributes, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
};
