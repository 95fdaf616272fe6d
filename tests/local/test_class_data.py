"""The archive of Kafka's classes: made by the first start of an installation, mapped by those that follow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from overlay.local import Broker, class_data, start
from overlay.local.jars import fetch_jars
from overlay.local.java import Java
from overlay.local.locks import try_lock
from tests.support.waiting import wait_until

MAPS = Path("/proc/self/maps")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The list of a start, whose last line is not written to its end yet, and where the archive will be."""
    class_list = tmp_path / "classes.lst"
    class_list.write_text("java/lang/Object id: 0\nkafka/Kafka id: 1\nkafka/Ka")
    return class_list, tmp_path / "classes-1.jsa"


def write_java(folder: Path, text: str) -> list[str]:
    """Return a command that stands for Java: a Python program, with its arguments in `arguments`."""
    program = folder / "java.py"
    program.write_text(f"import sys\narguments = dict(a.partition('=')[::2] for a in sys.argv[1:])\n{text}\n")
    return [sys.executable, str(program)]


COPY = """
archive = open(arguments["-XX:SharedArchiveFile"], "w")
archive.write(open(arguments["-XX:SharedClassListFile"]).read())
"""


def test_made_once_of_whole_lines(files: tuple[Path, Path], tmp_path: Path) -> None:
    class_list, archive = files
    listed, seen = class_list.read_text(), tmp_path / "as the broker has it"
    os.link(class_list, seen)
    assert class_data.build_list_flags(archive, class_list) == (f"-XX:DumpLoadedClassList={class_list}",)
    class_data.make_archive(write_java(tmp_path, COPY), {}, class_list, archive)
    assert archive.read_text() == "java/lang/Object id: 0\nkafka/Kafka id: 1\n"
    assert class_data.build_flags(archive) == (f"-XX:SharedArchiveFile={archive}",)
    assert class_data.build_list_flags(archive, class_list) == ()
    assert not class_list.exists()
    # the broker goes on writing to it
    assert seen.read_text() == listed
    assert sorted(each.name for each in tmp_path.glob("classes*")) == ["classes-1.jsa", "classes-1.lock"]


def test_a_java_that_cannot_is_asked_once(files: tuple[Path, Path], tmp_path: Path) -> None:
    class_list, archive = files
    class_data.make_archive(write_java(tmp_path, "sys.exit(1)"), {}, class_list, archive)
    assert archive.read_bytes() == b""
    assert class_data.build_flags(archive) == class_data.build_list_flags(archive, class_list) == ()


@pytest.mark.parametrize("how", ["time.sleep(60)", "os.kill(os.getpid(), 9)"])
def test_a_java_that_does_not_come_to_its_end_is_asked_again(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    class_list, archive = files
    monkeypatch.setattr(class_data, "_MAKE_S", 0.3)
    class_data.make_archive(write_java(tmp_path, f"import os, time\n{COPY}\n{how}"), {}, class_list, archive)
    assert class_data.build_list_flags(archive, class_list) == (f"-XX:DumpLoadedClassList={class_list}",)
    assert [each.name for each in tmp_path.glob("classes*")] == ["classes-1.lock"]


def test_another_process_that_makes_it_is_not_waited_for(files: tuple[Path, Path], tmp_path: Path) -> None:
    class_list, archive = files
    lock = try_lock(archive.with_suffix(".lock"))
    assert lock is not None
    class_data.make_archive(write_java(tmp_path, COPY), {}, class_list, archive)
    os.close(lock)
    assert not archive.exists()
    assert class_data.build_flags(archive) == ()


def test_a_cache_for_reading_only(files: tuple[Path, Path], tmp_path: Path) -> None:
    class_data.make_archive(write_java(tmp_path, COPY), {}, files[0], tmp_path / "missing" / "classes.jsa")


def test_other_jars_have_another_archive(tmp_path: Path) -> None:
    jar, java = tmp_path / "a.jar", Java(Path(sys.executable), 17)
    jar.write_bytes(b"1")
    first = class_data.find_archive(java, [jar], ["-server"])
    assert first == class_data.find_archive(java, [jar], ["-server"])
    assert first != class_data.find_archive(java, [jar], ["-client"])
    jar.write_bytes(b"22")
    assert first != class_data.find_archive(java, [jar], ["-server"])


@pytest.mark.skipif(not MAPS.exists(), reason="what a process has mapped is read from /proc")
def test_kafka_has_it_mapped(broker: Broker, tmp_path: Path) -> None:
    """`broker` has been the first of the installation, or a broker before it."""
    folder = fetch_jars("broker")[0].parent
    wait_until(
        lambda: any(found.stat().st_size for found in folder.glob("classes-*.jsa")), 120.0, "there is an archive"
    )
    with start(tmp_path / "home") as later:
        mapped = Path(f"/proc/{later.pid}/maps").read_text()
    assert f"{folder}/classes-" in mapped
    assert not (tmp_path / "home" / "classes.lst").exists()
