// Asking again and again, as long as somebody looks.
import { useEffect, useRef } from "./html.js";

/**
 * Call the asynchronous `ask` now and `periodMs` after each answer, while the component and the page are visible.
 * `keys`: start over when one of them changes.
 */
export function usePolling(ask, periodMs, keys = []) {
  const latest = useRef(null);
  latest.current = { ask, periodMs };
  useEffect(() => {
    let timer = 0;
    let ended = false;
    const turn = async () => {
      clearTimeout(timer);
      if (!document.hidden) await latest.current.ask();
      if (!ended && !document.hidden) timer = setTimeout(turn, latest.current.periodMs);
    };
    const onVisibility = () => void (document.hidden ? clearTimeout(timer) : turn());
    document.addEventListener("visibilitychange", onVisibility);
    turn();
    return () => {
      ended = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisibility);
    };
  }, keys);
}
