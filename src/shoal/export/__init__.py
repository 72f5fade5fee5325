"""Results out of the ledger: files, samples, and which fields they have."""

from shoal.export.coverage import SAMPLE, Coverage, FieldCoverage, coverage_of
from shoal.export.formats import Format
from shoal.export.job import ExportReport, Layout, check_target, export_run
from shoal.export.lines import first_results

__all__ = [
    "SAMPLE",
    "Coverage",
    "ExportReport",
    "FieldCoverage",
    "Format",
    "Layout",
    "check_target",
    "coverage_of",
    "export_run",
    "first_results",
]
