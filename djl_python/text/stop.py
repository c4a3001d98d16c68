"""Stop sequences: finds where one ends a text, and how many characters may begin one.

Runs in the worker, once per generated token. All stop sequences form one Aho-Corasick automaton: a character costs one
step, whatever their number and length, and the depth of the state is the number of characters to hold back.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import Self


class _Node:
    __slots__ = ("children", "depth", "fail", "longest")

    def __init__(self, depth: int) -> None:
        self.children: dict[str, _Node] = {}
        self.depth = depth
        self.fail: _Node = self
        self.longest = 0  # length of the longest stop sequence that ends here; 0: none


class StopSequences:
    """The compiled stop sequences of a request: an automaton that its sequences share, each with a StopMatcher.

    Compiling takes about a microsecond and 230 bytes for each character.
    """

    def __init__(self, stop_sequences: Sequence[str]) -> None:
        self.root = _Node(0)
        for stop in stop_sequences:
            node = self.root
            for char in stop:
                node = node.children.setdefault(char, _Node(node.depth + 1))
            node.longest = len(stop)
        self._link()

    def _link(self) -> None:
        """Set the failure links, breadth first: from each node to the node of its longest proper suffix."""
        root = self.root
        queue = deque(root.children.values())
        for node in queue:
            node.fail = root
        while queue:
            node = queue.popleft()
            for char, child in node.children.items():
                fail = node.fail
                while fail is not root and char not in fail.children:
                    fail = fail.fail
                child.fail = fail.children.get(char, root)
                child.longest = max(child.longest, child.fail.longest)
                queue.append(child)


class StopMatcher:
    """Finds the stop sequence that is complete first, in a text that comes in pieces.

    How the text is cut into pieces makes no difference. If two end at the same character, the longer one counts.
    """

    def __init__(self, stops: StopSequences) -> None:
        self._root = self._node = stops.root

    @property
    def held(self) -> int:
        """How many of the last characters could be the beginning of a stop sequence."""
        node = self._node
        # A complete stop sequence that was not honoured is only held if it begins a longer one.
        while not node.children and node is not self._root:
            node = node.fail
        return node.depth

    def fork(self) -> Self:
        """A copy with the text so far; it and the original may go on with different pieces."""
        return copy.copy(self)

    def feed(self, text: str, honoured: bool = True) -> tuple[int, int] | None:
        """Match the next piece; (start, end) of a stop sequence relative to the piece, `start` may be negative.

        Without `honoured`, matches are ignored. After a match no more pieces may be fed.
        """
        node, root = self._node, self._root
        for position, char in enumerate(text, 1):
            while char not in node.children and node is not root:
                node = node.fail
            node = node.children.get(char, root)
            if node.longest and honoured:
                return position - node.longest, position
        self._node = node
        return None
