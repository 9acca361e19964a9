"""Where is SGLang: a release from the package index, the installed one, or somebody's working tree?"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from impl.errors import SubjectError


def cache_dir() -> Path:
    """Where releases are kept: `$KVASSAY_CACHE`, else `$XDG_CACHE_HOME/kvassay`, else `~/.cache/kvassay`."""
    if own := os.environ.get("KVASSAY_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "kvassay"


def fetch(version: str) -> Path:
    """The folder of an unpacked release, brought from the package index on first use (1 to 40 MB, no dependencies).

    pip writes beside the final place and the result is renamed, so a half fetch never counts and two processes may
    fetch at once. Only wheels: nothing of the release is run. Raises SubjectError where the index can't be reached
    or has no such wheel for this Python and platform (from 0.5.12 on there are wheels for CPython on Linux only).
    """
    if not re.fullmatch(r"\d[\w.+!]*", version, re.ASCII):
        raise SubjectError(f"{version!r} is no version of sglang: give one such as 0.5.2")
    target = cache_dir() / "sglang" / version
    if holds_package(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=target.parent))
    except OSError as error:
        raise SubjectError(
            f"can't write to the cache {target.parent} ({error.strerror}): point KVASSAY_CACHE at a folder that can "
            "be written"
        ) from None
    try:
        _pip_install(version, temporary)
        if not holds_package(temporary):
            raise SubjectError(f"the wheel sglang {version} holds no sglang/srt: it is too old or broken")
        try:
            temporary.rename(target)
        except OSError:
            if not holds_package(target):  # else another process was first, and its copy is as good
                raise SubjectError(
                    f"{target} is in the way and holds no release: remove it and try again"
                ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _pip_install(version: str, folder: Path) -> None:
    options = "--no-deps --only-binary :all: --no-compile --no-input --quiet --retries 2 --disable-pip-version-check"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *options.split(),
        "--target",
        str(folder),
        f"sglang=={version}",
    ]
    # A `user = true` in somebody's pip configuration can't be combined with --target.
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PIP_USER": "0"}, check=False
    )
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise SubjectError(
            f"no pip in {sys.prefix}: run '{sys.executable} -m ensurepip', or give a checkout's path"
        )
    if "from versions:" not in done.stderr:
        lines = [
            line for line in done.stderr.splitlines() if line.startswith("ERROR")
        ] or done.stderr.splitlines()
        raise SubjectError(
            f"pip could not fetch sglang {version}: {lines[0] if lines else 'it gave no reason'}"
        )
    if "from versions: none" in done.stderr:
        raise SubjectError(
            f"sglang {version} is not in the cache {cache_dir()} and the package index gives no sglang at all: "
            "check the network and pip's index settings, or give a checkout's path"
        )
    raise SubjectError(
        f"the package index has no wheel of sglang {version} for Python {sys.version_info[0]}.{sys.version_info[1]} "
        f"on {sys.platform}: '{Path(sys.executable).name} -m pip index versions sglang' lists those it has"
    )


def installed() -> Path:
    """The folder that holds the `sglang` installed in this environment, editable installs included."""
    loaded = sys.modules.get("sglang")
    try:
        spec = loaded.__spec__ if loaded else importlib.util.find_spec("sglang")
    except (ImportError, ValueError):
        spec = None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if holds_package(root := Path(place).parent):
            return root
    raise SubjectError(
        "no sglang is installed here: name a release (sglang@0.5.2:paged) or give a checkout's path"
    )


def checkout(path: str | Path) -> Path:
    """The folder to load a working tree from: `path`, or its `python`, whichever contains `sglang/srt`."""
    given = Path(path).expanduser()
    for root in (given, given / "python"):
        if holds_package(root):
            return root.resolve()
    if not given.is_dir():
        raise SubjectError(f"there is no folder {given}: give SGLang's checkout, or its 'python' folder")
    raise SubjectError(f"{given} holds no sglang/srt: give SGLang's checkout, or its 'python' folder")


def holds_package(root: Path) -> bool:
    """Whether a folder is one to load SGLang from."""
    return (root / "sglang" / "srt").is_dir()
