"""The claims of the paper as a table: one verdict for each claim, together and on each network."""

from __future__ import annotations

from ..reports.labels import HELD_OUT
from ..reports.records import Records
from ..reports.report_tables import ReportTable, TableEntry
from .paper_claims import CLAIMS, Verdict, overall

NOTE = (
    "The paper makes these claims for ResNet18, VGG19 and DenseNet121, trained for 350 epochs on GPUs. A verdict is "
    "about the network above it alone. A claim holds if every comparison shows it, and holds in part if some do. It "
    "does not hold if a comparison shows the opposite and none shows it. In brackets: the comparisons that show the "
    "claim, of all. Differences are paired by seed. They count if their 95 % interval does not contain 0, or, for "
    "'within x points', lies on one side of x. Spreads are compared by an F-test. Claims about SNIP count runs. "
    "Nothing is said from fewer than three seeds, or about the best of several methods before all of them are finished."
)
DECIDED = (Verdict.HOLDS, Verdict.FAILS, Verdict.MIXED)


def claims_table(title: str, records: Records) -> ReportTable | None:
    """The verdict on every claim; None if no claim was tested."""
    findings = {claim.text: claim.findings(records) for claim in CLAIMS}
    # Tables 2 and 3 of the paper are measured on held-out data of the same network.
    networks = list(dict.fromkeys(each.network.removesuffix(HELD_OUT) for found in findings.values() for each in found))
    if not networks:
        return None
    rows = []
    for text, found in findings.items():
        by_network = [[each for each in found if each.network.removesuffix(HELD_OUT) == name] for name in networks]
        entries = []
        for group in (found, *by_network) if len(networks) > 1 else (found,):
            verdict, holds = overall(group), sum(each.verdict == Verdict.HOLDS for each in group)
            count = f" ({holds} of {len(group)})" if group else ""
            entries.append(TableEntry(f"{verdict}{count}", bold=verdict in DECIDED))
        rows.append((TableEntry(text), *entries))
    columns = ("all networks", *networks) if len(networks) > 1 else tuple(networks)
    heading = ("claim of the paper", *columns)
    return ReportTable(title, heading, tuple(rows), (NOTE,), texts=tuple(range(len(heading))))
