// Behaviour of every page with scripts: it shows whether it is live, and what changes.
import { levels, rates, visible } from './text.js';
import { begin } from './list.js';

const body = document.body;
const live = document.getElementById('live');
const list = body.dataset.tab === 'services' && document.getElementById('services') ? begin() : null;
let rev = Number(body.dataset.rev);
let source = null;
let due = 0;
let last = 0;

function say(text) { if (live.textContent !== text) live.textContent = text; }

function head(h) {
  const line = document.getElementById('head');
  line.className = 'head ' + levels[h.level];
  const text = document.getElementById('head-text');
  if (text.textContent !== visible(h.text)) text.textContent = visible(h.text);
}

// refresh loads this page again and puts in what is new. It is HTML that the server has made; scripts in it would not run.
function refresh() {
  const content = document.getElementById('content');
  if (!content || due) return;
  const pause = Math.max(0, last + 1000 - Date.now());
  due = setTimeout(() => {
    due = 0;
    last = Date.now();
    const x = new XMLHttpRequest();
    x.open('GET', location.href);
    x.responseType = 'document';
    x.onload = () => {
      const fresh = x.response && x.response.getElementById('content');
      if (!fresh) return;
      const at = document.activeElement;
      const where = at && content.contains(at) ? [...content.querySelectorAll('a,button,input,[tabindex]')].indexOf(at) : -1;
      content.replaceChildren(...fresh.childNodes);
      if (where >= 0) [...content.querySelectorAll('a,button,input,[tabindex]')][where]?.focus({ preventScroll: true });
    };
    x.send();
  }, pause);
}

function serviceName() {
  const content = document.getElementById('content');
  return content && decodeURIComponent((content.dataset.service || '').replaceAll('+', ' '));
}

function concerns(d) {
  const name = serviceName();
  if (name === null) return false;
  return !name || d.again || (d.some || []).some((s) => s[0] === name) || (d.gone || []).includes(name);
}

function changed(event) {
  const d = JSON.parse(event.data);
  rev = d.rev;
  say('live');
  if (d.head) head(d.head);
  if (list) list.take(d);
  else if (concerns(d)) refresh();
}

function open() {
  if (source || document.hidden) return;
  source = new EventSource('events?since=' + (list ? list.rev() : rev));
  source.onopen = () => say('live');
  source.addEventListener('change', changed);
  source.onerror = () => {
    say('not live; trying again');
    if (source.readyState !== EventSource.CLOSED) return; // the browser does
    source = null;
    setTimeout(open, 5000);
  };
}

// traffic shows the rates of Services, every other second while the page is visible.
async function traffic() {
  const at = document.getElementById('traffic');
  if (document.hidden || !(list || at)) return;
  try {
    const now = await (await fetch('traffic.json')).json();
    if (list) { list.traffic(now); return; }
    const of = rates(now, serviceName());
    at.textContent = of[0] ? of[0] + ' connections/s' + (of[1] && ', ' + of[1] + '/s') : visible(now.note || 'not known yet');
  } catch { /* the line on top says that nothing answers */ }
}

// A hidden page sends no requests.
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) { open(); return; }
  if (source) source.close();
  source = null;
  say('paused');
});

if (list) list.ready.then(() => { open(); traffic(); });
else { open(); traffic(); }
setInterval(traffic, 2000);
