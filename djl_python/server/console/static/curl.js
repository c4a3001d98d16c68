// A request as a command for the shell.
import { ROOT } from "./api.js";
import { storedKey } from "./key.js";

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/**
 * The command that sends a POST request. The body is `data`, a text, or the `file` of this name: as it is, or as the
 * part `part` of a form. `output`: the file that gets the answer. A key stands in the variable API_KEY.
 */
export function curl(path, { type, accept = "", data, file, part = "", streams = false, output = "" }) {
  const lines = [`curl ${streams ? "-N " : ""}${quoted(new URL(path.slice(1), ROOT).href)}`];
  if (storedKey()) lines.push('-H "Authorization: Bearer $API_KEY"');
  if (!part) lines.push(`-H ${quoted(`Content-Type: ${type}`)}`);
  if (accept) lines.push(`-H ${quoted(`Accept: ${accept}`)}`);
  if (file === undefined) lines.push(`--data-raw ${quoted(data)}`);
  else lines.push(part ? `-F ${quoted(`${part}=@"${file.replace(/["\\]/g, "\\$&")}"`)}` : `--data-binary ${quoted(`@${file}`)}`);
  if (output) lines.push(`-o ${quoted(output)}`);
  return lines.join(" \\\n    ");
}
