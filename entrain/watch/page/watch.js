// The page of `entrain watch --web`. What comes from the network is only ever set as text, never as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const HISTORY = 240, SMALL = 16, SMALL_SAMPLES = 60;
const query = new URLSearchParams(location.search);
const token = query.get("token");
const most = Number(query.get("readings") || Infinity); // then the page stands still, for a picture
let readings = 0;
let number = 0, colours = [], last = null, chosen = null;
const past = new Map(); // link: [[seconds, measured, planned], ...]

function node(kind, attributes = {}, text = null) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  return made;
}

function shape(kind, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  return made;
}

function picture(id, ...content) {
  document.querySelector(`#${id} .picture`).replaceChildren(...content);
}

function nothing(id, text) {
  picture(id, node("p", { class: "none" }, text));
}

// A colour between grey and another one; part is 0 to 1.
function between(part, from, to) {
  const mix = Math.max(0, Math.min(1, part));
  return `rgb(${from.map((each, place) => Math.round(each + (to[place] - each) * mix)).join(",")})`;
}
const MEASURED = [0, 114, 178], PLANNED = [213, 94, 0];
const used = (part) => between(part, [216, 216, 216], MEASURED);
const planned = (part) => between(part, [247, 247, 247], PLANNED);
const part = (link) => (link.measured_mbps === null ? 0 : link.measured_mbps / link.capacity_mbps);
const jobColour = (name) => colours[last.jobs.findIndex((job) => job.name === name) % colours.length] || "#444";
const one = (value, digits = 1) => (value === null || value === undefined ? "-" : value.toFixed(digits));
const short = (name, longest = 22) => (name.length > longest ? `${name.slice(0, longest - 1)}…` : name);

function pick(element, link) {
  element.setAttribute("data-link", link.name);
  element.append(shape("title", {}, `${link.name}: ${one(link.measured_mbps)} of ${link.capacity_mbps} Mbit/s, ` +
    `${one(link.planned_mbps)} planned` + (link.backlog_bytes === null ? "" :
    `; queue: ${one(link.backlog_bytes / 1e3)} KB, ${link.dropped_packets} packets dropped`)));
  element.addEventListener("click", () => { chosen = chosen === link.name ? null : link.name; draw(); });
  return element;
}

function drawTopology() {
  const width = 640, rows = [];
  const of = (role) => last.switches.filter((each) => each.role === role).map((each) => each.name);
  const others = last.switches.filter((each) => !["leaf", "spine"].includes(each.role)).map((each) => each.name);
  for (const names of [of("spine"), others, of("leaf"), last.hosts.map((host) => host.name)])
    if (names.length) rows.push(names);
  const place = new Map(), height = 110 * rows.length - 40;
  rows.forEach((names, row) => names.forEach((name, column) =>
    place.set(name, [width * (column + 0.5) / names.length, 30 + 110 * row])));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "topology" });
  const seen = new Map(); // parallel links
  for (const link of last.links) {
    const a = place.get(link.source), b = place.get(link.target);
    if (!a || !b) continue;
    const key = `${link.source} ${link.target}`, shift = 3 + 5 * (seen.get(key) || 0);
    seen.set(key, (seen.get(key) || 0) + 1);
    const long = Math.hypot(b[0] - a[0], b[1] - a[1]) || 1;
    const x = -(b[1] - a[1]) / long * shift, y = (b[0] - a[0]) / long * shift;
    const line = shape("line", { x1: a[0] + x, y1: a[1] + y, x2: b[0] + x, y2: b[1] + y,
      stroke: used(part(link)), "stroke-width": link.name === chosen ? 5 : 3.2 });
    svg.append(pick(line, link));
  }
  for (const circuit of last.circuits) {
    const ends = [circuit.a, circuit.b].map((port) => place.get(port.replace(/-eth\d+$/, "")));
    if (!ends[0] || !ends[1]) continue;
    const line = shape("line", { x1: ends[0][0] + 14, y1: ends[0][1], x2: ends[1][0] + 14, y2: ends[1][1],
      stroke: circuit.job ? jobColour(circuit.job) : "#888", "stroke-width": 2, "stroke-dasharray": "6 4" });
    line.append(shape("title", {}, `circuit ${circuit.a} = ${circuit.b}${circuit.job ? `, of ${circuit.job}` : ""}`));
    svg.append(line);
  }
  const crowd = new Map(rows.flatMap((names) => names.map((name) => [name, names.length])));
  const lost = new Set(last.switches.filter((each) => each.status !== "ready").map((each) => each.name));
  for (const [name, [x, y]] of place) {
    const wide = Math.min(72, width / crowd.get(name) - 6);
    const host = last.hosts.some((each) => each.name === name);
    const jobs = last.jobs.filter((job) => job.hosts.includes(name));
    const box = shape("rect", { x: x - wide / 2, y: y - 13, width: wide, height: 26, rx: host ? 13 : 3,
      fill: jobs.length ? jobColour(jobs[0].name) : "#fff", stroke: lost.has(name) ? "#D55E00" : "#444",
      "stroke-width": lost.has(name) ? 3 : 1.2 });
    box.append(shape("title", {}, host ? `${name}: ${jobs.map((job) => job.name).join(", ") || "no job"}` :
      `${name}: ${last.switches.find((each) => each.name === name).status}`));
    const label = shape("text", { x, y: y + 4, "text-anchor": "middle", "pointer-events": "none" },
      short(name, Math.max(3, Math.floor(wide / 7))));
    svg.append(box, label);
  }
  picture("topology", svg);
}

function drawHeat() {
  const links = last.links.filter((link) => link.slots.length);
  if (!links.length) { nothing("heat", last.problem || last.lacking || "no link has a load table"); return; }
  const slots = links[0].slots.length, left = 150, cell = 44, row = Math.max(14, Math.min(22, 480 / links.length));
  const width = left + slots * cell + 8, height = 22 + links.length * row;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "planned load" });
  for (let slot = 0; slot < slots; slot += 1)
    svg.append(shape("text", { x: left + (slot + 0.5) * cell, y: 13, "text-anchor": "middle", class: "small" }, `+${slot}`));
  links.forEach((link, place) => {
    const y = 20 + place * row;
    svg.append(shape("text", { x: left - 8, y: y + row / 2 + 4, "text-anchor": "end",
      "font-weight": link.name === chosen ? "bold" : "normal" }, short(link.name)));
    link.slots.forEach((mbps, slot) => {
      const box = shape("rect", { x: left + slot * cell + 1, y: y + 1, width: cell - 2, height: row - 2, rx: 2,
        fill: planned(mbps / link.capacity_mbps) });
      box.append(shape("title", {}, `${link.name}, slot ${last.slot + slot} (+${slot}): ${one(mbps)} of ${link.capacity_mbps} Mbit/s`));
      svg.append(box);
      if (mbps && row >= 14)
        svg.append(shape("text", { x: left + (slot + 0.5) * cell, y: y + row / 2 + 4, "text-anchor": "middle",
          class: "value" }, Math.round(mbps)));
    });
  });
  picture("heat", svg);
}

// Links to show over time: the chosen one, or those between switches, the busiest if they are many.
function shown() {
  if (chosen) return last.links.filter((link) => link.name === chosen);
  const hosts = new Set(last.hosts.map((host) => host.name));
  let links = last.links.filter((link) => !hosts.has(link.source) && !hosts.has(link.target));
  if (!links.length) links = last.links;
  if (links.length <= SMALL) return links;
  const peak = (link) => Math.max(...past.get(link.name).map((each) => each[1] || 0)) / link.capacity_mbps;
  const busiest = new Set([...links].sort((a, b) => peak(b) - peak(a)).slice(0, SMALL));
  return links.filter((link) => busiest.has(link));
}

function drawUse() {
  const links = shown(), columns = links.length > 2 ? Math.min(4, Math.ceil(links.length / 2)) : 1;
  if (!links.length) { nothing("use", last.problem || "no links"); return; }
  const width = 640, each = width / columns, high = columns === 1 ? 200 : 96;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${Math.ceil(links.length / columns) * (high + 36)}`, role: "img",
    "aria-label": "use over time" });
  const now = last.unix_s;
  links.forEach((link, place) => {
    const x0 = (place % columns) * each + 30, y0 = Math.floor(place / columns) * (high + 36) + 18, wide = each - 40;
    const samples = (past.get(link.name) || []).slice(columns > 1 ? -SMALL_SAMPLES : 0);
    const span = Math.max(10, ...samples.slice(0, 1).map((sample) => now - sample[0]));
    const x = (seconds) => x0 + wide * (1 - (now - seconds) / span);
    const top = link.capacity_mbps;
    const y = (mbps) => y0 + high * (1 - Math.min(mbps / top, 1.05));
    svg.append(shape("text", { x: x0, y: y0 - 5 }, short(link.name, Math.floor(wide / 7))));
    svg.append(shape("rect", { x: x0, y: y0, width: wide, height: high, fill: "#fafafa", stroke: "#ccc" }));
    svg.append(shape("text", { x: x0 - 3, y: y0 + 9, "text-anchor": "end", class: "small" }, top >= 10000 ? `${top / 1000}G` : top));
    svg.append(shape("text", { x: x0 - 3, y: y0 + high, "text-anchor": "end", class: "small" }, "0"));
    svg.append(shape("text", { x: x0 + wide, y: y0 + high + 10, "text-anchor": "end", class: "small" }, "now"));
    svg.append(shape("text", { x: x0, y: y0 + high + 10, class: "small" }, `-${Math.round(span)} s`));
    const measured = samples.filter((sample) => sample[1] !== null);
    if (measured.length > 1) {
      const points = measured.map((sample) => `${x(sample[0]).toFixed(1)},${y(sample[1]).toFixed(1)}`);
      const area = [`${x(measured[0][0]).toFixed(1)},${y0 + high}`, ...points, `${x(measured.at(-1)[0]).toFixed(1)},${y0 + high}`];
      svg.append(shape("polygon", { points: area.join(" "), fill: "#0072B2", opacity: 0.3 }));
      svg.append(shape("polyline", { points: points.join(" "), fill: "none", stroke: "#0072B2", "stroke-width": 1.3 }));
    }
    const meant = samples.filter((sample) => sample[2] !== null);
    if (meant.some((sample) => sample[2] > 0))
      svg.append(shape("polyline", { points: meant.map((sample) => `${x(sample[0]).toFixed(1)},${y(sample[2]).toFixed(1)}`).join(" "),
        fill: "none", stroke: "#D55E00", "stroke-width": 1.6 }));
    svg.append(pick(shape("rect", { x: x0, y: y0, width: wide, height: high, fill: "transparent" }), link));
  });
  picture("use", svg);
}

function drawGantt() {
  const jobs = last.jobs.filter((job) => job.phases.length);
  if (!jobs.length) {
    nothing("gantt", last.run ? "no job has finished an iteration yet" : "only jobs of `entrain run` record their iterations");
    return;
  }
  const width = 640, left = 100, row = 40, end = Math.max(...jobs.map((job) => job.phases.at(-1).end_s));
  const longest = Math.max(...jobs.map((job) => job.phases.at(-1).end_s - job.phases.at(-1).start_s));
  const begin = end - Math.max(2, 6 * longest);
  const x = (seconds) => left + (width - left - 8) * (Math.max(seconds, begin) - begin) / (end - begin);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${jobs.length * row + 26}`, role: "img", "aria-label": "phases" });
  jobs.forEach((job, place) => {
    const y = place * row + row / 2, colour = jobColour(job.name);
    svg.append(shape("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, short(job.name, 13)));
    for (const phase of job.phases.filter((each) => each.end_s > begin)) {
      const bar = (from, to, high, what) => {
        if (to <= begin) return;
        const box = shape("rect", { x: x(from), y: y - high / 2, width: Math.max(0.5, x(to) - x(from)), height: high, fill: colour });
        box.append(shape("title", {}, `${job.name}, iteration ${phase.number}: ${what} for ${one(1e3 * (to - from))} ms`));
        svg.append(box);
      };
      bar(phase.start_s, phase.compute_end_s, 5, "computes");
      bar(phase.compute_end_s, phase.end_s, 24, "communicates");
    }
  });
  for (let tick = 0; tick <= 4; tick += 1) {
    const seconds = begin + (end - begin) * tick / 4;
    svg.append(shape("text", { x: x(seconds), y: jobs.length * row + 16, class: "small",
      "text-anchor": tick === 4 ? "end" : "middle" }, tick === 4 ? "latest end" : `${one(seconds - end)} s`));
  }
  picture("gantt", svg);
}

// Columns are [heading, value of a row]; numbers go to the right.
function table(id, rows, columns, empty) {
  if (!rows.length) { nothing(id, empty); return; }
  const made = node("table"), head = node("tr");
  const right = columns.map(([, value]) => rows.every((row) => /^([-\d.]+x?|\d+\/\d+)$/.test(value(row))));
  columns.forEach(([heading], place) => head.append(node("th", right[place] ? { class: "number" } : {}, heading)));
  made.append(head);
  for (const row of rows) {
    const line = node("tr");
    columns.forEach(([heading, value], place) => {
      const cell = node("td", right[place] ? { class: "number" } : {});
      if (heading === "job") {
        const dot = node("span", { class: "dot" });
        dot.style.background = jobColour(row.name);
        cell.append(dot);
      }
      cell.append(String(value(row)));
      line.append(cell);
    });
    made.append(line);
  }
  picture(id, made);
}

function draw() {
  document.title = `${last.run || last.network}: entrain watch`;
  document.getElementById("what").textContent = last.run ? `run ${last.run}` : `network ${last.network}`;
  document.getElementById("about").textContent = `${last.switches.length} switches (${last.program}), ` +
    `${last.hosts.length} hosts, ${last.lacking ? "" : `${last.routing} routing; `}slot ${last.slot} of ${last.slot_ms} ms; ` +
    new Date(1e3 * last.unix_s).toLocaleTimeString("en-GB");
  say(last.problem || last.lacking);
  drawTopology();
  drawHeat();
  drawUse();
  drawGantt();
  table("jobs", last.jobs, [
    ["job", (job) => job.name],
    ["state", (job) => job.state],
    ["iteration", (job) => (job.done === null ? "-" : `${job.done}${job.iterations ? `/${job.iterations}` : ""}`)],
    ["ms", (job) => one(job.iteration_ms)],
    ["ideal ms", (job) => one(job.ideal_ms)],
    ["over ideal", (job) => (job.over_ideal === null ? "-" : `${one(job.over_ideal, 2)}x`)],
    ["hosts, or why it waits", (job) => job.note || job.hosts.join(" ")],
  ], "none");
  const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);
  table("switches", last.switches, [
    ["switch", (each) => each.name],
    ["target", (each) => each.target],
    ["entries", (each) => sum(each.tables)],
    ["dropped", (each) => [...Object.entries(each.drops), ...last.links.filter((link) => link.source === each.name)
      .map((link) => [`queue to ${link.target}`, link.dropped_packets])].filter(([, count]) => count)
      .map(([reason, count]) => `${reason} ${count}`).join(", ") || "0"],
    ["status", (each) => each.status],
  ], "none");
  table("agents", last.agents, [
    ["host", (each) => each.host],
    ["flows", (each) => each.flows],
    ["negotiation ms", (each) => one(each.negotiation_ms)],
    ["decision ms", (each) => one(each.decision_ms)],
    ["state", (each) => each.problem || each.enforcer || "answers"],
  ], last.run ? "none: this run's policy has no agents" : "none: `entrain-agent` starts one on a host");
  table("events", [...last.events].reverse(), [
    ["time", (event) => new Date(1e3 * event.unix_s).toLocaleTimeString("en-GB")],
    ["what", (event) => event.text],
  ], "none yet");
}

function say(text) {
  const place = document.getElementById("problem");
  place.textContent = text;
  place.hidden = !text;
}

function remember(snapshot) {
  for (const [name, samples] of Object.entries(snapshot.history || {}))
    past.set(name, samples.map((each) => [each.unix_s, each.measured_mbps, each.planned_mbps]));
  if (snapshot.history) return;
  for (const link of snapshot.links) {
    const samples = past.get(link.name) || [];
    samples.push([snapshot.unix_s, link.measured_mbps, link.planned_mbps]);
    past.set(link.name, samples.slice(-HISTORY));
  }
}

async function follow() {
  while (readings < most) {
    try {
      const asked = new URLSearchParams({ after: number, ...(token ? { token } : {}) });
      const answer = await fetch(`api/snapshot?${asked}`, { cache: "no-store" });
      if (answer.status === 403) { say(`refused: ${(await answer.json()).error}`); return; }
      const told = await answer.json();
      if (told.ended) { say(told.ended); return; }
      if (told.number !== number) {
        number = told.number;
        colours = told.colours;
        last = told.snapshot;
        remember(last);
        draw();
        readings += 1;
      }
    } catch (error) {
      say(`the server of this page does not answer (${error.message}); start \`entrain watch --web\` again`);
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

follow();
