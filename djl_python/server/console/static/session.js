// What has been said in one mode, chat or completion, and what is said next.
import { Composer, Entry, Made, ToolResults } from "./conversation.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { keep, kept } from "./kept.js";
import { Options } from "./options.js";
import { PATHS, Parameters, fieldsOf, readValues } from "./parameters.js";
import { Field, Problem, label, visible } from "./parts.js";
import { bodyOf, jsonOf } from "./request.js";
import { Snippets, snippetsOf } from "./snippets.js";
import { Answer, answerTo } from "./stream.js";

const EMPTY = { system: "", prompt: "", texts: {}, tools: "", schema: "", stream: true, markdown: true, showsTokens: false, alternatives: 5 };

/** `defaults`: by name, the values of parameters that a request leaves open. */
export function Session({ state, model, mode, openapi, defaults }) {
  const before = useMemo(() => restored(mode), [mode]);
  const [form, setForm] = useState(before.form);
  const [entries, setEntries] = useState(before.entries);
  const [images, setImages] = useState(before.images);
  const { answer, problem, running, pieces, ask, stop, forget } = useAnswers(before.answer);
  const end = useFollowing(entries.length > 0 || answer !== null, [pieces, entries, running]);
  const fields = useMemo(() => fieldsOf(openapi, mode), [openapi, mode]);
  const change = (more) => setForm((before) => ({ ...before, ...more }));

  const { values, problems } = readValues(fields, form.texts);
  const faults = { ...problems, ...jsonOf(form).problems };
  const wrong = Object.keys(faults);
  const draft = form.prompt || images.length > 0 ? [{ role: "user", text: form.prompt, images }] : [];
  const query = queryOf(state, model);
  const path = PATHS[mode] + (query.model_version ? `?${new URLSearchParams(query)}` : "");
  const body = (said) => bodyOf(mode, model, form, values, said);

  const send = async (said) => {
    if (wrong.length > 0) return;
    if (mode === "completion") return void ask(visible(label(model)), path, body([]));
    if (said.length === 0 || said.at(-1).role === "assistant") return;
    setEntries(said);
    setImages([]);
    change({ prompt: "" });
    const made = await ask(visible(label(model)), path, body(said));
    const [first] = made.choices;
    if (first) setEntries([...said, { role: "assistant", text: first.text, calls: first.calls, made }]);
    else takeBack(said);
  };
  /** A message without any answer is no part of the conversation: it is the draft again. */
  const takeBack = (said) => {
    const unsent = said.slice(entries.length).filter(({ role }) => role === "user");
    const texts = unsent.map(({ text }) => text);
    setEntries(entries);
    setImages((added) => [...unsent.flatMap(({ images }) => images), ...added]);
    setForm((before) => ({ ...before, prompt: [...texts, before.prompt].filter(Boolean).join("\n") }));
  };
  const last = entries.at(-1);
  const question = last?.role === "assistant" ? entries.slice(0, -1) : entries;
  // What is shown elsewhere is the request to come, or where nothing is written yet, the last one.
  const shown = draft.length > 0 ? [...entries, ...draft] : question;
  const isKept = entries.some(({ made }) => made && made === answer); // then it is among the entries
  const tooLarge = useKeeping(mode, running, { form, images }, { entries, answer: isKept ? null : answer });
  const isSeen = answer && !isKept && (running || answer.choices.length > 0);
  const idle = entries.length > 0 && !running;
  const reads = mode === "chat" && form.markdown && form.schema.trim() === ""; // JSON is no Markdown
  const shows = form.showsTokens ? "tokens" : reads ? "markdown" : "text";
  const composer = html`
    <${Composer} key="composer" mode=${mode} model=${model} form=${form} change=${change} images=${images} setImages=${setImages}
      running=${running} wrong=${wrong} onSend=${() => send([...entries, ...draft])} onStop=${stop}
      onAgain=${idle ? () => send(question) : null} onClear=${idle ? () => (setEntries([]), forget()) : null} />`;
  return html`
    <div class="playground">
      <section class="conversation" aria-label="Conversation">
        ${mode === "completion"
          ? composer
          : html`<${Field} key="system" label="System prompt" wide>
              <textarea name="system" dir="auto" rows="2" value=${form.system}
                onInput=${(event) => change({ system: event.target.value })}></textarea>
            <//>`}
        <div class="said" aria-live="polite" aria-busy=${running} data-running=${running}>
          ${entries.map((entry, at) => html`<${Entry} key=${at} entry=${entry} shows=${shows} />`)}
          ${isSeen && html`<${Made} answer=${answer} shows=${shows} />`}
        </div>
        <${Problem}>${problem}<//>
        ${last?.calls?.length > 0 && !running &&
        html`<${ToolResults} calls=${last.calls} onSend=${(results) => send([...entries, ...results])} />`}
        ${tooLarge && html`<p class="note" role="note">This is too large to be kept when the page is loaded again.</p>`}
        <div class="end" ref=${end}></div>
        ${mode === "chat" && composer}
      </section>
      <section class="card options" aria-label="Parameters">
        <${Options} mode=${mode} form=${form} change=${change} problems=${faults} />
        <${Parameters} fields=${fields} texts=${form.texts} problems=${problems} defaults=${defaults} onChange=${(texts) => change({ texts })} />
      </section>
    </div>
    <${Snippets} summary="The same request as curl, Python or LMI" snippets=${snippetsOf(openapi, mode, body(shown), { several: state.several, model, query })} />`;
}

/** What was there when the page was left, else the beginning. */
function restored(mode) {
  const { form = EMPTY, images = [] } = kept(`${mode} draft`) ?? {};
  const { entries = [], answer = null } = kept(mode) ?? {};
  const said = entries.map((entry) => (entry.made ? { ...entry, made: Answer.of(entry.made) } : entry));
  return { form, images, entries: said, answer: Answer.of(answer) };
}

/** Keeps both for `restored`; while an answer comes, what was there before it. Returns whether it is too large for that. */
function useKeeping(mode, running, draft, said) {
  const [draftFits, setDraftFits] = useState(true);
  const [saidFits, setSaidFits] = useState(true);
  // Before the next frame: the page may be left by then.
  useLayoutEffect(() => {
    if (!running) setDraftFits(keep(`${mode} draft`, draft));
  }, [running, draft.form, draft.images]);
  useLayoutEffect(() => {
    if (!running) setSaidFits(keep(mode, said));
  }, [running, said.entries, said.answer]);
  return !(draftFits && saidFits);
}

/** OpenAI's bodies name a model, not its version. */
function queryOf(state, { name, version }) {
  const versions = state.models.filter((one) => one.name === name);
  return version && versions.length > 1 ? { model_version: version } : {};
}

/** Keeps the element that is returned on the screen as what is before it changes, unless one has scrolled away. */
function useFollowing(active, changes) {
  const end = useRef(null);
  const near = useRef(true);
  useEffect(() => {
    const seen = new IntersectionObserver(([{ isIntersecting }]) => (near.current = isIntersecting), {
      rootMargin: "0px 0px 200px 0px",
    });
    seen.observe(end.current);
    return () => seen.disconnect();
  }, []);
  useEffect(() => {
    if (near.current && active) end.current.scrollIntoView({ block: "nearest" });
  }, changes);
  return end;
}

/** One answer at a time. `pieces` counts what has been drawn of it. */
function useAnswers(first) {
  const [answer, setAnswer] = useState(first);
  const [problem, setProblem] = useState("");
  const [running, setRunning] = useState(false);
  const [pieces, setPieces] = useState(0);
  const controller = useRef(null);
  useEffect(() => () => controller.current?.abort(), []);
  const ask = async (by, path, body) => {
    const made = new Answer(by, body.stream === true);
    let drawn = 0;
    controller.current = new AbortController();
    setAnswer(made);
    setProblem("");
    setRunning(true);
    try {
      for await (const chunk of answerTo(path, body, controller.current.signal)) {
        made.add(chunk);
        drawn ||= requestAnimationFrame(() => ((drawn = 0), setPieces((before) => before + 1)));
      }
    } catch (error) {
      if (error.name === "AbortError") made.stopped = true;
      else setProblem(error.message);
    } finally {
      setRunning(false);
    }
    return made;
  };
  const forget = () => {
    setAnswer(null);
    setProblem("");
  };
  return { answer, problem, running, pieces, ask, forget, stop: () => controller.current?.abort() };
}
