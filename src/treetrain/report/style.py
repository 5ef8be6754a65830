"""How a page looks: one style sheet, light and dark, for phones and for wide windows."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--paper:#fbfbf9;--card:#fff;--ink:#1d2126;--soft:#59626d;--rule:#dcdfe3;
--good:#136f43;--good-back:#e2f3e9;--bad:#a3211c;--bad-back:#fbe7e5;--line0:#1f5fbf;--line1:#b4540a;
--line2:#6b46a8;--line3:#0f7670;--flat:#8a939e;--tree:#1f5fbf}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--card:#1b1f25;--ink:#e6e8eb;--soft:#a2abb6;
--rule:#343b45;--good:#79d6a2;--good-back:#173327;--bad:#ff9d94;--bad-back:#3d1d1b;--line0:#7fb1ff;
--line1:#ffad66;--line2:#c3a6ff;--line3:#62d0c7;--flat:#79838f;--tree:#7fb1ff}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:40px 0 8px;padding-top:16px;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:24px 0 4px;overflow-wrap:anywhere}
p{margin:6px 0;max-width:76ch;overflow-wrap:anywhere}
.soft,figcaption,caption{color:var(--soft);font-size:.9rem}
.verdict{padding:12px 16px;border-radius:8px;border-left:5px solid;margin:16px 0;max-width:none}
.good{background:var(--good-back);border-color:var(--good)}
.bad{background:var(--bad-back);border-color:var(--bad)}
.good b,td.good{color:var(--good)}
.bad b,td.bad{color:var(--bad)}
td.good,td.bad{background:none;font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(136px,1fr));gap:12px;margin:16px 0;padding:0}
.cards div{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 14px}
.cards dt{color:var(--soft);font-size:.85rem}
.cards dd{margin:0;font-size:1.3rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.scroll{overflow-x:auto;max-width:100%;background:var(--card);border:1px solid var(--rule);border-radius:8px;
padding:8px}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--line0);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{padding:6px 10px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap;vertical-align:top}
tr:last-child td,tr:last-child th{border-bottom:0}
th:first-child,td:first-child,.words{text-align:left}
td.words{white-space:normal;min-width:20ch;overflow-wrap:anywhere}
th{color:var(--soft);font-weight:600}
tbody th{color:var(--ink);font-weight:400;max-width:32ch;white-space:normal;overflow-wrap:anywhere}
.bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:4px 12px;align-items:center}
.bars b{grid-column:1/-1;margin-top:10px;font-weight:600}
.bars span{font-size:.9rem;color:var(--soft);font-variant-numeric:tabular-nums}
.bar{height:14px;border-radius:3px;min-width:2px}
.bar.flat{background:var(--flat)}
.bar.tree{background:var(--tree)}
figure{margin:16px 0}
figcaption{margin-bottom:6px}
figcaption b{color:var(--ink)}
.key{display:inline-block;margin-left:12px}
.swatch{display:inline-block;width:10px;height:10px;border-radius:50%;background:var(--line);margin-right:6px}
.line0{--line:var(--line0)}.line1{--line:var(--line1)}.line2{--line:var(--line2)}.line3{--line:var(--line3)}
svg{display:block;width:100%;height:auto}
svg.tree{min-width:720px}
svg.chart{min-width:480px;max-width:760px;margin:0 auto}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink)}
svg .tick{fill:var(--soft)}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}
.grid{stroke:var(--rule)}
.curve{fill:none;stroke:var(--line);stroke-width:2;stroke-linejoin:round}
.point{fill:var(--line)}
.link{stroke:var(--soft);stroke-width:1.2;fill:none}
.part{fill:var(--tree);stroke:var(--card);stroke-width:1}
.part:hover{fill:var(--line1)}
details{margin:8px 0}
summary{cursor:pointer;padding:12px 4px;min-height:44px;color:var(--soft)}
code,pre{font:.88em/1.5 ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace}
pre{margin:0;white-space:pre;tab-size:2}
code{overflow-wrap:anywhere;white-space:pre-wrap}
.parting{margin:0 0 4px;padding:0;display:grid;grid-template-columns:max-content 1fr;gap:2px 12px}
.parting dt{color:var(--soft)}
.parting dd{margin:0;min-width:0}
@media (max-width:600px){main{padding:16px 12px 48px}.key{display:block;margin-left:0}
.bars{grid-template-columns:max-content 1fr}.bars .number{grid-column:2;margin-top:-2px}
.cards dd{font-size:1.1rem}}
@media print{.scroll{overflow:visible;border:0}svg.tree,svg.chart{min-width:0}}
"""
