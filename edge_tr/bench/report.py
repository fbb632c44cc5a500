"""Results as text, as one self-contained HTML page, and as pictures."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from edge_tr.bench.pictures import PARTS, draw, heading
from edge_tr.bench.runner import AGAIN, PLAIN

PAGE = "index.html"
_QUOTED = json.loads((Path(__file__).parent / "quoted.json").read_text("utf-8"))
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2330; background: #fff; }
table { border-collapse: collapse; margin: .6rem 0 1.4rem; }
th, td { padding: .22rem .7rem; text-align: right; border-bottom: 1px solid #e3e6ec; }
th:first-child, td:first-child, td.text, th.text, td.bars { text-align: left; }
td:first-child { white-space: nowrap; }
.bar { display: inline-block; height: .7em; background: #3b6fb6; vertical-align: baseline; }
.bar.slow { background: #c2493d; }
.note { color: #5a6474; max-width: 60rem; }
.wide { overflow-x: auto; }
img { max-width: 100%; }
"""


def quoted() -> dict[str, Any]:
    """Published figures, each with its source."""
    return dict(_QUOTED)


def label(row: dict[str, Any]) -> str:
    """Setting and method of a row."""
    return f"{row['setting']}: {row['method']}" if row["setting"] else str(row["method"])


def verdict(result: dict[str, Any]) -> list[str]:
    """What a person wants to know first: who wins where, and whether ours lost."""
    if result["experiment"] != "main":
        return []
    rows = {row["method"]: row for row in result["rows"] if "all" in row}
    least = (result.get("noise") or {}).get("typical", 0.0)
    contestants = {m: r for m, r in rows.items() if m not in (PLAIN, AGAIN, "plain-server")}
    lines = []
    for category in rows.get(PLAIN, {}).get("by_category", {}):
        ratios = {
            m: r["by_category"][category].get("ratio")
            for m, r in contestants.items()
            if category in r["by_category"]
        }
        known = {m: ratio for m, ratio in ratios.items() if ratio is not None}
        if not known:
            continue
        best = max(known, key=lambda m: known[m])
        winner = f"{best} ({known[best]:.2f} times plain)"
        if known[best] <= 1 + least:
            winner = "nothing is faster than plain decoding beyond the noise"
        ours = known.get("auto")
        rest = f"; automatic mode {ours:.2f}" if ours is not None and best != "auto" else ""
        lines.append(f"{category}: {winner}{rest}")
    return lines


def missing(result: dict[str, Any]) -> list[str]:
    """What was not measured, or failed at some prompts, and why."""
    lines = [f"{key}: not measured: {why}" for key, why in result["unavailable"].items()]
    for row in result["rows"]:
        errors = row.get("errors")
        if errors:
            lines.append(f"{label(row)}: failed at {errors['n']} prompts: {errors['first']}")
    return lines


def text_table(result: dict[str, Any]) -> list[str]:
    """The rows for a terminal."""
    if result.get("kind") == "memory":
        return [
            f"{label(row):<22}{_mib(row['own_bytes']):>10} MiB + {_mib(row['logits_bytes']):>7} "
            f"MiB of logits  {row['what']} ({row['how']})"
            for row in result["rows"]
        ]
    width = max([len(label(row)) for row in result["rows"]] + [20]) + 2
    heads = f"{'tokens/s':>10}{'MAT':>7}{'times plain':>13}{'mean':>8}{'bounds':>16}{'n':>5}"
    lines = [f"{'':<{width}}{heads}"]
    for row in result["rows"]:
        whole = row.get("all")
        if whole is None:
            lines.append(f"{label(row):<{width}}no answer with a speed")
            continue
        low, high = whole.get("ratio_lower"), whole.get("ratio_upper")
        bounds = f"{low:.2f} to {high:.2f}" if low is not None and high is not None else ""
        lines.append(
            f"{label(row):<{width}}{whole['tps']:>10.2f}{whole['mat']:>7.2f}"
            f"{_three(whole.get('ratio')):>13}{_three(whole.get('ratio_mean')):>8}"
            f"{bounds:>16}{whole['n']:>5}"
        )
    if result.get("parts"):
        lines += [
            f"{label(row)}, ms a step: "
            + ", ".join(f"{name} {ms:.3f}" for name, ms in row["parts_ms"].items())
            for row in result["rows"]
            if "parts_ms" in row
        ]
    lines += missing(result)
    lines += verdict(result)
    if best := result.get("auto_over_best"):
        lines.append(
            f"automatic mode over the best of llama.cpp's own methods: {best['all']} over all, "
            f"{best['lowest']} in the category where it is lowest"
        )
    if "violations" in result:
        lines.append(f"violations of our own methods: {result['violations']}")
    return lines


def write_report(directory: Path) -> Path:
    """Draw the pictures of every result in a directory and put all on one page."""
    results = [json.loads(file.read_text("utf-8")) for file in sorted(directory.glob("*.json"))]
    results = [r for r in results if isinstance(r, dict) and "experiment" in r]
    results.sort(key=lambda r: (r["experiment"] != "main", r["experiment"]))
    pictures = {}
    for result in results:
        image = draw(result)
        if image is not None:
            pictures[result["experiment"]] = image
            (directory / f"{result['experiment']}.png").write_bytes(image)
    page = directory / PAGE
    page.write_text(html(results, pictures), encoding="utf-8")
    return page


def html(results: Sequence[dict[str, Any]], pictures: dict[str, bytes]) -> str:
    """The page: no script, no file beside it, nothing from the network."""
    parts = [
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>edge-tr bench</title><style>{_STYLE}</style></head><body>",
        "<h1>edge-tr bench</h1>",
    ]
    for result in results:
        parts += _section(result, pictures.get(result["experiment"]))
    if results:
        parts += [_quoted_table(), _conditions(results[0])]
    return "\n".join([*parts, "</body></html>", ""])


def _section(result: dict[str, Any], picture: bytes | None) -> list[str]:
    parts = [
        f"<h2>{escape(heading(result))}</h2>",
        f"<p class='note'>{escape(result['about'])}</p>",
    ]
    if result.get("kind") == "expectation":
        parts.append("<p class='note'><b>Expectations, not measurements of speed.</b></p>")
    lines = verdict(result)
    if lines:
        parts += ["<ul>", *(f"<li>{escape(line)}</li>" for line in lines), "</ul>"]
    if picture is not None:
        data = base64.b64encode(picture).decode()
        parts.append(f"<img alt='{escape(result['title'])}' src='data:image/png;base64,{data}'>")
    parts += ["<div class='wide'>", *_rows(result), "</div>"]
    known = [row for row in result["rows"] if "about" in row]
    if known:
        parts += ["<details><summary>What each method is</summary><ul>"]
        parts += [f"<li>{escape(row['method'])}: {escape(row['about'])}</li>" for row in known]
        parts += ["</ul></details>"]
    parts += [f"<p class='note'>{escape(line)}</p>" for line in missing(result)]
    if "equality" in result:
        parts += _equality(result)
    return parts


def _rows(result: dict[str, Any]) -> list[str]:
    if result.get("kind") == "memory":
        head = "<th>method</th><th>own, MiB</th><th>logits, MiB</th><th class='text'>what</th>"
        body = [
            f"<tr><td>{escape(label(row))}</td><td>{_mib(row['own_bytes'])}</td>"
            f"<td>{_mib(row['logits_bytes'])}</td>"
            f"<td class='text'>{escape(row['what'])} ({row['how']})</td></tr>"
            for row in result["rows"]
        ]
        return [f"<table><tr>{head}</tr>", *body, "</table>"]
    categories = list(dict.fromkeys(c for r in result["rows"] for c in r.get("by_category", {})))
    parts = [name for name in PARTS if any(name in r.get("parts_ms", {}) for r in result["rows"])]
    show_parts = bool(parts) and result.get("parts")
    titles = ["", "tokens/s", "mean accepted tokens", "times plain", ""]
    titles += [f"{name}, ms" for name in parts] if show_parts else categories
    lines = [f"<table><tr>{''.join(f'<th>{escape(h)}</th>' for h in titles)}</tr>"]
    for row in result["rows"]:
        whole = row.get("all")
        if whole is None:
            why = row.get("errors", {}).get("first", "no answer with a speed")
            lines.append(f"<tr><td>{escape(label(row))}</td><td>{escape(why)}</td></tr>")
            continue
        ratio = whole.get("ratio")
        cells = [escape(label(row)), f"{whole['tps']:.1f}", f"{whole['mat']:.2f}", _two(ratio)]
        cells.append(_bar(ratio))
        if show_parts:
            cells += [f"{row.get('parts_ms', {}).get(name, 0):.3f}" for name in parts]
        else:
            cells += [_two(row["by_category"].get(c, {}).get("ratio")) for c in categories]
        columns = "".join(f"<td>{c}</td>" for c in cells)
        lines.append(f"<tr>{columns}</tr>".replace("<td><span", "<td class='bars'><span"))
    return [*lines, "</table>"]


def _three(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def _two(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _bar(ratio: float | None) -> str:
    if ratio is None:
        return ""
    kind = "bar" if ratio >= 1 else "bar slow"
    return f"<span class='{kind}' style='width:{min(ratio, 4) * 3:.1f}em'></span>"


def _equality(result: dict[str, Any]) -> list[str]:
    lines = [
        "<h3>Is it the same text?</h3><p class='note'>A violation is a first difference where "
        "one-token decoding saw the two best logits further apart than twice the control, the "
        "rounding that llama.cpp itself has between batches of these widths.</p>",
        "<table><tr><th>method</th><th>texts equal</th><th>largest gap at a first difference</th>"
        "<th>control</th><th>positions</th><th>violations</th></tr>",
    ]
    for name, report in result["equality"].items():
        gaps = report["first_difference_gaps"]
        lines.append(
            f"<tr><td>{escape(name)}</td><td>{report['identical_share']:.0%} of "
            f"{report['n_texts']}</td><td>{max(gaps, default=0):.3f}</td>"
            f"<td>{report['control']:.3f}</td><td>{report['control_positions']}</td>"
            f"<td>{report['violations']}</td></tr>"
        )
    shares = result["equal_texts_of_peers"].items()
    peers = ", ".join(f"{escape(name)} {share}" for name, share in shares)
    return [*lines, "</table>", f"<p class='note'>Equal texts of the peers: {peers}.</p>"]


def _quoted_table() -> str:
    rows = "".join(
        f"<tr><td>{escape(f['method'])}</td><td class='text'>{escape(f['model'])}</td>"
        f"<td class='text'>{escape(f['machine'])}</td><td class='text'>{escape(f['questions'])}"
        f"</td><td>{f['ratio']:.2f}</td><td>{_two(f['mat'])}</td>"
        f"<td class='text'>{escape(f['source'])}</td></tr>"
        for f in _QUOTED["figures"]
    )
    return (
        f"<h2>Quoted, not measured here</h2><p class='note'>{escape(_QUOTED['about'])}</p>"
        "<table><tr><th>method</th><th class='text'>model</th><th class='text'>machine</th>"
        "<th class='text'>questions</th><th>times plain</th><th>mean accepted tokens</th>"
        f"<th class='text'>source</th></tr>{rows}</table>"
    )


def _conditions(result: dict[str, Any]) -> str:
    facts = json.dumps({k: result[k] for k in ("model", "machine", "build", "settings")}, indent=2)
    return f"<h2>Conditions</h2><pre class='wide'>{escape(facts)}</pre>"


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.2f}"
