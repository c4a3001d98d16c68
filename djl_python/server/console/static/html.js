// What every module of the page is written with: Preact's functions, and `html`, which reads templates for it.
import { cloneElement, h, render } from "preact";
import htm from "htm";

export { useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { cloneElement, render };
export const html = htm.bind(h);
