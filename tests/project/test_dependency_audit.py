"""`make lint` asks for known vulnerabilities, and says so where it cannot."""

from __future__ import annotations

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from audit_dependencies import ACCEPTED, main, pins
from commands import written

ROOT = Path(__file__).parents[2]


@pytest.fixture
def service():
    """A stand-in for OSV: whoever asks for PyYAML 5.3 hears of two vulnerabilities; `broken` answers nonsense."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            asked.extend(queries)
            bad = {"package": {"name": "pyyaml", "ecosystem": "PyPI"}, "version": "5.3"}
            results = [{"vulns": [{"id": "GHSA-1"}, {"id": "PYSEC-2"}]} if q == bad else {} for q in queries]
            answer = json.dumps({"results": results[1:] if self.path == "/broken" else results}).encode()
            self.send_response(503 if self.path == "/down" else 200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_pin_with_a_known_vulnerability_fails(service, tmp_path, capsys, monkeypatch):
    file = written(tmp_path / "constraints.txt", "PyYAML==5.3\nnumpy==2.4.6  # fine\n\n")
    assert main(file, service[0]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "dependency audit: PyYAML 5.3 has GHSA-1, PYSEC-2 (https://osv.dev/vulnerability/GHSA-1)",
        "dependency audit: 2 pinned packages, 1 with known vulnerabilities"]
    monkeypatch.setitem(ACCEPTED, "GHSA-1", "not used")
    assert main(file, service[0]) == 1
    monkeypatch.setitem(ACCEPTED, "PYSEC-2", "not used")
    assert main(file, service[0]) == 0


def test_every_pin_of_this_project_is_asked_for(service, capsys):
    assert main(ROOT / "constraints.txt", service[0]) == 0
    named = {(query["package"]["name"], query["version"]) for query in service[1]}
    assert len(named) == len(pins(ROOT / "constraints.txt")) > 100
    assert any(name == "gitpython" for name, _ in named), "names are normalized"


@pytest.mark.parametrize("path", ["/down", "/broken", ":1/nobody"])
def test_a_service_that_cannot_be_asked_is_not_a_clean_bill(service, tmp_path, capsys, path):
    file = written(tmp_path / "constraints.txt", "PyYAML==5.3\n")
    assert main(file, "http://127.0.0.1:1/" if path.startswith(":") else service[0] + path) == 0
    out = capsys.readouterr().out
    assert "NOT CHECKED" in out and "known vulnerabilities" not in out


def test_a_line_that_is_no_pin_is_refused(tmp_path):
    (tmp_path / "constraints.txt").write_text("numpy>=2\n")
    with pytest.raises(ValueError, match="must be lines `name==version`, got 'numpy>=2'"):
        pins(tmp_path / "constraints.txt")


def test_lint_runs_the_audit():
    lint = subprocess.run(["make", "--dry-run", "lint"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "ruff check" in lint and "mypy" in lint and "audit_dependencies.py constraints.txt" in lint
