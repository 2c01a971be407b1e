"""check_report.py REPORT.html [SCREENSHOT.png]: check a report of `gemm bench --compare` in a browser.

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
from html import unescape
from pathlib import Path
from typing import Any

WIDTH = 1200
PARTS = 10
"""The smallest number of parts of a chart: axes, ticks, lines."""
PROBE = """
<script>
const charts = [...document.querySelectorAll("figure svg")].map(svg => {
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
SECTIONS = {
    "machine", "thresholds", "chart-crossover", "chart-contestants", "chart-peak", "chart-roofline", "chart-layers",
    "chart-choice", "family-squares", "family-resnet50", "family-transformer", "family-skinny", "family-batched",
    "method",
}  # fmt: skip


def chromium(*options: str) -> str:
    """The output of headless Chromium, without network access."""
    with tempfile.TemporaryDirectory() as profile:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                   "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", *options]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def probed(report: Path) -> dict[str, Any]:
    """The findings of the probe in a copy of the report."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "report.html")
        copy.write_text(report.read_text(encoding="utf-8").replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
        dumped = chromium(f"--window-size={WIDTH},900", "--dump-dom", copy.as_uri())
    said = re.search(r'<pre id="checked">(.*?)</pre>', dumped, re.S)
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
    found = probed(path)
    for chart in found["charts"]:
        print(f"{chart['name']:20} {chart['width']:.0f} × {chart['height']:.0f}, "
              f"{chart['parts']} parts, {chart['texts']} texts")  # fmt: skip
    for table in found["tables"]:
        print(f"{table['name']:20} {table['rows']} rows × {table['columns']} columns")
    wrong = faults(found, path.read_text(encoding="utf-8"))
    if screenshot:
        target = Path(screenshot).resolve()
        chromium(f"--window-size={WIDTH},{found['height']}", f"--screenshot={target}", path.as_uri())
        print(f"{target.name}: {target.stat().st_size} bytes")
    print("\n".join(wrong) or f"{len(found['charts'])} charts are drawn, {len(found['tables'])} tables filled")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
