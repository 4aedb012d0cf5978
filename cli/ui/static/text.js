// visible spells out every character that cannot be seen, or that changes the order in which others are shown; text.go does the same.
const hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

export function visible(s) {
  return s.replace(hidden, (c) => '\\u{' + c.codePointAt(0).toString(16) + '}');
}

export const number = new Intl.NumberFormat('en');

export const levels = ['fine', 'note', 'alarm'];
