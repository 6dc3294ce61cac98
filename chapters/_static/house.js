/* What the pages do beside being read. Everything here also works without it: folds open, the text can be selected. */
(() => {
  "use strict";

  // Search: a page opened from disk cannot fetch other pages, so results come without excerpts there.
  if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
    DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
  }

  const ready = (run) =>
    document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", run) : run();

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Pages opened from disk may be refused the clipboard; the older way still works there.
      const area = document.createElement("textarea");
      area.value = text;
      area.setAttribute("readonly", "");
      area.style.position = "fixed";
      area.style.opacity = "0";
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  };

  // Printing opens every fold, and closes again what it opened.
  const opened = [];
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details:not([open])")) {
      fold.open = true;
      opened.push(fold);
    }
  });
  addEventListener("afterprint", () => {
    for (const fold of opened.splice(0)) fold.open = false;
  });

  ready(() => {
    // Commit yourself: picking an answer opens what the page has to say.
    for (const field of document.querySelectorAll("fieldset[data-commit]")) {
      const after = field.parentElement.querySelector("details.commit-after");
      field.addEventListener("change", () => {
        field.dataset.picked = "";
        if (after) after.open = true;
      });
    }

    for (const button of document.querySelectorAll("button[data-copy]")) {
      const label = button.textContent;
      button.addEventListener("click", async () => {
        const done = await copy(document.getElementById(button.dataset.copy).textContent);
        button.textContent = done ? "Copied" : "Select and copy it by hand";
        setTimeout(() => (button.textContent = label), 2000);
      });
    }

    // A link into a closed fold opens it.
    const reveal = () => {
      const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
      for (let fold = target && target.closest("details"); fold; fold = fold.parentElement.closest("details")) {
        fold.open = true;
      }
      if (target) target.scrollIntoView();
    };
    addEventListener("hashchange", reveal);
    if (location.hash) reveal();

    const form = document.getElementById("report");
    if (form) report(form);
  });

  function report(form) {
    const asked = new URLSearchParams(location.search);
    if (asked.get("page")) form.elements.page.value = asked.get("page");
    if (asked.get("title")) form.elements.page.value += ` (${asked.get("title")})`;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const value = (name) => form.elements[name].value.trim();
      const title = `${value("page")}, version ${value("version")}`;
      const body = [
        `Page: ${value("page")}`,
        `Version: ${value("version")}`,
        `Seen: ${value("seen")}`,
        `Expected: ${value("expected")}`,
        `Machine: ${value("machine")}`,
      ].join("\n\n");
      const send = event.submitter ? event.submitter.dataset.send : "copy";
      const done = document.getElementById("report-done");
      if (send === "copy") {
        done.textContent = (await copy(`${title}\n\n${body}`))
          ? "Copied. Paste it wherever you talk to the people who gave you the book."
          : "Your browser refused; select the fields and copy them by hand.";
      } else {
        const address = send === "mail" ? "mailto:?subject={title}&body={body}" : form.dataset.target;
        location.href = address
          .replace("{title}", encodeURIComponent(title))
          .replace("{body}", encodeURIComponent(body));
        done.textContent = send === "mail" ? "Your mail program has the text." : "The tracker has the text.";
      }
    });
  }
})();
