"""Known vulnerabilities of the pinned dependencies, asked of OSV (https://osv.dev) in one request.

Exit code 1 if a pin has one that is not in ACCEPTED. Where the service cannot be asked, a line says that nothing was
checked and why, and the exit code is 0: style can be checked without a network.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import requests

SERVICE = "https://api.osv.dev/v1/querybatch"
TIMEOUT = (5.0, 30.0)  # seconds to connect, and to answer
# OSV's id -> why it does no harm here
ACCEPTED: dict[str, str] = {}


def pins(path: Path) -> list[tuple[str, str]]:
    """(name, version) of every line of a constraints file.

    Raises:
        ValueError: for a line that is no pin.
    """
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;=]+)", text)
        if text and not match:
            raise ValueError(f"{path}: must be lines `name==version`, got '{line}'")
        if match:
            found.append((match[1], match[2]))
    return found


def vulnerabilities(packages: list[tuple[str, str]], service: str = SERVICE) -> dict[tuple[str, str], list[str]]:
    """(name, version) -> ids, for the packages that have any.

    Raises:
        requests.RequestException, ValueError, KeyError: no answer, or one that is not OSV's.
    """
    queries = [{"package": {"name": re.sub(r"[-_.]+", "-", name).lower(), "ecosystem": "PyPI"}, "version": version}
               for name, version in packages]
    answer = requests.post(service, json={"queries": queries}, timeout=TIMEOUT)
    answer.raise_for_status()
    results = answer.json()["results"]
    if len(results) != len(packages):
        raise ValueError(f"{len(results)} answers to {len(packages)} questions")
    return {package: ids for package, result in zip(packages, results, strict=True)
            if (ids := [entry["id"] for entry in result.get("vulns") or [] if entry["id"] not in ACCEPTED])}


def main(path: Path, service: str) -> int:
    packages = pins(path)
    try:
        found = vulnerabilities(packages, service)
    except (requests.RequestException, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"dependency audit: NOT CHECKED, {service} could not be asked: {type(error).__name__}: {error}")
        return 0
    for (name, version), ids in found.items():
        print(f"dependency audit: {name} {version} has {', '.join(ids)} (https://osv.dev/vulnerability/{ids[0]})")
    print(f"dependency audit: {len(packages)} pinned packages, {len(found)} with known vulnerabilities")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), os.environ.get("OSV_SERVICE") or SERVICE))
