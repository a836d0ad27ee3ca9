"""The YAML of an experiment file: numbers, duplicate keys, and places with lines for error messages."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.trials.config import ConfigError
from pipeline.trials.fields import UserError

PRESET = "preset"  # place of what the preset of a file sets
PLAIN = re.compile(r"\w[\w./-]*", re.ASCII)  # may stand without quotes, if it does not read as a number or the like


def as_yaml(text: str) -> str:
    """Return a text as one line of YAML that an experiment file reads back as this text; in quotes if it needs them."""
    return text if PLAIN.fullmatch(text) and parse_yaml(text, "text") == text else quoted(text)


def quoted(text: str) -> str:
    """Return a text in quotes, on one line of YAML."""
    letters = json.dumps(text, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in letters)


class Place(str):
    """A key of a file, or a place in it such as `cases[0].grid.sigma[2]`, with its line; 0 if `--set` gave it."""

    line: int

    def __new__(cls, text: str, line: int = 0) -> Place:
        place = super().__new__(cls, text)
        place.line = line
        return place

    def of(self, key: str) -> Place:
        return Place(f"{self}.{key}", getattr(key, "line", 0))

    def item(self, index: int, values: Sequence[Any]) -> Place:
        return Place(f"{self}[{index}]", values.lines[index] if isinstance(values, Items) else self.line)


class Items(list[Any]):
    """A list of an experiment file, with the line of each item."""

    lines: Sequence[int] = ()


class ExperimentLoader(yaml.SafeLoader):
    """YAML's safe loader, except that keys are texts that stand once and know their line, and numbers are decimal."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the content of a document; refuse one that contains itself, by an alias within its own anchor."""
        self.deep_construct = True
        return super().construct_document(node)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        r"""Return a text in which surrogates are joined: JSON writes an emoji as two of them, `\ud83d\ude00`."""
        return super().construct_scalar(node).encode("utf-16", "surrogatepass").decode("utf-16")

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace the merge key `<<` by the entries that it names; refuse a key that is no text, or stands twice."""
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

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping whose keys know their lines."""
        content = super().construct_mapping(node, deep)
        return {Place(str(key), key_node.start_mark.line + 1): value
                for (key_node, _), (key, value) in zip(node.value, content.items(), strict=True)}

    def construct_yaml_seq(self, node: yaml.SequenceNode) -> Generator[Items, None, None]:
        """Yield a list that knows the lines of its items; it is filled later, as YAML's own is."""
        items = Items()
        yield items
        items.extend(self.construct_sequence(node))
        items.lines = [item.start_mark.line + 1 for item in node.value]


TEXT, MERGE, INT, FLOAT = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "merge", "int", "float"))
# YAML 1.1 reads 0100 as 64, 1:30 as 90 and a date as a day. All are text here, so that settings refuse them as numbers.
# As in YAML 1.2, a power of ten is a number also without a point, or without a sign in its exponent.
KEPT = {MERGE, "tag:yaml.org,2002:bool", "tag:yaml.org,2002:null"}
ExperimentLoader.add_constructor("tag:yaml.org,2002:seq", ExperimentLoader.construct_yaml_seq)
ExperimentLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in KEPT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()}
ExperimentLoader.add_implicit_resolver(INT, re.compile(r"[-+]?(0|[1-9][0-9_]{0,99}|0b[01]{1,99}|0x[0-9a-fA-F]{1,99})$"),
                                       list("-+0123456789"))
ExperimentLoader.add_implicit_resolver(
    FLOAT, re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|([0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)[eE][-+]?[0-9]+|\.[0-9][0-9_]*"
                      r"|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"), list("-+.0123456789"))


def parse_yaml(text: str, path: Path | str) -> Any:
    """Return the content of the YAML text; the error for invalid YAML names `path`."""
    try:
        return yaml.load(text, ExperimentLoader)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:  # explicit tags
        mark = getattr(error, "problem_mark", None)  # its line and column count from 0
        location = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        problem = str(getattr(error, "problem", error)).partition("\n")[0].replace(r"'\t'", r"'\t' (use spaces)")
        raise ConfigError(f"{path}:{location} not valid YAML: {problem}") from None


@contextlib.contextmanager
def placed(places: Mapping[str, str]) -> Iterator[None]:
    """Note on an error that has no place yet the place of its setting; `places` are by the setting's name in keys."""
    try:
        yield
    except UserError as error:
        error.at = error.at or places.get(error.field, "")
        raise


@contextlib.contextmanager
def located(path: Path, content: Any = None) -> Iterator[None]:
    """Add to an error's message the place of its setting, if `placed` noted it, and file and line by `content`."""
    try:
        yield
    except UserError as error:
        origin = ""
        if error.at == PRESET:
            origin = f"; give {error.field} in the file, in place of what the preset has"
        elif error.at:
            is_question = str(error).endswith("?")  # a suggestion
            origin = f" It stands at {error.at}" if is_question else f", at {error.at}"
        line = getattr(error.at, "line", 0) or _line(content, error.at or error.field)
        place = f"{path}, line {line}" if line else path
        error.args = (f"{error}{origin} ({place})",)
        raise error from None


def _line(content: Any, place: str) -> int:
    """Return the line of a place in a file's content, or of the innermost part that stands there; 0 for neither."""
    line = 0
    for name in re.split(r"\.|(?=\[)", place):
        index = int(name[1:-1]) if re.fullmatch(r"\[[0-9]+\]", name) else -1
        if isinstance(content, Items) and 0 <= index < len(content):
            line, content = content.lines[index], content[index]
        elif isinstance(content, Mapping) and name in content:
            line = next(getattr(key, "line", 0) for key in content if key == name)
            content = content[name]
        else:
            break
    return line
