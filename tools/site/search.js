// The search of the site: it lists the sections that contain all words of the query, or words that begin with them.
(() => {
  const form = document.getElementById("search"), field = form.elements.query, list = document.getElementById("found");
  const up = form.dataset.up;
  form.hidden = false;
  const found = query => {
    const words = query.toLowerCase().match(/[\p{L}\p{N}][\p{L}\p{N}_.-]*/gu) || [];
    let scores = null;
    for (const word of words) {
      const here = new Map();
      for (const known in index.words) {
        if (!known.startsWith(word)) continue;
        for (const i of index.words[known]) here.set(i, Math.max(here.get(i) || 0, known === word ? 2 : 1));
      }
      for (const [i, score] of here) {
        if (index.sections[i][1].toLowerCase().includes(word)) here.set(i, score + 2);
      }
      scores = scores === null ? here : new Map([...scores].filter(([i]) => here.has(i)).map(([i, s]) => [i, s + here.get(i)]));
    }
    return [...(scores || [])].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 20).map(([i]) => index.sections[i]);
  };
  field.addEventListener("input", () => {
    const sections = field.value.trim().length > 1 ? found(field.value) : [];
    list.replaceChildren(...sections.map(([title, heading, address]) => {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = up + address;
      link.textContent = heading === title ? title : title + ": " + heading;
      item.append(link);
      return item;
    }));
    form.querySelector("[role=status]").textContent =
      field.value.trim().length > 1 ? (sections.length || "No") + (sections.length === 1 ? " section" : " sections") : "";
  });
  form.addEventListener("submit", event => {
    event.preventDefault();
    const first = list.querySelector("a");
    if (first) location.href = first.href;
  });
})();
