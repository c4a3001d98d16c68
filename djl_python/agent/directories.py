"""Brings what a model's configuration names to this machine, and has the configuration name it here.

Runs in the agent's event loop; files are read and written in threads. A model that came from a URL is fetched from
there again, with this machine's credentials and into its cache. A directory of the front end's machine is used where it
is if it has the same files here, as on a shared file system: same sizes, same times. Else its files travel over the
agent's connection, into the cache, where they are found again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ..config import ModelConfig
from ..config.environment import cache_directory
from ..config.sources import cache_root
from ..core.errors import ModelLoadError
from ..ipc.protocol import Status
from ..ipc.remote_protocol import FilePart, FileRequest, Listing
from ..sources import fetch_model, stays_here
from .staging import remove_left, staging_in

#: Bytes of a file that are asked for at a time.
PART_BYTES: Final = 8 << 20
_FOLDER: Final = "travelled"


async def localized(
    config: ModelConfig,
    listings: Sequence[Listing],
    send: Callable[[FileRequest], None],
    parts: Callable[[], Awaitable[FilePart]],
    report: Callable[[Status], None],
) -> ModelConfig:
    """The configuration with this machine's paths, once everything is there.

    Args:
        config: the front end's.
        listings: the local directories that it names.
        send: asks for a part of a file.
        parts: waits for the next part; they come in the order in which they were asked for.
        report: gets the progress.

    Raises:
        ModelLoadError: a file can't be read there or written here.
        ConfigError: the model can't be fetched from its URL.
    """
    cache_dir = cache_directory()
    root = cache_root(Path(cache_dir) if cache_dir else None)
    here: dict[str, str] = {}
    for number, listing in enumerate(listings):
        if await asyncio.to_thread(_is_same, Path(listing.path), listing):
            here[listing.path] = listing.path
            continue
        made = root / _FOLDER / _key(listing)
        if not made.is_dir():
            await _travel(listing, number, made, send, parts, report)
        here[listing.path] = str(made)
    path = config.path
    if path and not stays_here(config.url):
        path = str(await asyncio.to_thread(fetch_model, config.url, Path(cache_dir) if cache_dir else None))
    elif path:
        path = here[path]
    option = config.option
    if option.model_id and (model_id := _moved(option.model_id, here)) is not None:
        option = msgspec.structs.replace(option, model_id=model_id)
    adapters = {name: _moved(source, here) or source for name, source in config.adapters.items()}
    properties = config.properties
    if option.model_id != config.option.model_id:
        properties = {**properties, "model_id": option.model_id}
    return msgspec.structs.replace(
        config, path=path, option=option, adapters=adapters, properties=properties, cache_dir=cache_dir
    )


def _moved(path: str, here: dict[str, str]) -> str | None:
    """This machine's copy of a path of the front end's; None: no directory that was copied has it."""
    for there, moved in here.items():
        folder, rest = there.rstrip("/"), path.removeprefix(there.rstrip("/"))
        if path == there or (path.startswith(f"{folder}/") and ".." not in rest.split("/")):
            return moved + rest
    return None


def _is_same(directory: Path, listing: Listing) -> bool:
    """Whether a directory of this machine has the listed files."""
    for name, size, changed_ns in listing.files:
        try:
            status = os.stat(directory / name)
        except OSError:
            return False
        if (status.st_size, status.st_mtime_ns) != (size, changed_ns):
            return False
    return True


def _key(listing: Listing) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(listing)).hexdigest()[:32]


async def _travel(
    listing: Listing,
    number: int,
    made: Path,
    send: Callable[[FileRequest], None],
    parts: Callable[[], Awaitable[FilePart]],
    report: Callable[[Status], None],
) -> None:
    """Fetch the files of a listing. `made` appears once all files are complete."""
    total, done = sum(size for _, size, _ in listing.files), 0
    await asyncio.to_thread(remove_left, made.parent)
    with contextlib.ExitStack() as stack:
        try:
            staging = stack.enter_context(staging_in(made.parent))
        except OSError as exc:
            raise ModelLoadError(f"{exc.filename}: {exc.strerror}; DJL_CACHE_DIR says where downloads go") from exc
        try:
            for index, (name, size, changed_ns) in enumerate(listing.files):
                file = staging / name
                if not file.resolve().is_relative_to(staging.resolve()):
                    raise ModelLoadError(f"{listing.path}: {name} would lie outside the directory")
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as target:
                    for offset in range(0, size, PART_BYTES):
                        report(Status("loading", f"fetching {Path(listing.path).name}", done, total, current=name))
                        send(FileRequest(number, index, offset, min(PART_BYTES, size - offset)))
                        part = await parts()
                        if part.error or len(part.data) != min(PART_BYTES, size - offset):
                            raise ModelLoadError(f"{listing.path}/{name}: {part.error or 'it has become shorter'}")
                        await asyncio.to_thread(target.write, part.data)
                        done += len(part.data)
                os.utime(file, ns=(changed_ns, changed_ns))
            staging.chmod(0o755)
            try:
                staging.rename(made)
            except OSError:
                if not made.is_dir():  # else another agent of this machine was first
                    raise
        except OSError as exc:
            raise ModelLoadError(f"{made}: {exc.strerror}") from exc
