"""The beam searches of some sentences."""

from scripts.charts import beam
from scripts.reporting.inspection import Inspection
from scripts.reporting.section import Section


def section(inspection: Inspection) -> Section:
    names = {f"beam-{number}": each for number, each in enumerate(inspection.shown)}
    charts = {name: beam.tree(each.beam_tree).to_dict() for name, each in names.items()}
    content = {"shown": names} if names else None
    return Section("beams", "Beam search", content, inspection.notes, charts)
