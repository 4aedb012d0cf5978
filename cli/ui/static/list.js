// The table of Services as a list of ten thousand. It only creates the visible rows.
import { levels, number, rates, visible } from './text.js';

const around = 12; // rows beyond those that are seen

export function begin() {
  const box = document.getElementById('list');
  const table = document.getElementById('services');
  const tbody = table.tBodies[0];
  const form = document.getElementById('search');
  const found = document.getElementById('found');
  const all = new Map(); // by name
  let sorted = []; // entries by name
  let shown = []; // what the search finds, what needs a look first
  let rev = Number(document.body.dataset.rev);
  let active = 0; // the row that has the focus, or gets it
  let loading = false;
  let want = 0; // the change that a load must have, at least
  let missed = []; // messages that came while it was under way
  let loaded = false; // before that the rows are those that came with the page
  let height = 36; // of a row with its line, as style.css has it for this width
  let carries = {}; // what Services carry now
  const fresh = new Map(); // names of what changed just now, with when that is over

  function entry(s) {
    return { s, text: (s[0] + ' ' + s[1] + ' ' + s[2] + ' ' + s[3] + ' ' + s[9]).toLowerCase() };
  }
  const byName = (a, b) => (a.s[0] < b.s[0] ? -1 : a.s[0] > b.s[0] ? 1 : 0);

  function words() { return form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean); }

  function search() {
    const w = words();
    const trouble = form.elements.show.value === 'problems';
    const by = [[], [], []];
    let problems = 0;
    for (const e of sorted) {
      if (e.s[8] > 0) problems++;
      if (trouble && e.s[8] === 0) continue;
      if (w.every((x) => e.text.includes(x))) by[e.s[8]].push(e);
    }
    shown = by[2].concat(by[1], by[0]);
    const total = number.format(sorted.length) + (sorted.length === 1 ? ' Service' : ' Services');
    const text = shown.length === sorted.length ? total : number.format(shown.length) + ' of ' + total;
    if (found.textContent !== text) found.textContent = text;
    document.getElementById('problems').textContent = number.format(problems);
    table.setAttribute('aria-rowcount', shown.length + 1);
    active = Math.max(0, Math.min(active, shown.length - 1));
  }

  function cell(tag, text, name) {
    const c = document.createElement(tag);
    if (name) c.className = name;
    c.textContent = text;
    return c;
  }

  // clip keeps what a cell says within the height of a row.
  function clip(c, ...what) {
    const box = cell('div', '', 'clip');
    const all = cell('span', ''); // the box would stack what it has
    all.append(...what);
    box.append(all);
    c.append(box);
    return c;
  }

  function row(i) {
    const s = shown[i].s;
    const tr = document.createElement('tr');
    tr.className = levels[s[8]] + (fresh.has(s[0]) ? ' fresh' : '');
    tr.setAttribute('aria-rowindex', i + 2);
    const th = document.createElement('th');
    th.scope = 'row';
    const a = document.createElement('a');
    a.href = 'service?name=' + encodeURIComponent(s[0]);
    a.tabIndex = i === active ? 0 : -1;
    a.dataset.at = i;
    const name = visible(s[0]);
    if (name.length > 64) a.className = 'long';
    a.append(cell('bdi', name));
    clip(th, a);
    const dot = cell('span', '', 'dot');
    dot.setAttribute('aria-hidden', 'true');
    const state = clip(cell('td', '', 'state'), dot, s[9] ? visible(s[9]) : 'ok');
    state.title = visible(s[9]);
    const of = rates(carries, s[0]);
    tr.append(th, state, clip(cell('td', '', 'n'), s[5] + '/', document.createElement('wbr'), s[6]), cell('td', of[0], 'n conn'), cell('td', of[1], 'n bytes'),
      cell('td', s[7], 'n wide'), cell('td', s[1], 'wide'), clip(cell('td', '', 'addr wide'), s[2]), clip(cell('td', '', 'wide'), s[3]), cell('td', s[4], 'n wide'));
    return tr;
  }

  function space(rows) {
    const tr = document.createElement('tr');
    tr.className = 'space';
    tr.setAttribute('aria-hidden', 'true');
    const td = document.createElement('td');
    td.colSpan = 10;
    td.style.height = rows * height + 'px';
    tr.append(td);
    return tr;
  }

  let from = -1;
  let to = -1;
  function draw(force) {
    if (!loaded) return;
    height = parseInt(getComputedStyle(box).getPropertyValue('--row'), 10);
    const first = Math.max(0, Math.floor(box.scrollTop / height) - around);
    const past = Math.min(shown.length, Math.ceil((box.scrollTop + box.clientHeight) / height) + around);
    if (!force && first === from && past === to) return;
    from = first;
    to = past;
    const focused = box === document.activeElement || tbody.contains(document.activeElement);
    const rows = [space(first)];
    for (let i = first; i < past; i++) rows.push(row(i));
    rows.push(space(shown.length - past));
    if (shown.length === 0) {
      const tr = document.createElement('tr');
      const td = cell('td', 'No Service matches all of these words.', 'empty');
      td.colSpan = 10;
      tr.append(td);
      rows.push(tr);
    }
    tbody.replaceChildren(...rows);
    if (focused) focus();
  }

  function focus() {
    const a = tbody.querySelector('a[data-at="' + active + '"]');
    (a || box).focus({ preventScroll: true }); // a row that is out of sight has the focus no more, but keys go on from it
  }

  function go(to) {
    active = Math.max(0, Math.min(to, shown.length - 1));
    const top = active * height;
    const head = table.tHead.offsetHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + height + head > box.scrollTop + box.clientHeight) box.scrollTop = top + height + head - box.clientHeight;
    draw(true);
    focus();
  }

  function address() {
    const q = form.elements.q.value.trim();
    const u = new URL('./', location.href);
    if (q) u.searchParams.set('q', q);
    if (form.elements.show.value === 'problems') u.searchParams.set('show', 'problems');
    history.replaceState(null, '', u);
  }

  function again() { if (!loaded) return; search(); box.scrollTop = 0; active = 0; draw(true); address(); }

  // load fetches all, and again after a moment if it cannot.
  async function load() {
    if (loading) return;
    loading = true;
    missed = [];
    try {
      const answer = await fetch('services.json');
      if (!answer.ok) throw new Error(answer.status);
      const l = await answer.json();
      all.clear();
      for (const s of l.services) all.set(s[0], entry(s));
      sorted = [...all.values()].sort(byName);
      rev = l.rev;
      for (const d of missed) if (d.rev > l.rev) apply(d);
      if (l.rev < want) setTimeout(load, 500 + 500 * Math.random()); // it was made a moment before
      if (!loaded) enhance();
      search();
      draw(true);
    } catch {
      setTimeout(load, 2000 + 3000 * Math.random());
    } finally {
      loading = false;
    }
  }

  // apply puts in what a message says.
  function apply(d) {
    rev = d.rev;
    for (const s of d.some || []) all.set(s[0], entry(s));
    for (const name of d.gone || []) all.delete(name);
    sorted = [...all.values()].sort(byName);
  }

  function take(d) {
    if (d.rev <= rev && !d.again) return;
    if (d.again) { want = d.rev; setTimeout(load, 500 * Math.random()); return; } // not all pages at once
    if (loading) missed.push(d);
    const focused = shown[active] && shown[active].s[0];
    apply(d);
    for (const s of d.some || []) {
      clearTimeout(fresh.get(s[0]));
      fresh.set(s[0], setTimeout(() => { fresh.delete(s[0]); draw(true); }, 3000));
    }
    search();
    if (focused) {
      const i = shown.findIndex((e) => e.s[0] === focused);
      if (i >= 0) active = i;
    }
    draw(true);
  }

  // traffic puts in what Services carry now, where they are; rows that come later have it too.
  function traffic(now) {
    carries = now;
    table.classList.toggle('counted', now.counted);
    table.querySelector('th.conn').title = 'New connections per second' + (now.note ? ': ' + visible(now.note) : '');
    for (const a of tbody.querySelectorAll('a[data-at]')) {
      const tr = a.closest('tr');
      const of = rates(carries, shown[a.dataset.at].s[0]);
      tr.querySelector('.conn').textContent = of[0];
      tr.querySelector('.bytes').textContent = of[1];
    }
  }

  tbody.addEventListener('focusin', (e) => {
    const a = e.target.closest('a[data-at]');
    if (a) active = Number(a.dataset.at);
  });
  box.tabIndex = -1;
  box.addEventListener('keydown', (e) => {
    if (!loaded || e.altKey || e.ctrlKey || e.metaKey) return;
    const page = Math.max(1, Math.floor(box.clientHeight / height) - 2);
    const to = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: shown.length - 1 }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    go(to);
  });
  document.addEventListener('keydown', (e) => {
    if (e.key !== '/' || e.altKey || e.ctrlKey || e.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
    e.preventDefault();
    form.elements.q.focus();
    form.elements.q.select();
  });
  form.elements.q.addEventListener('keydown', (e) => {
    if (e.key === 'ArrowDown' && loaded) { e.preventDefault(); go(0); }
  });
  let frame = 0;
  box.addEventListener('scroll', () => {
    if (!frame) frame = requestAnimationFrame(() => { frame = 0; draw(false); });
  }, { passive: true });
  addEventListener('resize', () => draw(true));
  form.addEventListener('input', again);
  form.addEventListener('submit', (e) => { if (!loaded) return; e.preventDefault(); again(); go(0); });

  // enhance takes away what is for browsers without scripts.
  function enhance() {
    loaded = true;
    form.querySelector('button').hidden = true;
    document.getElementById('pages').hidden = true;
    document.getElementById('keys').hidden = false;
    box.classList.add('virtual');
  }

  return { take, traffic, ready: load(), rev: () => rev };
}
