"""What MkDocs adds to docs/ (mkdocs.yml): reference pages made from the code, root pages, and design/."""

from __future__ import annotations

import inspect
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
_ROOT_PAGES = ("KNOWN_ISSUES.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_MODULES = (
    "entrain",
    "entrain.policies.policy",
    "schedulers.slots.host",
    "schedulers.cassini.module",
    "schedulers.placement.strategies",
    "controlplane.topology",
    "controlplane.client",
    "hostbpf.mltcp",
    "ebpf",
    "wire.slot_header",
    "workloads.collectives",
)
"""What programs of others use: the extension points first."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    made = {"reference/cli.md": command_line(), "reference/python.md": python()}
    for name in _ROOT_PAGES:
        text = (ROOT / name).read_text()
        made[f"project/{name}"] = re.sub(r"\]\((?:docs/)(?=[\w./-]+\.md)", "](../", text)
    made["project/CITATION.cff"] = (ROOT / "CITATION.cff").read_text()
    for each in sorted((ROOT / "design").glob("*.md")):
        text = each.read_text(encoding="utf-8")
        made[f"project/design/{each.name}"] = re.sub(r"\]\(\.\./docs/(?=[\w./-]+\.md)", "](../../", text)
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to the root and to design/ to the site's copies, and pictures to themselves; name pages by
    titles."""
    directory = posixpath.dirname(page.file.src_uri)
    if not directory.startswith("project"):  # the copies lie relative to one another as the originals do
        outside = r"\]\(((?:\.\./)*)\.\./(?=[A-Z_]+\.(?:md|cff)\b|design/)"
        markdown = re.sub(outside, r"](\1project/", markdown)
    markdown = re.sub(r"^(!\[[^\]]*\]\(([^)]+)\))$", r"[\1](\2)", markdown, flags=re.MULTILINE)

    def titled(link: re.Match[str]) -> str:
        file = files.get_file_from_path(posixpath.normpath(posixpath.join(directory, link[1])))
        return link[0] if file is None else f"[{_title(file)}]({link[1]}"

    return re.sub(r"\[(?:design/)?[\w-]+\.md\]\(([^)#]+)", titled, markdown)


def _title(file: File) -> str:
    return file.content_string.partition("\n")[0].removeprefix("# ")


def command_line() -> str:
    """The page of all commands, from their own argument parsers."""
    from entrain.cli import cli
    from hostbpf.command import main as agent

    context = click.Context(cli, info_name="entrain")
    parts = [
        "# Command line\n\nEach command's own help. Exit status: 0 success, 1 failure, 2 bad input.\n\n"
        'With `--json`, a command prints nothing but JSON on standard output; on failure, `{"error": …}`.\n'
        "Only commands that run another program or a service have no `--json`: `exec`, `train`, `capture`, "
        "`controller` and `emulated-switch`. `schema` prints nothing else.\n"
    ]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        parts.append(_command(command, f"entrain {name}"))
        if isinstance(command, click.Group):
            parts += [_command(each, f"entrain {name} {sub}") for sub, each in command.commands.items()]
    parts.append(_command(agent, "entrain-agent"))
    return "\n".join(parts)


def _command(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name)
    pieces = " ".join(command.collect_usage_pieces(context))
    text = [f"## {name}\n", f"    {name} {pieces}\n", _text(command.help), ""]
    records = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    rows = [(option, help) for option, help in records if help and "--help" not in option]
    if rows:
        text += ["| option | |", "|---|---|"]
        text += [f"| `{_cell(option)}` | {_cell(_text(help))} |" for option, help in rows]
        text.append("")
    return "\n".join(text)


def _text(help: str | None) -> str:
    """Help as Markdown: what looks like HTML stays text, and lines that click does not join are a block."""
    paragraphs = inspect.cleandoc(help or "").split("\n\n")
    return "\n\n".join(
        "\n".join(f"    {line}" for line in each.splitlines()[1:])
        if each.startswith("\b")
        else each.replace("<", "&lt;").replace("*", "\\*")
        for each in paragraphs
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def python() -> str:
    """The page of modules that programs of others use."""
    head = (
        "# Python\n\nWhat programs and plug-ins of others use. Internals are not listed, and may change.\n\n"
    )
    return head + "\n\n".join(f"::: {name}" for name in _MODULES) + "\n"


def on_pre_build(config: MkDocsConfig, **_: Any) -> None:
    """Let commands and modules be found, wherever MkDocs was started."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
