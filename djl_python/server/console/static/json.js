// JSON for people to read.

const TOKEN = /"(?:[^"\\]+|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
/** Deeper lines begin there too. */
const MOST_INDENTED = 30;

/**
 * The text of a JSON value with a line for each member, and arrays of numbers, words and such in one line. Only space
 * changes: parsed and written anew, long numbers would have other digits. What is no JSON is returned as it is.
 */
export function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  const tokens = text.match(TOKEN);
  const lines = [""];
  let depth = 0;
  const add = (piece) => (lines[lines.length - 1] += piece);
  const newLine = () => lines.push("  ".repeat(Math.min(depth, MOST_INDENTED)));
  for (let at = 0; at < tokens.length; at++) {
    const token = tokens[at];
    if (token === "{" || token === "[") {
      const end = flatEnd(tokens, at);
      if (end) {
        for (const one of tokens.slice(at, end + 1)) add(one === "," ? ", " : one);
        at = end;
      } else {
        add(token);
        depth++;
        newLine();
      }
    } else if (token === "}" || token === "]") {
      depth--;
      newLine();
      add(token);
    } else {
      add(token === ":" ? ": " : token);
      if (token === ",") newLine();
    }
  }
  return lines.join("\n");
}

/** Where an array ends that has no other and no object in it, or an object that is empty; 0: it is none of those. */
function flatEnd(tokens, at) {
  if (tokens[at] === "{") return tokens[at + 1] === "}" ? at + 1 : 0;
  let end = at + 1;
  while (!"{}[]".includes(tokens[end])) end++;
  return tokens[end] === "]" ? end : 0;
}
