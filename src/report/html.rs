//! Text that is safe inside of HTML and SVG.

/// Makes text stand for itself in element content and in quoted attributes. Control characters that HTML does not allow
/// become visible replacements.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A share as a percentage with one decimal.
pub fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

/// A number, or a dash where there is none.
pub fn or_dash(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.decimals$}"))
}

/// A table with escaped header cells; rows hold finished cells. The first column is text, the others are numbers.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let head: String = header.iter().map(|cell| format!("<th>{}</th>", escape(cell))).collect();
    let row = |cells: &Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let body: String = rows.iter().map(row).collect();
    format!("<div class=\"scroll\"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n")
}
