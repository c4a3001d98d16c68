"""The processor, the kernels for it, and its threads. Runs in `djl-serving doctor`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..core.cpu_limit import available_cpus
from ..engine.native.api import PROCESSORS, compiler, features_here, lacking, place_of, processors_here, what_is_missing
from .finding import Finding, Level

_SECTION: Final = "processor"
_CPUINFO: Final = Path("/proc/cpuinfo")
_GOVERNOR: Final = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_NODES: Final = Path("/sys/devices/system/node")


def processor() -> Iterator[Finding]:
    """The processor's name, and those of its features that kernels use."""
    text = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    yield Finding(_SECTION, "name", named[1] if named else "not known")
    used = features_here() & set().union(*(processor.features for processor in PROCESSORS))
    yield Finding(_SECTION, "features", " ".join(sorted(used)) or "none that kernels use")


def kernels() -> Iterator[Finding]:
    """The kernels that are available, and the ones that models run on."""
    kinds = processors_here()
    if not kinds:
        yield Finding(
            *(_SECTION, "kernels", f"none: {lacking()}", Level.HINT),
            "models run on torch here, which takes longer: a processor with AVX2, or a 64-bit ARM, has native kernels",
        )
        return
    best = kinds[0]
    place = place_of(best)
    others = [kind.name for kind in kinds[1:] if place_of(kind)]
    beside = f"; also there: {', '.join(others)}" if others else ""
    if place:
        yield Finding(_SECTION, "kernels", f"{best.name}, {place}{beside}")
    elif compiler():
        yield Finding(_SECTION, "kernels", f"{best.name}, to be built at the first start (half a minute){beside}")
    else:
        yield Finding(
            *(_SECTION, "kernels", f"none for {best.name}, and no C++ compiler to build them{beside}", Level.HINT),
            "install a wheel that brings kernels, or a compiler (apt install g++): without, models run on torch",
        )
    if lacks := PROCESSORS[0].features - features_here():
        yield Finding(_SECTION, "faster kernels", f"{PROCESSORS[0].name}: would need {' '.join(sorted(lacks))}")


def building() -> Iterator[Finding]:
    """What an installation from the sources (`pip install .`) would need; wheels with kernels need nothing."""
    if not PROCESSORS:
        return  # there are no kernels to compile
    missing = what_is_missing()
    if missing:
        advice = "apt install g++ (libc6-dev comes with it)"
        yield Finding(_SECTION, "pip install .", f"would make no kernels; missing: {missing}; {advice}")
    else:
        yield Finding(
            *(_SECTION, "pip install ."),
            f"can compile this processor's kernels, in half a minute of processor time, of which pip shows nothing "
            f"without -v ({compiler()}); DJL_SERVING_KERNELS=all compiles those of all {len(PROCESSORS)} kinds",
        )


def threads() -> Iterator[Finding]:
    """How many processors an engine uses, and what slows them down."""
    usable, whole = available_cpus(), os.cpu_count() or 1
    limited = f" of {whole}: the rest is not this container's or process's" if usable < whole else ""
    yield Finding(_SECTION, "threads", f"{usable}{limited} (option.threads sets fewer)")
    load = os.getloadavg()[0]
    if load > usable / 2:
        yield Finding(
            *(_SECTION, "load", f"{load:.1f} in the last minute, for {usable} processors", Level.HINT),
            "other processes compete for the processors: models run slower meanwhile, and measurements mean little",
        )
    if _GOVERNOR.exists() and (governor := _GOVERNOR.read_text().strip()) == "powersave":
        yield Finding(
            *(_SECTION, "frequency", governor, Level.HINT),
            "cpupower frequency-set -g performance: the clock is then up before each step",
        )
    if _HUGE_PAGES.exists() and "[never]" in _HUGE_PAGES.read_text():
        yield Finding(
            *(_SECTION, "huge pages", "never", Level.HINT),
            f"echo madvise >{_HUGE_PAGES}: weights then lie in large pages, which are found faster",
        )
    nodes = len(list(_NODES.glob("node[0-9]*"))) if _NODES.exists() else 1
    if nodes > 1:
        yield Finding(
            *(_SECTION, "memory nodes", str(nodes), Level.HINT),
            "a server for each node (numactl --cpunodebind=N --membind=N djl-serving ...) reads memory that is near",
        )
