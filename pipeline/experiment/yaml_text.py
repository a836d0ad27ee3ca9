"""The YAML of an experiment file: numbers, duplicate keys, synonyms of settings, and lines for error messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from pipeline.trials.config import ConfigError
from pipeline.trials.fields import SYNONYMS, renamed


class ExperimentLoader(yaml.SafeLoader):
    """YAML's safe loader, except that keys are texts that stand once, and numbers are decimal."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the content of a document; refuse one that contains itself, by an alias within its own anchor."""
        self.deep_construct = True
        return super().construct_document(node)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        r"""Return a text in which surrogates are joined: JSON writes an emoji as two of them, `\ud83d\ude00`."""
        return super().construct_scalar(node).encode("utf-16", "surrogatepass").decode("utf-16")

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace the merge key `<<` of a mapping by the entries of the mappings that it names.

        A key that is not text or is repeated is refused; plain YAML would silently use its last value.
        """
        seen = set()
        for key, value in node.value:
            problem = ""
            if key.tag not in (TEXT, MERGE):
                written = repr(key.value) if isinstance(key, yaml.ScalarNode) else f"a {key.id}"
                comma = ", and a decimal number has a point, not a comma" if not value.value else ""  # {rate: 0,1}
                problem = f"a key must be text{comma}, got {written}"
            elif key.value in seen:
                problem = f"the key {key.value!r} stands twice"
            if problem:
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        super().flatten_mapping(node)
        node.value = list({key.value: (key, value) for key, value in node.value}.values())  # own entries come last


TEXT, MERGE, INT, FLOAT = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "merge", "int", "float"))
# YAML 1.1 reads 0100 as 64, 1:30 as 90 and a date as a day. All are text here, so that settings refuse them as numbers.
# As in YAML 1.2, a power of ten is a number also without a point, or without a sign in its exponent.
KEPT = {MERGE, "tag:yaml.org,2002:bool", "tag:yaml.org,2002:null"}
ExperimentLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in KEPT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()}
ExperimentLoader.add_implicit_resolver(INT, re.compile(r"[-+]?(0|[1-9][0-9_]{0,99}|0b[01]{1,99}|0x[0-9a-fA-F]{1,99})$"),
                                       list("-+0123456789"))
ExperimentLoader.add_implicit_resolver(
    FLOAT, re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|([0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)[eE][-+]?[0-9]+|\.[0-9][0-9_]*"
                      r"|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"), list("-+.0123456789"))


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number; `true` is none, though Python counts it as an int."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_yaml(text: str, path: Path | str) -> Any:
    """Return the content of the YAML text; the error for invalid YAML names `path`."""
    try:
        return yaml.load(text, ExperimentLoader)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:  # explicit tags
        mark = getattr(error, "problem_mark", None)  # its line and column count from 0
        location = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        problem = str(getattr(error, "problem", error)).partition("\n")[0]
        raise ConfigError(f"{path}:{location} not valid YAML: {problem}") from None


def replace_synonyms(content: Any) -> Any:
    """Return a file's content with the official name of a setting in place of a synonym, and refuse both together."""
    if not isinstance(content, Mapping):
        return content
    result = dict(content)
    for part in ("base", "grid", "space"):
        if isinstance(result.get(part), Mapping):
            result[part] = renamed(result[part])
    if isinstance(result.get("cases"), list):
        result["cases"] = [replace_synonyms(case) for case in result["cases"]]
    if "search" in result:
        result["search"] = replace_synonyms(result["search"])
    return result


def restore_synonyms(message: str, text: str) -> str:
    """Return an error message in which settings have the synonyms that an experiment file's text uses for them."""
    for synonym, official in SYNONYMS.items():
        if re.search(rf"\b{synonym}\b", text) and not re.search(rf"\b{official}\b", text):
            message = re.sub(rf"\b{official}\b", synonym, message)
    return message


def line_of(text: str, message: str) -> str:
    """Return the line of a file with the place that a message names (`cases[0].base.sigma`), as `, line 3`, or ''."""
    lines = _lines_by_place(text)
    first = message.partition(":")[0].removeprefix("the file")
    first = SYNONYMS.get(first, first)
    candidates = [*re.findall(r", at ([\w.\[\]]+)", message), first]
    if unknown := re.search(r"unknown entry '(\w+)'", message):
        candidates.insert(0, f"{first}.{unknown[1]}".lstrip("."))  # the most precise place
    return next((f", line {lines[place]}" for place in candidates if place in lines), "")


def _lines_by_place(text: str) -> dict[str, int]:
    """Return the line number, from 1, of every key and list item of a YAML text, by its place: `cases[0].base.sigma`.

    Places have the official names of settings, also where the text has a synonym.
    """
    lines: dict[str, int] = {}

    def walk(node: yaml.Node | None, place: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                name = SYNONYMS.get(key.value, str(key.value))
                inner = f"{place}.{name}" if place else name
                lines[inner] = key.start_mark.line + 1
                walk(value, inner)
        elif isinstance(node, yaml.SequenceNode):
            for number, value in enumerate(node.value):
                lines[f"{place}[{number}]"] = value.start_mark.line + 1
                walk(value, f"{place}[{number}]")

    loader = ExperimentLoader(text)
    root = loader.get_single_node()
    if root:
        loader.construct_document(root)  # resolves merge keys
    walk(root, "")
    return lines
