"""`make lint` asks for known vulnerabilities, and says so where it cannot."""

from types import SimpleNamespace

import audit_dependencies
import pytest
import requests
from audit_dependencies import ACCEPTED, main
from commands import written

BAD = {"package": {"name": "pyyaml", "ecosystem": "PyPI"}, "version": "5.3"}


def test_a_pin_with_a_known_vulnerability_fails_and_a_service_without_an_answer_is_no_clean_bill(tmp_path, capsys,
                                                                                                 monkeypatch):
    """OSV as it answers of PyYAML 5.3, whose name is normalized in the question, and as it does not."""
    def post(service, json, timeout):
        known = {"vulns": [{"id": "GHSA-1"}, {"id": "PYSEC-2"}]}
        results = [known if query == BAD else {} for query in json["queries"]]
        answer = {"good": results, "short": results[1:]}.get(service)
        return SimpleNamespace(raise_for_status=lambda: None, json=lambda: {"results": answer} if answer else {})

    monkeypatch.setattr(requests, "post", post)
    file = written(tmp_path / "constraints.txt", "PyYAML==5.3\nnumpy==2.4.6  # fine\n\n")
    assert main(file, "good") == 1
    assert capsys.readouterr().out.splitlines() == [
        "dependency audit: PyYAML 5.3 has GHSA-1, PYSEC-2 (https://osv.dev/vulnerability/GHSA-1)",
        "dependency audit: 2 pinned packages, 1 with known vulnerabilities"]
    monkeypatch.setitem(ACCEPTED, "GHSA-1", "not used")
    assert main(file, "good") == 1
    monkeypatch.setitem(ACCEPTED, "PYSEC-2", "not used")
    assert main(file, "good") == 0
    capsys.readouterr()
    for service in ("short", "empty"):
        assert main(file, service) == 0 and "NOT CHECKED" in (out := capsys.readouterr().out)
        assert "known vulnerabilities" not in out
    with pytest.raises(ValueError, match="must be lines `name==version`, got 'numpy>=2'"):
        audit_dependencies.pins(written(tmp_path / "other.txt", "numpy>=2\n"))
