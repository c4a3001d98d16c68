// What the playground keeps in this browser tab's session: it outlives a reload of the page, and is gone with the tab.

const PREFIX = "djl-serving playground ";
/** Of one value; browsers take about five million in all. */
const MOST_CHARACTERS = 1_000_000;

/** What was kept under a name; null: nothing. */
export const kept = (name) => JSON.parse(sessionStorage.getItem(PREFIX + name));

/** Keep a value instead of the one before; false: it is too large, and nothing is kept. */
export function keep(name, value) {
  const text = JSON.stringify(value);
  sessionStorage.removeItem(PREFIX + name);
  if (text.length > MOST_CHARACTERS) return false;
  try {
    sessionStorage.setItem(PREFIX + name, text);
  } catch (error) {
    if (error.name === "QuotaExceededError") return false;
    throw error;
  }
  return true;
}

/** Forget all of it. */
export function forgetKept() {
  const names = Object.keys(sessionStorage).filter((name) => name.startsWith(PREFIX));
  names.forEach((name) => sessionStorage.removeItem(name));
}
