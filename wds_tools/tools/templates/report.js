"use strict";
// Names in the data are strangers' words: they become text, never markup. Rows are made a screenful at a time, because there
// may be thousands of classes and shards; a picture is made with its row, and decoded when it comes into view.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const CHUNK = 24;
  const ROWS = 200;
  const TILE_HEIGHT = matchMedia("(max-width: 40rem)").matches ? 84 : 100;
  const byId = (id) => document.getElementById(id);
  const count = (number) => number.toLocaleString("en-US");

  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    Object.assign(made, attributes);
    made.append(...children);
    return made;
  }

  function bytes(size) {
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (size < 1000) return (unit === "B" ? size : Number(size.toPrecision(3))) + " " + unit;
      size /= 1000;
    }
    return size.toFixed(2) + " TB";
  }

  const classes = data.classes.map(([name, counts, tiles], index) => ({
    name,
    folded: name.toLowerCase(),
    counts,
    total: counts.reduce((sum, each) => sum + each, 0),
    index,
    broken: tiles.filter((tile) => tile[8] !== null).length,
    tiles: tiles.map(([key, shard, number, size, image, pixels, shown, picture, error, note, fields]) => (
      { key, shard, number, size, image, pixels, shown, picture, error, note, fields, name })),
  }));

  // -- classes

  function countText(each) {
    const about = data.exact ? "" : "about ";
    const all = about + count(each.total) + (each.total === 1 ? " sample" : " samples");
    const splits = data.splits.map((split, number) => split + " " + count(each.counts[number])).join(", ");
    const shown = each.tiles.length < each.total ? ", " + count(each.tiles.length) + " shown" : "";
    return all + (data.splits.length < 2 ? "" : " (" + splits + ")") + shown;
  }

  function tileText(tile) {
    if (tile.error !== null) return ["Broken", tile.error];
    if (tile.image === null) return [tile.key, tile.fields.join(", ")];
    return [tile.key, tile.note || tile.image];
  }

  function makeTile(tile) {
    const button = element("button", { type: "button", className: "tile", title: tile.key });
    button.tabIndex = -1;
    if (tile.picture) {
      const [width, height] = tile.shown;
      const image = element("img", { loading: "lazy", decoding: "async", alt: tile.key, width, height });
      image.src = "data:image/webp;base64," + tile.picture;
      button.style.width = Math.min(Math.max(Math.round(TILE_HEIGHT * width / height), 32), 240) + "px";
      button.append(image);
    } else {
      const [head, text] = tileText(tile);
      button.classList.add("text");
      button.classList.toggle("broken", tile.error !== null);
      button.append(element("b", { textContent: head }), text);
      button.setAttribute("aria-label", [...new Set([tile.key, head, text])].join(", "));
    }
    button.addEventListener("click", () => showDetail(tile));
    return button;
  }

  function moveFocus(event) {
    const tiles = [...event.currentTarget.children];
    const at = tiles.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tiles.length - 1 }[event.key];
    if (to === undefined || at < 0 || !tiles[to]) return;
    event.preventDefault();
    tiles[at].tabIndex = -1;
    tiles[to].tabIndex = 0;
    tiles[to].focus();
  }

  function makeClass(each) {
    const heading = element("h3", {}, each.name, element("span", { textContent: countText(each) }));
    if (each.broken) heading.append(element("span", { className: "wrong", textContent: count(each.broken) + " broken" }));
    const row = element("section", { className: "class" }, heading);
    row.setAttribute("aria-label", each.name);
    if (each.tiles.length) {
      const sheet = element("div", { className: "sheet" }, ...each.tiles.map(makeTile));
      sheet.setAttribute("role", "group");
      sheet.setAttribute("aria-label", each.name + ": " + each.tiles.length + " drawn; arrow keys move");
      sheet.firstChild.tabIndex = 0;
      sheet.addEventListener("keydown", moveFocus);
      row.append(sheet);
    }
    return row;
  }

  const ORDERS = {
    index: (a, b) => a.index - b.index,
    most: (a, b) => b.total - a.total || a.index - b.index,
    fewest: (a, b) => a.total - b.total || a.index - b.index,
    broken: (a, b) => b.broken - a.broken || a.index - b.index,
  };
  const list = byId("list");
  const more = byId("more");
  let chosen = [];

  function makeMore() {
    const made = list.childElementCount;
    list.append(...chosen.slice(made, made + CHUNK).map(makeClass));
  }

  // An observer speaks when its target comes near, not while it stays there: so it is asked anew after each chunk.
  const observer = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting) && list.childElementCount < chosen.length) {
      makeMore();
      observer.unobserve(more);
      observer.observe(more);
    }
  }, { rootMargin: "800px" });

  function choose() {
    const wanted = byId("filter").value.trim().toLowerCase();
    chosen = classes.filter((each) => each.folded.includes(wanted)).sort(ORDERS[byId("order").value]);
    list.replaceChildren();
    makeMore();
    byId("status").textContent = chosen.length === classes.length
      ? count(classes.length) + (classes.length === 1 ? " class" : " classes")
      : count(chosen.length) + " of " + count(classes.length) + " classes";
    if (!chosen.length) {
      const text = classes.length ? "No class has this in its name." : "No sample could be drawn.";
      list.append(element("p", { className: "note", textContent: text }));
    }
  }

  // Classes with few pictures stand side by side.
  const most = classes.reduce((found, each) => Math.max(found, each.tiles.length), 0);
  list.classList.toggle("few", most <= 2);
  list.classList.toggle("single", most <= 1);

  byId("filter").addEventListener("input", choose);
  byId("order").addEventListener("change", choose);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  choose();
  observer.observe(more);

  // -- one sample

  function showDetail(tile) {
    const [split, shard] = data.shards[tile.shard];
    const facts = [["Class", tile.name], ["Shard", shard + ", sample " + count(tile.number)]];
    if (data.splits.length > 1) facts.push(["Split", data.splits[split]]);
    if (tile.pixels) facts.push(["Pixels", tile.pixels.join(" × ")]);
    facts.push(["Bytes", count(tile.size) + (tile.image ? " (" + tile.image + ")" : "")], ["Fields", tile.fields.join(", ")]);
    if (tile.error !== null) facts.push(["Broken", tile.error]);
    if (tile.note) facts.push(["Note", tile.note]);
    byId("detail-title").textContent = tile.key;
    byId("detail-image").hidden = !tile.picture;
    if (tile.picture) byId("detail-image").src = "data:image/webp;base64," + tile.picture;
    byId("detail-facts").replaceChildren(...facts.flatMap(([name, text]) => [
      element("dt", { textContent: name }), element("dd", { textContent: text })]));
    byId("detail").showModal();
  }

  byId("detail").addEventListener("click", (event) => {
    if (event.target === event.currentTarget) event.currentTarget.close();
  });

  // -- shards

  const rows = byId("shard-table").tBodies[0];
  const scroller = byId("shard-table").parentElement;

  function makeShard([split, name, samples, size, problems]) {
    const cells = data.splits.length > 1 ? [element("td", { textContent: data.splits[split] })] : [];
    cells.push(
      element("td", { textContent: name }),
      element("td", { className: "number", textContent: samples === null ? "unknown" : count(samples) }),
      element("td", { className: "number", textContent: size === null ? "unknown" : bytes(size) }),
      element("td", { className: problems ? "number wrong" : "number", textContent: problems ? count(problems) : "–" }),
    );
    return element("tr", {}, ...cells);
  }

  function makeShards() {
    const made = rows.rows.length;
    if (made === 0 || scroller.scrollTop + 2 * scroller.clientHeight > scroller.scrollHeight) {
      rows.append(...data.shards.slice(made, made + ROWS).map(makeShard));
    }
  }
  scroller.addEventListener("scroll", makeShards);
  byId("shard-details").addEventListener("toggle", makeShards);
  makeShards();
})();
