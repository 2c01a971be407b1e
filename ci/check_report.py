"""check_report.py REPORT.html [SCREENSHOT.png]: check a report of `gemm bench --compare` in a browser, in a wide window
and in one as narrow as a phone.

The script appends a JavaScript probe to a copy of the report, and opens the copy in headless Chromium without network.
The report must fulfil these conditions: every chart is drawn (it has parts with an area, and all texts are inside),
every table is filled, the page is no wider than the window, nothing is loaded from elsewhere. The script prints its
findings and exits with 1 if a condition fails.
"""

import json
import re
import subprocess
import sys
import tempfile
from html import escape, unescape
from pathlib import Path
from typing import Any

WIDTHS = (1280, 390)
PARTS = 10
"""The smallest number of parts of a chart: axes, ticks, lines."""
PROBE = """
<script>
const shown = [...document.querySelectorAll("figure svg")].filter(svg => svg.getBoundingClientRect().width > 0);
const charts = shown.map(svg => {
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("path, use, text")].filter(part => !part.closest("defs"))
      .map(part => [part, part.getBBox(), part.getBoundingClientRect()]);
  return {
    name: svg.closest("section").id, width: frame.width, height: frame.height,
    parts: boxes.filter(([_, box]) => box.width > 0 || box.height > 0).length,
    texts: boxes.filter(([part, box]) => part.tagName == "text" && box.width > 0 && box.height > 0).length,
    outside: boxes.filter(([part, _, box]) => part.tagName == "text" &&
        (box.left < frame.left - 2 || box.right > frame.right + 2 || box.bottom > frame.bottom + 2)).length,
  };
});
const tables = [...document.querySelectorAll("table")].map(table => ({
  name: table.closest("section").id, rows: table.tBodies[0].rows.length, columns: table.tHead.rows[0].cells.length,
  empty: [...table.querySelectorAll("td, th")].filter(cell => !cell.textContent.trim()).length,
  ragged: [...table.tBodies[0].rows].filter(row => row.cells.length != table.tHead.rows[0].cells.length).length,
}));
const result = {
  charts, tables, sections: [...document.querySelectorAll("section")].map(section => section.id),
  loaded: performance.getEntriesByType("resource").map(entry => entry.name),
  scripts: document.scripts.length - 1, height: document.documentElement.scrollHeight,
  too_wide: document.documentElement.scrollWidth > window.innerWidth,
};
const said = document.createElement("pre");
said.id = "checked";
said.textContent = JSON.stringify(result);
document.body.append(said);
</script>
"""
COLLECT = """
<script>
onload = () => {
  const said = document.createElement("pre");
  said.id = "collected";
  said.textContent = frames[0].document.getElementById("checked").textContent;
  document.body.append(said);
};
</script>
"""
SECTIONS = {
    "headline", "machine", "thresholds", "chart-crossover", "chart-series", "chart-peak", "chart-roofline",
    "chart-layers", "chart-choice", "family-squares", "family-resnet50", "family-transformer", "family-skinny",
    "family-gemv", "family-batched", "method",
}  # fmt: skip


def chromium(*options: str) -> str:
    """The output of headless Chromium, without network access."""
    with tempfile.TemporaryDirectory() as profile:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                   "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", *options]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def probed(report: Path, width: int) -> dict[str, Any]:
    """The probe's findings in a copy of the report, in a frame of this width. A window cannot be as narrow."""
    with tempfile.TemporaryDirectory() as folder:
        copy = report.read_text(encoding="utf-8").replace("</body>", f"{PROBE}</body>")
        frame = f'<iframe style="border:0" width="{width}" height="900" srcdoc="{escape(copy)}"></iframe>' + COLLECT
        Path(folder, "frame.html").write_text(frame, encoding="utf-8")
        dumped = chromium("--window-size=1400,900", "--dump-dom", Path(folder, "frame.html").as_uri())
    said = re.search(r'<pre id="collected">(.*?)</pre>', dumped, re.S)
    if said is None:
        raise SystemExit("the page's script said nothing: did the page load?")
    found: dict[str, Any] = json.loads(unescape(said.group(1)))
    return found


def faults(found: dict[str, Any], source: str) -> list[str]:
    """The violated conditions, one line for each."""
    wrong = [f"section {name} is missing" for name in sorted(SECTIONS - set(found["sections"]))]
    for chart in found["charts"]:
        if chart["width"] < 300 or chart["height"] < 100 or chart["parts"] < PARTS or not chart["texts"]:
            wrong.append(f"a chart is not drawn: {chart}")
        if chart["outside"]:
            wrong.append(f"texts are outside of a chart: {chart}")
    for table in found["tables"]:
        if not table["rows"] or table["empty"] or table["ragged"]:
            wrong.append(f"a table is not filled: {table}")
    if found["too_wide"]:
        wrong.append("the page is wider than its window")
    if found["loaded"] or found["scripts"]:
        wrong.append(f"it loads {found['loaded']} and has {found['scripts']} scripts")
    outer = re.findall(r"""https?://|@import|\bsrc\s*=|url\((?!["']?#)""", source)
    return wrong + [f"it names something elsewhere: {name}" for name in outer]


def main(report: str, screenshot: str = "") -> int:
    path = Path(report).resolve()
    found, narrow = (probed(path, width) for width in WIDTHS)
    for chart in found["charts"]:
        print(f"{chart['name']:20} {chart['width']:.0f} × {chart['height']:.0f}, "
              f"{chart['parts']} parts, {chart['texts']} texts")  # fmt: skip
    for table in found["tables"]:
        print(f"{table['name']:20} {table['rows']} rows × {table['columns']} columns")
    source = path.read_text(encoding="utf-8")
    wrong = [*faults(found, source), *(f"{WIDTHS[1]} px: {fault}" for fault in faults(narrow, source))]
    if screenshot:
        target = Path(screenshot).resolve()
        chromium(f"--window-size={WIDTHS[0]},{found['height']}", f"--screenshot={target}", path.as_uri())
        print(f"{target.name}: {target.stat().st_size} bytes")
    print("\n".join(wrong) or f"{len(found['charts'])} charts are drawn, {len(found['tables'])} tables filled")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
