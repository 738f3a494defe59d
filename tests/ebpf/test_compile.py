"""The compiler sees its input and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebpf import compile as compiling
from ebpf import compile_bpf, landlock
from ebpf.errors import CompilerError, EbpfError

EMPTY = "int nothing;\n"


def compiled(source: Path, text: str, **options: list[Path]) -> Path:
    source.write_text(text)
    output = source.with_suffix(".o")
    compile_bpf(source, output, includes=options.get("includes", []))
    return output


def refusal(source: Path, text: str) -> str:
    with pytest.raises(CompilerError) as refused:
        compiled(source, text)
    assert not source.with_suffix(".o").exists()
    assert [each.name for each in source.parent.iterdir() if each.suffix != ".c"] == []
    return str(refused.value)


def test_the_systems_headers_and_those_given_can_be_included(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "own.h").write_text("#define OWN 1\n")
    text = '#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n#include "own.h"\nint own = OWN;\n'
    output = compiled(tmp_path / "x.c", text, includes=[headers])
    assert output.read_bytes().startswith(b"\x7fELF")


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("line", ['#include "{}"', 'asm(".include \\"{}\\"");', 'asm(".incbin \\"{}\\"");'])
def test_no_other_file_can_be_read_even_by_root(tmp_path: Path, line: str) -> None:
    secret = tmp_path / "elsewhere" / "secret.c"
    secret.parent.mkdir()
    secret.write_text("root:swordfish:19000\n")
    (tmp_path / "c").mkdir()
    for path in (secret, Path("/etc/passwd"), Path("/etc/shadow"), Path("/proc/self/environ")):
        message = refusal(tmp_path / "c" / "x.c", line.format(path) + "\n")
        assert "swordfish" not in message and "root:" not in message and "PATH=" not in message


DOUBLED = "".join(f"#define D{n + 1} D{n} D{n}\n" for n in range(40))


@pytest.mark.parametrize(
    ("limit", "most", "text", "problem"),
    [
        (
            "PROCESSOR_S",
            1,
            "#define D0\n" + DOUBLED + "D40 int nothing;\n",
            "took more than 1 s of processor",
        ),
        ("LARGEST", 1 << 20, "char large[1 << 24] = {1};\n", "the object has more than 1 MiB"),
        ("MEMORY", 512 << 20, "#define D0 int x();\n" + DOUBLED + "D30\n", "more than 512 MiB of memory"),
    ],
)
def test_a_compiler_has_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, text: str, problem: str
) -> None:
    monkeypatch.setattr(compiling, limit, most)
    assert problem in refusal(tmp_path / "x.c", text)


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_confinement_ends_with_the_call(tmp_path: Path) -> None:
    readable, other = tmp_path / "readable", tmp_path / "other"
    readable.mkdir()
    for path in (readable / "file", other):
        path.write_text("text")

    def look() -> list[str]:
        denied = []
        for path in (readable / "file", other):
            try:
                path.read_text()
            except PermissionError:
                denied.append(f"read {path.name}")
            try:
                path.write_text("changed")
            except PermissionError:
                denied.append(f"write {path.name}")
        return denied

    assert landlock.confined(look, [readable]) == ["write file", "read other", "write other"]
    assert look() == []


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_confined_calls_pass_their_errors_on(tmp_path: Path) -> None:
    def fail() -> None:
        raise EbpfError("as it was")

    with pytest.raises(EbpfError, match="as it was"):
        landlock.confined(fail, [tmp_path / "missing"])


def test_without_landlock_it_compiles_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)
    assert compiled(tmp_path / "x.c", EMPTY).exists()
    assert "no Landlock" in caplog.text
