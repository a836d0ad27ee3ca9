"""Auditing: what attacks measure, beside what is claimed or certified.

One module per attack, with `accounting.audited` for the numbers; `audit` makes the table of a trial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.auditing.audit import audit_trial
    from pipeline.auditing.release import ReleaseAudit, audit_release
    from pipeline.auditing.row_space import row_space_audit
    from pipeline.auditing.two_point import two_point_step_audit

__all__ = ["ReleaseAudit", "audit_release", "audit_trial", "row_space_audit", "two_point_step_audit"]

__getattr__, __dir__ = lazy(__name__, {"ReleaseAudit": "release", "audit_release": "release", "audit_trial": "audit",
                                       "row_space_audit": "row_space", "two_point_step_audit": "two_point"})
