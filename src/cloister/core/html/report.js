"use strict";
// Intervals of other levels, from the released values and margins on this page alone.
const choice = document.getElementById("level");
const range = choice.querySelector("input");
const numbers = [...document.querySelectorAll("[data-normal]")];
const levels = JSON.parse(range.dataset.levels);
// Two digits of the margin, as in the text at 95 %.
const digits = (margin) => Math.max(0, 1 - Math.floor(Math.log10(margin)));
const text = (x, places) => (Number(x.toFixed(places)) + 0).toLocaleString("en-US",
  { minimumFractionDigits: places, maximumFractionDigits: places });
for (const one of numbers) one.dataset.first = one.textContent;
range.addEventListener("input", () => {
  const [name, times] = levels[range.value];
  range.setAttribute("aria-valuetext", name);
  choice.querySelector("output").textContent = name;
  for (const one of numbers) {
    const [value, margin] = one.dataset.normal.split(" ").map(Number);
    const places = digits(margin * times);
    const mark = one.dataset.first.endsWith(" ?") ? " ?" : "";
    const shown = [text(value, places), `± ${text(margin * times, places)}`];
    one.textContent = name === "95 %" ? one.dataset.first
      : { value: shown[0] + mark, margin: shown[1], level: name }[one.dataset.part] ?? shown.join(" ") + mark;
  }
});
choice.hidden = !numbers.length;
