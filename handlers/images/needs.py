"""Packages that images need besides this package's own requirements: Pillow, and sometimes torchvision.

transformers makes no processor that prepares videos too without torchvision. Runs in the front end, for `djl-serving
check`, and in the worker. transformers' source is read, not imported: importing it would import torch.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from djl_python.config import read_json_object
from djl_python.engine.checkpoints.directory import PROCESSOR_FILES

#: How to install Pillow.
INSTALL: Final = "pip install 'djl-serving[images]'"
#: The parameter of a processor's constructor whose value needs torchvision.
_VIDEOS: Final = "video_processor"


def lacks_pillow() -> str:
    """Why no image can be read here; "" where they can be."""
    return "" if importlib.util.find_spec("PIL") else f"they need Pillow: {INSTALL}"


def image_fault(path: Path) -> str:
    """Why the images of the checkpoint in `path` can't be prepared here, as far as its files tell; "": they can,
    or the model takes no images."""
    config = path / "config.json"
    takes = config.is_file() and isinstance(read_json_object(config).get("vision_config"), dict)
    if not takes or not any((path / name).is_file() for name in PROCESSOR_FILES):
        return ""
    if importlib.util.find_spec("PIL") is None:
        return f"{path}: this model takes images, which needs Pillow: {INSTALL}"
    return lacks_torchvision(path)


def lacks_torchvision(path: Path) -> str:
    """What to do where the processor of the checkpoint in `path` needs torchvision and there is none; "" elsewhere,
    and where the files do not tell which class of transformers the processor is."""
    if importlib.util.find_spec("torchvision") is not None:
        return ""
    for name in PROCESSOR_FILES:
        file = path / name
        kind = read_json_object(file).get("processor_class") if file.is_file() else None
        if isinstance(kind, str) and _VIDEOS in _parameters(kind):
            return (
                f"{file}: a {kind} prepares videos too, which needs torchvision, also for images alone: pip install "
                "torchvision, or the line torchvision in the model's requirements.txt"
            )
    return ""


def _parameters(kind: str) -> frozenset[str]:
    """The names of the parameters of a processor's constructor; none where it is another class's."""
    for node in _classes(kind):
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                return frozenset(argument.arg for argument in (*part.args.args, *part.args.kwonlyargs))
    return frozenset()


def _classes(kind: str) -> Iterator[ast.ClassDef]:
    """The classes of this name in transformers' modules of processors."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return
    for module in sorted(Path(spec.origin).parent.glob("models/*/processing_*.py")):
        source = module.read_bytes()
        if f"class {kind}(".encode() in source:
            yield from (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == kind)
