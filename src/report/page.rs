//! The frame of the page and its style.

use super::html::escape;

/// The browser itself refuses scripts and anything from elsewhere, whatever the content is.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

const STYLE: &str = "
:root { --ink: #1f2933; --soft: #616e7c; --line: #e4e7eb; --accent: #0b69a3; --paper: #fff; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f7fa; color: var(--ink); font: 15px/1.55 system-ui, -apple-system, 'Segoe UI', sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 0 0 .3rem; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 1.2rem 1.4rem 1.3rem; margin-top: 1.2rem; }
p { margin: .2rem 0 .8rem; color: var(--soft); max-width: 48rem; }
p.lead { color: var(--ink); font-size: 1.05rem; }
p.warn { color: #8d2b0b; background: #fff3ee; border-left: 3px solid #de911d; padding: .35rem .7rem; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif; }
svg text { fill: var(--ink); }
svg text.soft { fill: var(--soft); font-size: 11px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin-top: .8rem; }
th, td { text-align: right; padding: .32rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; color: var(--soft); font-size: .82rem; }
.good { color: #0b7a4b; } .bad { color: #a61b1b; } .soft { color: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: .4rem 0 .8rem; font-size: .86rem; }
.swatch { display: inline-block; width: .85em; height: .85em; border-radius: 3px; margin-right: .35em; vertical-align: -.08em; }
.turn { display: grid; grid-template-columns: 5.2rem 1fr; gap: .6rem; padding: .4rem 0; border-top: 1px solid var(--line); }
.turn b { font-weight: 600; font-size: .82rem; color: var(--soft); padding-top: .15rem; }
.turn div { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.7 ui-monospace, 'SF Mono', Menlo, Consolas, monospace; }
.turn span { border-radius: 3px; padding: .08em 0; }
footer { margin-top: 1.5rem; color: var(--soft); font-size: .85rem; }
@media print { body { background: none; } section { break-inside: avoid; } }
";

/// A whole page: `title` is escaped here, `body` is finished HTML.
pub(super) fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}
