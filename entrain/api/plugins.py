"""Plugins without an installed distribution, such as those that a notebook writes."""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from machine.errors import BadInput
from machine.plugins import forget

GROUPS = {
    "policies",
    "collectives",
    "strategies",
    "simulator_policies",
    "slot_schedulers",
    "congestion_controls",
    "ocs_drivers",
}
"""What can be extended: the entry point groups `entrain.GROUP` (docs/extend.md)."""


def plugin(group: str, name: str, target: str) -> None:
    """Register `target` as `name` in a group, for this process and those that it starts.

    It does what this entry point of an installed distribution does:

        [project.entry-points."entrain.GROUP"]
        NAME = "MODULE:OBJECT"

    `group` is one of `GROUPS`, and `target` is "MODULE:OBJECT". The module must be importable, for example a
    file in the working directory. Registering a name again replaces it. Raises BadInput.
    """
    if group not in GROUPS:
        raise BadInput(f"group {group!r}: use one of {', '.join(sorted(GROUPS))}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise BadInput(f"name {name!r}: must consist of letters, digits, _, . and -")
    module, _, thing = target.partition(":")
    if not thing:
        raise BadInput(f'{target}: give the object, too, as in "{module}:OBJECT"')
    directory = str(Path.cwd())
    for path in (str(_site()), directory):
        if path not in sys.path:
            sys.path.insert(0, path)
    importlib.invalidate_caches()
    if importlib.util.find_spec(module) is None:
        raise BadInput(
            f"{target}: there is no module {module!r} here; write it to {module}.py in {directory}"
        )
    sys.modules.pop(module, None)  # it may have been written anew
    metadata = _site() / f"{group}_{name.replace('-', '_')}-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: plugin-{name}\nVersion: 0\n", encoding="utf-8"
    )
    (metadata / "entry_points.txt").write_text(f"[entrain.{group}]\n{name} = {target}\n", encoding="utf-8")
    others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    ours = [path for path in (str(_site()), directory) if path not in others]
    os.environ["PYTHONPATH"] = os.pathsep.join([*ours, *others])
    forget()
    if (collectives := sys.modules.get("workloads.collectives")) is not None:
        collectives.program_of.cache_clear()


@functools.cache
def _site() -> Path:
    """Return the directory of this process's plugins, which is removed when it ends."""
    place = tempfile.mkdtemp(prefix="entrain-plugins-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Path(place)
