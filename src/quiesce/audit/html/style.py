"""The style sheet of the HTML report: light or dark by the reader's setting, from a phone to paper."""

from __future__ import annotations

import re

# Text is on --page or --panel, or on the background of its own mark; every pair has a contrast of at least 4.5.
_COLOURS_LIGHT = """
--page:#fff;--panel:#f5f6f8;--line:#d5dae1;--text:#1b222c;--muted:#566070;--link:#1f5fbf;--focus:#1f5fbf;
--ok:#17663a;--ok-bg:#dff2e6;--bad:#b3231a;--bad-bg:#fdebe9;--bad-solid:#c42b21;--on-bad:#fff;
--warn:#7a4b00;--warn-bg:#fdeecb;--miss:#5a3da3;--miss-bg:#ebe5fa;--step:#3d5a80;--wait:#a3b3c7;--stop:#a1188a;
"""
_COLOURS_DARK = """
--page:#13171c;--panel:#1b2128;--line:#343d48;--text:#e5e9ef;--muted:#a0abb9;--link:#8ab8ff;--focus:#8ab8ff;
--ok:#7dd3a0;--ok-bg:#17372a;--bad:#ff9a8f;--bad-bg:#3a1b1a;--bad-solid:#ff9a8f;--on-bad:#2b0c0a;
--warn:#f3c06b;--warn-bg:#3d2e10;--miss:#c7b3ff;--miss-bg:#2e2650;--step:#8fb3e0;--wait:#4f6077;--stop:#f08fdc;
"""

_SHEET = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.5rem 1rem 3rem;background:var(--page);color:var(--text);
 font:1rem/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
code,pre,.t text{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
code,pre{font-size:.875em}
a{color:var(--link)}
:focus-visible{outline:3px solid var(--focus);outline-offset:2px}
small,.muted,.scope,figcaption,footer,.brand{color:var(--muted)}
small{font-weight:400;font-size:.875em}
.brand{margin:0;letter-spacing:.06em}
h1,h2,h3,h4{line-height:1.25}
h1{margin:.1em 0 .2em;font-size:clamp(1.75rem,5vw,2.6rem)}
h1+p{margin:0;color:var(--muted)}
h2{margin:0 0 .5rem;font-size:1.35rem}
h3{margin:2rem 0 .5rem;font-size:1.15rem}
h4{margin:0;font-size:1rem}
.verdict.ok{color:var(--ok)}.verdict.bad{color:var(--bad)}.verdict.miss{color:var(--miss)}
.mark,.kind{display:inline-block;border-radius:.3em;padding:.1em .5em;white-space:nowrap}
.mark.ok{background:var(--ok-bg);color:var(--ok)}
.mark.bad{background:var(--bad-solid);color:var(--on-bad)}
.mark.miss{background:var(--miss-bg);color:var(--miss)}
.kind{font-size:.875em;font-weight:700;background:var(--bad-bg);color:var(--bad)}
.warn .kind{background:var(--warn-bg);color:var(--warn)}
.quiet .kind{background:var(--panel);color:var(--muted)}
table{width:100%;margin-top:1.5rem;border-collapse:collapse}
caption{text-align:left;font-weight:700;font-size:1.15rem;padding-bottom:.5rem}
th,td{padding:.4rem .75rem .4rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line);font-weight:400;overflow-wrap:normal}
tbody th{overflow-wrap:anywhere}
td .mark{white-space:normal}
thead th{color:var(--muted)}
.n{text-align:right;padding-right:0;padding-left:.75rem}
.scenario{margin-top:2rem;padding-top:1.5rem;border-top:1px solid var(--line)}
pre{margin:0;padding:.6rem .75rem;background:var(--panel);border-radius:.3rem;white-space:pre-wrap}
pre code{font-size:1em;user-select:all}
.detail{margin:.75rem 0;border-left:3px solid var(--line)}
ul.jump{list-style:none;padding:0}
.jump li{margin:.35rem 0}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.25rem;padding:0;margin:.5rem 0 1rem;list-style:none}
.stop-kind{margin:1.1rem 0}
.few{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,30rem),1fr));gap:0 2rem}
.strip{display:grid;grid-template-columns:11.5rem 1fr;gap:0 .75rem;margin:.35rem 0}
.strip p{margin:0}
.cells{display:flex;flex-wrap:wrap;gap:4px}
.cells>*,.legend b{display:inline-block;width:20px;height:20px;border-radius:4px;font:700 14px/20px ui-monospace,monospace;
 text-align:center;text-decoration:none}
.cells .ok,.legend .ok{background:var(--ok-bg);color:var(--ok)}
.cells .bad,.legend .bad{background:var(--bad-solid);color:var(--on-bad)}
.cells .warn,.legend .warn{background:var(--warn-bg);color:var(--warn);box-shadow:inset 0 0 0 1px var(--warn)}
.cells .miss,.legend .miss,.cells .unsure,.legend .unsure{background:var(--miss-bg);
 color:var(--miss);box-shadow:inset 0 0 0 1px var(--miss)}
.cells .skip,.legend .skip{color:var(--muted);box-shadow:inset 0 0 0 1px var(--line)}
.cells .base{margin-left:12px;border-radius:50%}.legend .base{border-radius:50%}
.cells a:hover{outline:2px solid var(--text)}
summary{cursor:pointer}
.points ul{columns:24rem;padding-left:1.25rem;font-size:.9em}
.finding{margin:.75rem 0;border:1px solid var(--line);border-left:4px solid var(--line);border-radius:.4rem}
.finding.bad{border-left-color:var(--bad-solid)}
.finding.warn{border-left-color:var(--warn)}
.finding>summary{padding:.6rem .9rem}
.finding>summary h4{display:inline}
.finding .at{display:block;color:var(--muted);padding-left:1.1rem}
.finding[open] .at{display:none}
.finding:target{outline:3px solid var(--focus)}
.body{padding:0 .9rem .9rem}
.body>p{margin:.2rem 0 .6rem}
dl{display:grid;align-items:baseline;grid-template-columns:6.5rem 1fr;gap:.6rem .75rem;margin:.75rem 0}
dt{color:var(--muted)}
dd{margin:0;min-width:0}
dd p{margin:0}
dd ol{margin:0;padding:0;list-style:none}
dd ol li+li{color:var(--muted)}
dd details{color:var(--muted);font-size:.9em}
dd details ol{padding-left:1.1rem}
.seen span{font-size:.875em;display:inline-block;margin:0 .4rem .2rem 0;padding:0 .45rem;border:1px solid var(--line);border-radius:.3rem}
figure{margin:1rem 0 0}
figcaption{font-size:.875em}
.t{display:block;overflow:hidden;border-top:1px solid var(--line);border-bottom:1px solid var(--line)}
.t text{font-size:12px;fill:var(--text);paint-order:stroke;stroke:var(--page);stroke-width:4px;stroke-linejoin:round}
.t .about text{stroke:var(--panel)}
.t .m{fill:var(--muted)}
.t .row{fill:var(--panel)}
.t .b,.t .w{y:23px;height:3px;fill:var(--wait)}
.t .s{y:19px;height:11px;rx:2px;fill:var(--step)}
.t .about text{font-weight:700}.t .m{font-weight:400}
.t .leak .b,.t .leak .w,.t .leak .s{fill:var(--bad-solid)}
.t .leak .b{height:5px;y:22px}
.t text.p{text-anchor:end;fill:var(--bad);font-weight:700}
.t .stop line{stroke:var(--stop);stroke-width:2;stroke-dasharray:5 4}
.t .stop text{fill:var(--stop);font-weight:700}
.t .end line{stroke:var(--muted);stroke-width:1.5}
.t .end text{fill:var(--muted)}
footer{margin-top:3rem;border-top:1px solid var(--line);font-size:.875em}
@media(max-width:40rem){
 .strip,dl{grid-template-columns:1fr;gap:.2rem}
 dd+dt{margin-top:.5rem}
 .t .m,td:nth-child(4),thead th:nth-child(4),.n{display:none}
}
@media print{
 body{max-width:none;padding:0;font-size:10pt}
 .cells>*,.legend b,.mark,.kind,.t rect{print-color-adjust:exact;-webkit-print-color-adjust:exact}
 .finding{break-inside:avoid-page}
 details::details-content{content-visibility:visible;block-size:auto}
}
@media(prefers-reduced-motion:no-preference){html{scroll-behavior:smooth}}
"""


def _squeezed(sheet: str) -> str:
    return re.sub(r"\n\s*", "", sheet)


STYLE = _squeezed(
    f":root{{color-scheme:light dark;{_COLOURS_LIGHT}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_COLOURS_DARK}}}}}{_SHEET}"
)
