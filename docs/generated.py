"""Hook of MkDocs: writes pages from the code (settings, commands, reference), and adds files that other pages link to.

Links go by the repository's folders, so that they work in the checkout and on the site. What lies outside docs/ is
copied to `files/` of the site; a target that does not exist is a warning, which `make docs` takes for an error.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import posixpath
import re
from collections.abc import Collection, Iterator
from dataclasses import Field
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from pipeline.cli import photonic
from pipeline.trials import part
from pipeline.trials.config import settings

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^(```.*?^```$)", re.DOTALL | re.MULTILINE)
OUTSIDE = "files"  # folder of the site for what lies outside docs/
BEHIND = ("privacy.md",)  # pages that searches show last, as files from outside docs/
PUBLIC = ("pipeline", "analysis")  # packages whose `__all__` the reference has

log = logging.getLogger("mkdocs.plugins.generated")


def cell(text: object) -> str:
    """Text that stands as it is in a cell of a table; what is in backticks stays code."""
    parts = re.split(r"(`[^`]*`)", str(text).replace("\n", " "))
    parts[::2] = (re.sub(r"([*_\[\]])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2])
    return "".join(parts).replace("|", r"\|")


def table(header: str, rows: list[list[str]]) -> list[str]:
    """Lines of a Markdown table."""
    names = header.split(", ")
    return ["", "| " + " | ".join(names) + " |", "|" + " --- |" * len(names),
            *("| " + " | ".join(row) + " |" for row in rows), ""]


def _default(field: Field[Any]) -> str:
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{value!r}`"


def settings_page() -> str:
    """Every setting of a trial, by the question that it answers."""
    fields = {field.name: field for field in settings()}
    left = dict(fields)
    lines = ["# Settings", "", "Every setting of a trial, with its default. They stand in `base`, `grid` and `cases` "
             "of an experiment file, after `--set`, and in `TrialConfig(...)`. `photonic fields FILE` adds those of "
             "the file's plugins. A setting that no trial of a file uses is refused.", ""]
    for slot, parts in part.PARTS.items():
        if slot not in fields:
            continue
        own = {name: field for name, field in left.items() if name != slot and slot in part.owners(name)}
        left = {name: field for name, field in left.items() if name not in own and name != slot}
        head = fields[slot]
        lines += [f"## {slot}", "", f"{_sentence(head.metadata['doc'])} Default: {_default(head)}. "
                  f"Values: {', '.join(f'`{name}`' for name in parts)}.", ""]
        if own:
            lines += table("setting, default, meaning, applies to", [
                [f"`{name}`", _default(field), _meaning(field), _owners(part.owners(name)[slot], parts)]
                for name, field in own.items()])
    lines += ["## Of every trial", *table("setting, default, meaning", [
        [f"`{name}`", _default(field), _meaning(field)] for name, field in left.items()])]
    return "\n".join(lines)


def _sentence(doc: str) -> str:
    return cell(doc[0].upper() + doc[1:]) + "."


def _owners(names: Collection[str], parts: Collection[str]) -> str:
    return "all" if len(names) == len(parts) else ", ".join(f"`{name}`" for name in names)


def _meaning(field: Field[Any]) -> str:
    choices = field.metadata["choices"]
    return cell(field.metadata["doc"]) + (f" ({', '.join(f'`{choice}`' for choice in choices)})" if choices else "")


def commands_page() -> str:
    """Every command of the command line, with its options."""
    lines = ["# Commands", "", "Every command of `photonic` with its options, as `photonic COMMAND --help` prints "
             "them.", ""]
    lines += table("command, does", [[f"[`{name}`](#{name})", cell(command.get_short_help_str())]
                                     for name, command in photonic.shown.items()])
    program = photonic.make_context("photonic", [], resilient_parsing=True)
    for name, command in photonic.shown.items():
        context = command.make_context(name, [], program, resilient_parsing=True)
        usage = command.get_usage(context).removeprefix("Usage: ")
        lines += [f"## {name}", "", cell(inspect.cleandoc(command.help or "")), "", "```text", usage, "```", ""]
        rows = [parameter.get_help_record(context) for parameter in command.get_params(context)]
        lines += table("argument, meaning", [[cell(f"`{row[0]}`"), cell(row[1])] for row in rows if row])
    return "\n".join(lines)


def reference_page() -> str:
    """The public names, which mkdocstrings documents from their docstrings."""
    lines = ["# Python", "", "The public names: what `from pipeline import ...` and `from analysis import ...` have. "
             "Names elsewhere may change without notice.", ""]
    for package in PUBLIC:
        module = importlib.import_module(package)
        lines += [f"## {package}", ""]
        for name in module.__all__:
            found = inspect.unwrap(getattr(module, name))
            lines += [f"::: {found.__module__}.{found.__qualname__}", "    options:", f"      heading: {name}",
                      f"      toc_label: {name}", ""]
    return "\n".join(lines)


PAGES = {"settings.md": settings_page, "commands.md": commands_page, "reference.md": reference_page}


def _targets(text: str) -> Iterator[str]:
    for prose in FENCE.split(text)[::2]:
        for _, target, _ in LINK.findall(prose):
            if not re.match(r"[a-z]+:", target):
                yield target


def _path(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    return uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else f"docs/{uri}"


def _uri(path: str) -> str:
    """Where a file of the repository lies on the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{OUTSIDE}/{path}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are written here, and what pages link to outside docs/."""
    for uri, write in PAGES.items():
        files.append(File.generated(config, uri, content=write()))
    waiting = list(files.documentation_pages())
    while waiting:
        page = waiting.pop()
        for target in _targets(page.content_string):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(_path(page.src_uri)), target))
            if path.startswith("docs/") or files.get_file_from_path(_uri(path)):
                continue
            if not (ROOT / path).is_file():
                log.warning("%s: links to '%s', which is no file of the repository", page.src_uri, target)
                continue
            files.append(File.generated(config, _uri(path), abs_src_path=str(ROOT / path)))
            if path.endswith(".md"):
                copied = files.get_file_from_path(_uri(path))
                assert copied is not None  # appended above
                waiting.append(copied)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links between folders of the repository into links on the site."""
    uri = page.file.src_uri
    if uri in BEHIND or uri.startswith(f"{OUTSIDE}/"):
        page.meta["search"] = {"boost": 0.5}  # found after the pages that answer

    def moved(match: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", match[2]):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(_path(uri)), match[2]))
        return match[1] + posixpath.relpath(_uri(path), posixpath.dirname(uri) or ".") + match[3]

    parts = FENCE.split(markdown)
    parts[::2] = (LINK.sub(moved, prose) for prose in parts[::2])
    return "".join(parts)
