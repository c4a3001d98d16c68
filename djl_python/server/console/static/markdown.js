// Markdown as elements. No text becomes HTML: tags are shown as they are written, and nothing is loaded from elsewhere.
import { lexer } from "marked";
import { html, useMemo } from "./html.js";
import { CopyButton } from "./parts.js";

/** Longer texts stay as they are: a text that arrives is read again with each piece. */
const MOST_CHARACTERS = 100_000;
const MOST_NESTED = 30;
const SCHEMES = ["http:", "https:", "mailto:"];
const INLINE = { strong: "strong", em: "em", del: "del" };

export function Markdown({ text }) {
  const tokens = useMemo(() => read(text), [text]);
  if (!tokens) return html`<p class="text" dir="auto">${text}</p>`;
  return html`<div class="text markdown" dir="auto">${all(tokens, 0)}</div>`;
}

/** The tokens of a text; null where it is not to be read. */
function read(text) {
  if (text.length > MOST_CHARACTERS) return null;
  try {
    return lexer(text, { gfm: true, breaks: true });
  } catch (error) {
    if (error instanceof RangeError) return null; // nested too deeply for the browser's stack
    throw error;
  }
}

const all = (tokens, depth) => tokens.map((token) => element(token, depth + 1));

function element(token, depth) {
  if (depth > MOST_NESTED) return token.raw;
  const inner = () => (token.tokens ? all(token.tokens, depth) : token.text);
  if (token.type in INLINE) return html`<${INLINE[token.type]}>${inner()}<//>`;
  return MAKERS[token.type]?.(token, inner, depth) ?? token.raw;
}

/** By type of token. Others are shown as they are written. */
const MAKERS = {
  space: () => "",
  def: () => "",
  br: () => html`<br />`,
  hr: () => html`<hr />`,
  escape: ({ text }) => text,
  text: (_, inner) => inner(),
  paragraph: (_, inner) => html`<p>${inner()}</p>`,
  blockquote: (_, inner) => html`<blockquote>${inner()}</blockquote>`,
  heading: ({ depth }, inner) => html`<${`h${Math.min(depth + 2, 6)}`}>${inner()}<//>`, // below the page's own
  codespan: ({ text }) => html`<code>${text}</code>`,
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  code: ({ text, lang }) => html`
    <div class="code">
      <div class="bar"><span class="muted">${lang}</span><${CopyButton} text=${text} what="the code" /></div>
      <pre tabindex="0" aria-label="Code"><code>${text}</code></pre>
    </div>`,
  list: ({ ordered, start, items }, _, depth) => {
    const rows = items.map((item) => html`<li>${all(item.tokens, depth + 1)}</li>`);
    return ordered ? html`<ol start=${start}>${rows}</ol>` : html`<ul>${rows}</ul>`;
  },
  table: ({ header, rows }, _, depth) => html`
    <div class="wide-table" tabindex="0" role="region" aria-label="Table"><table>
      <thead><tr>${header.map((cell) => html`<th scope="col">${all(cell.tokens, depth)}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${all(cell.tokens, depth)}</td>`)}</tr>`)}</tbody>
    </table></div>`,
  link: ({ href, raw }, inner) => link(href, inner(), raw),
  image: ({ href, text, raw }) => link(href, text || href, raw),
};

function link(href, content, raw) {
  if (!URL.canParse(href) || !SCHEMES.includes(new URL(href).protocol)) return raw;
  return html`<a href=${href} title=${href} target="_blank" rel="noopener noreferrer">${content}</a>`;
}
