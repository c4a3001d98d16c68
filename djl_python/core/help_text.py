"""How `--help` is laid out. Runs in the processes of commands."""

from __future__ import annotations

import argparse
import textwrap


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Prose is filled to the terminal's width; a paragraph with indented lines, such as examples, stays as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join(
            textwrap.indent(paragraph, indent)
            if any(line.startswith(" ") for line in paragraph.splitlines())
            else textwrap.fill(paragraph, width, initial_indent=indent, subsequent_indent=indent)
            for paragraph in paragraphs
        )
