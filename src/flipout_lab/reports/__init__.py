"""Reports: the results of many runs as an HTML page, figures and tables."""

from .records import Record, Records, collect
from .report_writer import LeadChart, write_report

__all__ = ["LeadChart", "Record", "Records", "collect", "write_report"]
