"use strict";
// A click on a head sorts its table: numbers by their value, what is no number ("-") last, words by the alphabet.
document.querySelectorAll("thead th").forEach((head) => {
  head.addEventListener("click", () => {
    const column = head.cellIndex, body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "descending" ? false : head.className === "n" || head.getAttribute("aria-sort") === "ascending";
    const text = (row) => row.cells[column].textContent;
    const compare = head.className === "n"
      ? (a, b) => {
          const [x, y] = [parseFloat(text(a)), parseFloat(text(b))];
          if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
          return down ? y - x : x - y;
        }
      : (a, b) => (down ? -1 : 1) * text(a).localeCompare(text(b), undefined, { numeric: true });
    body.append(...Array.from(body.rows).sort(compare));
    head.parentNode.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  });
});
// What is folded is printed too.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
