"""Does the SGLang loader give the right thing or one clear line?"""

import json
import os
import subprocess
import sys
import textwrap
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from impl.errors import SubjectError
from impl.sglang import cache_dir, checkout, fetch, installed

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVASSAY_CACHE", str(tmp_path))
    return tmp_path


def index_of(tmp_path, *files):
    """A package index in a folder, so that what pip says does not depend on the network."""
    project = tmp_path / "index" / "sglang"
    project.mkdir(parents=True)
    links = "".join(f'<a href="{name}">{name}</a>' for name in files)
    (project / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return project.parent.as_uri()


@pytest.fixture
def only_index(monkeypatch):
    def use(url):
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", url)
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")

    return use


def assert_one_line(error):
    assert "\n" not in str(error.value)
    assert "Traceback" not in str(error.value)


def test_cache_dir_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("KVASSAY_CACHE", raising=False)
    assert cache_dir() == Path("/x/kvassay")
    monkeypatch.setenv("KVASSAY_CACHE", "/y")
    assert cache_dir() == Path("/y")
    monkeypatch.delenv("KVASSAY_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "kvassay"


def test_fetch_without_an_index_says_to_check_the_network(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SubjectError, match="check the network") as error:
        fetch("0.5.2")
    assert_one_line(error)
    assert list((cache / "sglang").iterdir()) == []


def test_fetch_of_an_unknown_version_says_how_to_list_versions(cache, tmp_path, only_index):
    only_index(index_of(tmp_path, "sglang-0.0.1-py3-none-any.whl"))
    with pytest.raises(SubjectError, match=r"no wheel of sglang 9\.9\.9 .*index versions sglang") as error:
        fetch("9.9.9")
    assert_one_line(error)


def test_fetch_of_a_broken_wheel_gives_pips_reason_in_one_line(cache, tmp_path, only_index):
    url = index_of(tmp_path, "sglang-0.0.1-py3-none-any.whl")
    (tmp_path / "index" / "sglang" / "sglang-0.0.1-py3-none-any.whl").write_bytes(b"no zip")
    only_index(url)
    with pytest.raises(SubjectError, match=r"could not fetch sglang 0\.0\.1: ") as error:
        fetch("0.0.1")
    assert_one_line(error)
    assert list((cache / "sglang").iterdir()) == []


@pytest.mark.parametrize("version", ["", "..", "0.5.2/..", "-r x", "0.5.2 --user", "latest"])
def test_fetch_refuses_what_is_no_version(cache, version):
    with pytest.raises(SubjectError, match="is no version of sglang"):
        fetch(version)


def test_fetch_takes_what_is_in_the_cache_without_asking_pip(cache, monkeypatch):
    (cache / "sglang" / "0.5.2" / "sglang" / "srt").mkdir(parents=True)
    monkeypatch.setattr("impl.sglang_fetch.subprocess.run", None)
    assert fetch("0.5.2") == cache / "sglang" / "0.5.2"


def test_fetch_accepts_that_another_process_was_first(cache, monkeypatch):
    def install(version, folder):
        for root in (folder, cache / "sglang" / version):
            (root / "sglang" / "srt").mkdir(parents=True)

    monkeypatch.setattr("impl.sglang_fetch._pip_install", install)
    assert fetch("0.5.2") == cache / "sglang" / "0.5.2"
    assert [path.name for path in (cache / "sglang").iterdir()] == ["0.5.2"]


def test_fetch_never_counts_a_half_fetch(cache, monkeypatch):
    def install(version, folder):
        (folder / "sglang").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr("impl.sglang_fetch._pip_install", install)
    with pytest.raises(KeyboardInterrupt):
        fetch("0.5.2")
    assert list((cache / "sglang").iterdir()) == []


def test_fetch_into_an_unwritable_cache_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVASSAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(SubjectError, match="KVASSAY_CACHE"):
        fetch("0.5.2")


def test_checkout_takes_the_repository_or_its_python_folder(tmp_path):
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    assert checkout(tmp_path) == checkout(tmp_path / "python") == (tmp_path / "python").resolve()


def test_checkout_of_anything_else_is_refused(tmp_path):
    with pytest.raises(SubjectError, match="holds no sglang/srt"):
        checkout(tmp_path)
    with pytest.raises(SubjectError, match="there is no folder"):
        checkout(tmp_path / "nowhere")


def test_installed_finds_the_package_and_says_when_there_is_none(tmp_path, monkeypatch):
    if "sglang" in sys.modules:
        pytest.skip("another test loaded a release")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder is PathFinder])
    with pytest.raises(SubjectError, match="no sglang is installed"):
        installed()
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").write_text("")
    sys.path.insert(0, str(tmp_path))
    assert installed() == tmp_path


def child(script, *arguments, interpret=True):
    """Runs a script with the loader in a fresh process; what it prints last is JSON."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment.pop("TRITON_INTERPRET", None)
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    text = "import json, sys, torch\nfrom impl.sglang import *\n" + textwrap.dedent(script)
    command = [sys.executable, "-W", "error", "-c", text, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# A tree that imports a package nobody knows, and uses it nowhere: it has to load all the same.
TREE = """
import torch
import a_package_that_nobody_has
from sglang.srt.layers.radix_attention import RadixAttention

class TokenToKVPoolAllocator:
    def __init__(self, size, dtype, device, kvcache, need_sort):
        self.size = size

class PagedTokenToKVPoolAllocator(a_package_that_nobody_has.Base):
    def __init__(self, size, page_size, dtype, device, kvcache):
        self.size = RadixAttention(size)
"""


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree" / "python" / "sglang" / "srt" / "mem_cache"
    folder.mkdir(parents=True)
    (folder / "somewhere_new.py").write_text(TREE)
    return tmp_path / "tree"


def test_a_working_tree_with_new_imports_loads_and_its_gaps_are_named(tree):
    found = child(
        """
        release = load(checkout(sys.argv[1]))
        errors = []
        for attempt in (lambda: load(checkout(sys.argv[1]).parent), lambda: release.cls("swa"),
                        lambda: build(release, "token", size=4, page_size=2),
                        lambda: build(release, "token", size=4, engine="triton")):
            try:
                attempt()
            except SubjectError as error:
                errors.append(str(error))
        print(json.dumps({
            "version": release.version,
            "size": build(release, "token", size=4, need_sort=True).size,
            "again": load(checkout(sys.argv[1])) is release,
            "missing": dict(release.missing),
            "errors": errors,
            "polluted": "a_package_that_nobody_has" in sys.modules,
            "source": describe_source(release, "token"),
        }))
        """,
        tree,
        interpret=False,
    )
    assert found["version"] == "unknown"
    assert (found["size"], found["again"], found["polluted"]) == (4, True, False)
    assert found["source"] == ["sglang/srt/mem_cache/somewhere_new.py"]
    assert "stand-ins for" in found["missing"]["paged"]
    assert "has no class SWATokenToKVPoolAllocator" in found["missing"]["swa"]
    one_only, no_swa, no_pages, no_engine = found["errors"]
    assert "can hold one only" in one_only
    assert no_swa == found["missing"]["swa"]
    assert "has no pages" in no_pages
    assert "has no extend" in no_engine


ROUND_TRIP = """
release = load(fetch(sys.argv[1]))

class Pool:
    def get_cpu_copy(self, indices):
        return indices.tolist()
    def load_cpu_copy(self, copy, indices):
        self.loaded = (copy, indices.tolist())

def tensor(*values):
    return torch.tensor(values, dtype=torch.int64)

def extend(allocator, form, prefix, seq, last):
    count = int((seq - prefix).sum())
    if form == "device":
        return allocator.alloc_extend(prefix, seq, last, count)
    return allocator.alloc_extend(prefix, prefix.clone(), seq, seq.clone(), last, count)

def decode(allocator, form, seq, last):
    return allocator.alloc_decode(seq, last) if form == "device" else allocator.alloc_decode(seq, seq.clone(), last)

def available(allocator, part):
    return allocator.full_available_size() if part == "swa" else allocator.available_size()

results = {}
for part, engine in [("token", "auto"), ("swa", "auto")] + [
    (part, engine) for part in PARTS for engine in release.engines(part)
]:
    pages = release.form(part) is not None and engine != "auto"
    allocator = build(release, part, size=8, size_swa=8, page_size=2 if pages else 1, need_sort=False,
                      debug=True, engine=engine, kvcache=Pool(), kvcache_swa=Pool())
    if pages:
        form = release.form(part)
        slots = extend(allocator, form, tensor(0, 0), tensor(3, 2), tensor(-1, -1))
        more = decode(allocator, form, tensor(4), slots[2:3].long())
        slots = torch.cat((slots, more))
    else:
        slots = allocator.alloc(5)
    left = available(allocator, part)
    copy = allocator.get_cpu_copy(slots) if part != "swa" else None
    allocator.free(slots)
    results[f"{part} {engine}"] = [slots.tolist(), str(slots.dtype), left, available(allocator, part), copy]
    assert describe(release, part, engine).count(release.version) and describe_source(release, part)
print(json.dumps({"version": release.version, "missing": dict(release.missing), "results": results}))
"""


def expected(*engines):
    results = {}
    for name in ("token auto", "swa auto", *engines):
        dtype = "torch.int32" if name.startswith("ascend") else "torch.int64"
        paged = not name.endswith("auto")
        slots = [2, 3, 4, 6, 7, 5] if paged else [1, 2, 3, 4, 5]
        copy = None if name.startswith("swa") else slots
        results[name] = [slots, dtype, 2 if paged else 3, 8, copy]
    return results


@pytest.mark.network
@pytest.mark.parametrize(
    ("version", "engines"),
    [
        ("0.4.10.post2", ("paged triton", "paged emulator", "ascend torch")),
        ("0.5.2", ("paged triton", "paged emulator", "ascend torch")),
        (
            "0.5.23",
            (
                *("paged triton", "paged emulator", "paged torch", "ascend torch"),
                *("swa triton", "swa emulator", "swa torch"),
            ),
        ),
    ],
)
def test_every_part_of_a_release_makes_a_round_trip(version, engines):
    found = child(ROUND_TRIP, version)
    assert (found["version"], found["missing"]) == (version, {})
    assert found["results"] == expected(*engines)


@pytest.mark.network
def test_without_the_interpreter_the_emulator_is_taken_and_triton_refused_with_what_to_do():
    message = child(
        """
        release = load(fetch("0.5.2"))
        allocator = build(release, "paged", size=8, page_size=2)
        one = torch.ones(1, dtype=torch.int64)
        assert allocator.alloc_extend(one - 1, one, one - 2, 1).tolist() == [2]
        try:
            build(release, "paged", size=8, page_size=2, engine="triton")
        except SubjectError as error:
            print(json.dumps(str(error)))
        """,
        interpret=False,
    )
    assert "TRITON_INTERPRET=1" in message


@pytest.mark.network
@pytest.mark.parametrize("version", ["0.4.10.post2", "0.5.2", "0.5.23"])
def test_what_callers_read_is_asked_of_every_part(version):
    found = child(
        """
        import types

        from impl.constructor import attributes_of
        from impl.sglang_subject import release_subject
        from properties.cases import typical_config

        results = {}
        for part in PARTS:
            subject = release_subject(part, sys.argv[1], part, "", "", "cpu")
            config = typical_config(subject.space, "contract")
            names = subject.traits(config).attributes
            allocator = subject.make(config).allocator
            has = {name: getattr(allocator, name) for name in names}
            said = [attributes_of(allocator, config, names, "cpu")]
            for gone in sorted(names):
                rest = types.SimpleNamespace(**{name: value for name, value in has.items() if name != gone})
                said.append(attributes_of(rest, config, names, "cpu"))
            results[part] = [sorted(names), said]
        print(json.dumps(results))
        """,
        version,
    )
    assert set(found) == {"token", "paged", "ascend", "swa"}
    for names, said in found.values():
        assert {"page_size", "dtype", "device"} < set(names)
        assert said == ["", *(f"{name} is not there" for name in names)]


@pytest.mark.network
@pytest.mark.parametrize("version", ["0.4.10.post2", "0.5.2", "0.5.23"])
def test_a_kv_cache_without_the_mapping_of_its_windows_is_seen(version):
    sound, lost, other = child(
        """
        from impl.sglang_subject import release_subject
        from oracle.ops import Config

        subject = release_subject("swa", sys.argv[1], "swa", "", "", "cpu")
        session = subject.open(Config("swa", 4, 1, swa_pages=3, data=True))
        said = [session.begin().mismapped]
        cache = session.allocator.get_kvcache()
        for mapping in (None, session.allocator.full_to_swa_index_mapping.clone()):
            cache.full_to_swa_index_mapping = mapping
            seen = session.begin()
            said.append(seen.mismapped or seen.outcome)
        print(json.dumps(said))
        """,
        version,
    )
    assert sound == ""
    assert other == "the KV cache has another mapping than the allocator"
    assert lost in (other, "raised")  # later releases ask the cache where a slot is
