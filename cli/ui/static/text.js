// visible spells out every character that cannot be seen, or that changes the order in which others are shown; text.go does the same.
const hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

export function visible(s) {
  return s.replace(hidden, (c) => '\\u{' + c.codePointAt(0).toString(16) + '}');
}

export const number = new Intl.NumberFormat('en');

export const levels = ['fine', 'note', 'alarm'];

// rates writes what a Service carries per second: connections, and bytes where they are counted.
const short = new Intl.NumberFormat('en', { maximumSignificantDigits: 2 });
const rounded = (n) => (n < 9.95 ? short.format(n) : number.format(Math.round(n)));

function bytes(n) {
  let unit = 0;
  for (; n >= 999.5 && unit < 4; unit++) n /= 1000;
  return rounded(n) + ' ' + ['B', 'kB', 'MB', 'GB', 'TB'][unit];
}

export function rates(now, name) {
  const of = (now.services || {})[name] || (now.known && [0, 0]);
  return of ? [rounded(of[0]), now.counted ? bytes(of[1]) : ''] : ['', ''];
}
