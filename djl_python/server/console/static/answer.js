// An answer as it comes: its text, its reasoning and tool calls, and its tokens with what else was likely.
import { html, useMemo, useState } from "./html.js";
import { Markdown } from "./markdown.js";
import { visible } from "./parts.js";

/** Why an answer has ended, where that is not its own end. */
const ENDS = {
  length: "Cut off: max_tokens, or what the model has room for, is reached (length).",
  content_filter: "Cut off by a filter (content_filter).",
};
/** Tokens that are drawn together. */
const RUN = 100;
const STEPS = [0.9, 0.6, 0.3, 0.1]; // probabilities at which a token gets another colour

/** `shows`: "tokens", "markdown" or "text". */
export function Choice({ choice, number, shows }) {
  return html`
    <div class="choice">
      ${number !== null && html`<p class="muted">Answer ${number}</p>`}
      ${choice.reasoning && html`<details open><summary>Reasoning</summary><p class="text" dir="auto">${choice.reasoning}</p></details>`}
      ${shows === "tokens" && choice.tokens.length > 0
        ? html`<${Tokens} tokens=${choice.tokens} />`
        : choice.text && html`<${shows === "markdown" ? Markdown : Plain} text=${choice.text} />`}
      ${choice.calls.map(
        (call) => html`<pre class="call" tabindex="0" aria-label="Tool call"><code>${call.name}(${call.arguments})</code></pre>`,
      )}
      ${choice.finish in ENDS && html`<p class="muted">${ENDS[choice.finish]}</p>`}
    </div>`;
}

const Plain = ({ text }) => html`<p class="text" dir="auto">${text}</p>`;

/** Spaces and line breaks as something that can be seen. */
const marked = (text) => visible(text).replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣") || "(nothing)";
const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
const step = (logprob) => STEPS.filter((least) => Math.exp(logprob ?? 0) < least).length;

/** The tokens side by side. One of them is chosen, with the mouse or the arrow keys, and its alternatives are listed. */
function Tokens({ tokens }) {
  const [chosen, setChosen] = useState(0);
  const at = Math.min(chosen, tokens.length - 1);
  const move = (event) => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to === undefined || !(to in tokens)) return;
    event.preventDefault();
    setChosen(to);
    event.currentTarget.children[to].focus();
  };
  return html`
    <div class="tokens text" dir="auto" role="listbox" aria-orientation="horizontal" aria-label="Tokens" onKeyDown=${move}>
      ${Array.from({ length: Math.ceil(tokens.length / RUN) }, (_, run) => {
        const [from, to] = [run * RUN, Math.min((run + 1) * RUN, tokens.length)];
        const here = from <= at && at < to ? at : null;
        return html`<${Run} key=${run} tokens=${tokens} from=${from} to=${to} chosen=${here} choose=${setChosen} />`;
      })}
    </div>
    <p class="muted key">Underlined by probability: ${STEPS.map(
      (least, at) => html`<span class=${`low-${at + 1}`}>below ${100 * least} %</span> `,
    )}</p>
    <${Alternatives} token=${tokens[at]} />`;
}

/** Some of the tokens, which are drawn again only when more come, or another one of them is chosen. */
const Run = ({ tokens, from, to, chosen, choose }) =>
  useMemo(
    () =>
      tokens.slice(from, to).map(({ text, logprob }, number) => {
        const at = from + number;
        return html`<span role="option" key=${at} class=${`token low-${step(logprob)}${text.includes("\n") ? " breaks" : ""}`}
          aria-selected=${at === chosen} tabindex=${at === chosen ? 0 : -1} onClick=${() => choose(at)}
          onFocus=${() => choose(at)}>${text === "" ? "∅" : text}</span>`;
      }),
    [tokens, from, to, chosen],
  );

function Alternatives({ token }) {
  const { text, logprob, alternatives } = token;
  const others = alternatives.filter((one) => one.text !== text);
  const rows = [{ text, logprob, chosen: true }, ...others].sort((one, other) => other.logprob - one.logprob);
  return html`
    <div class="wide-table"><table class="alternatives">
      <caption>The token and its alternatives</caption>
      <thead><tr><th scope="col">Token</th><th scope="col">Probability</th><th scope="col">log</th></tr></thead>
      <tbody>
        ${rows.map(
          (row) => html`<tr key=${row.text} class=${row.chosen ? "chosen" : ""}>
            <th scope="row"><code>${marked(row.text)}</code>${row.chosen && html`<span class="unseen">, chosen</span>`}</th>
            <td>${row.logprob == null ? "–" : html`<meter min="0" max="1" value=${Math.exp(row.logprob)}></meter>
              ${percent(row.logprob)}`}</td>
            <td>${row.logprob == null ? "–" : row.logprob.toFixed(3).replace(/^-0\.000$/, "0.000")}</td>
          </tr>`,
        )}
      </tbody>
    </table></div>`;
}
