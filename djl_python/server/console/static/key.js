// The API key of this browser tab's session, where the server asks for one: gone when the tab is.
const NAME = "djl-serving api key";

/** The key; "" for none. */
export const storedKey = () => sessionStorage.getItem(NAME) ?? "";

export function storeKey(key) {
  if (key) sessionStorage.setItem(NAME, key);
  else sessionStorage.removeItem(NAME);
}

/** Headers that have the key, if there is one. */
export const keyHeaders = () => (storedKey() ? { authorization: `Bearer ${storedKey()}` } : {});
