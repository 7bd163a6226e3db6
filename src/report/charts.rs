//! Inline SVG charts. Each is a function from plain numbers to one `<svg>` element.

use std::fmt::Write;

use super::html::escape;
use crate::stats::Interval;

/// Colours of series and slots, distinguishable without red-green vision (Okabe and Ito); slot 0, the base, is the grey one.
pub const COLOURS: [&str; 9] =
    ["#9aa5b1", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#b8a200", "#52606d"];

/// The colour of a series or slot.
pub fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

const GRID: &str = "#e4e7eb";
const INK: &str = "#52606d";

/// An SVG in the making; coordinates are in its view box.
struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

impl Canvas {
    fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(self.body, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>");
    }

    fn dot(&mut self, at: (f64, f64), radius: f64, style: &str, title: &str) {
        let _ = writeln!(
            self.body,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" {style}><title>{}</title></circle>",
            at.0,
            at.1,
            escape(title)
        );
    }

    fn bar(&mut self, at: (f64, f64), size: (f64, f64), style: &str, title: &str) {
        let _ = writeln!(
            self.body,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\" {style}><title>{}</title></rect>",
            at.0,
            at.1,
            size.0,
            size.1,
            escape(title)
        );
    }

    fn text(&mut self, at: (f64, f64), anchor: &str, class: &str, text: &str) {
        let _ = writeln!(
            self.body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{}</text>",
            at.0,
            at.1,
            escape(text)
        );
    }

    fn finish(self, label: &str) -> String {
        format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
            self.width,
            self.height,
            escape(label),
            self.body
        )
    }
}

/// A linear scale from values to coordinates.
#[derive(Clone, Copy)]
struct Scale {
    values: (f64, f64),
    place: (f64, f64),
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let share = (value - self.values.0) / (self.values.1 - self.values.0);
        self.place.0 + share.clamp(0.0, 1.0) * (self.place.1 - self.place.0)
    }

    /// Round values to mark, about five of them.
    fn ticks(&self) -> Vec<f64> {
        let range = self.values.1 - self.values.0;
        let rough = range / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= rough).unwrap_or(rough);
        let first = (self.values.0 / step - 1e-9).ceil() as i64;
        let last = (self.values.1 / step + 1e-9).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }
}

/// A row of an interval chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Its label.
    pub label: String,
    /// In [0, 1].
    pub value: f64,
    /// Its interval.
    pub interval: Interval,
    /// Whether it stands out.
    pub strong: bool,
}

/// Horizontal bars with whiskers, in percent.
pub fn intervals(bars: &[Bar], label: &str) -> String {
    let (left, row) = (190.0, 30.0);
    let mut canvas = Canvas::new(860.0, bars.len() as f64 * row + 34.0);
    let bottom = canvas.height - 24.0;
    let most = bars.iter().map(|bar| bar.interval.high.max(bar.value)).fold(0.1, f64::max);
    let x = Scale { values: (0.0, ((most * 10.0).ceil() / 10.0).min(1.0)), place: (left, 790.0) };
    for tick in x.ticks() {
        canvas.line((x.at(tick), 4.0), (x.at(tick), bottom), &format!("stroke=\"{GRID}\""));
        canvas.text((x.at(tick), bottom + 16.0), "middle", "soft", &format!("{:.0} %", tick * 100.0));
    }
    for (index, bar) in bars.iter().enumerate() {
        let middle = 6.0 + row * (index as f64 + 0.5);
        let fill = if bar.strong { colour(1) } else { "#bcccdc" };
        let title = format!(
            "{}: {:.1} % ({:.1} to {:.1})",
            bar.label,
            bar.value * 100.0,
            bar.interval.low * 100.0,
            bar.interval.high * 100.0
        );
        canvas.text((left - 10.0, middle + 4.0), "end", "", &bar.label);
        canvas.bar((left, middle - 9.0), (x.at(bar.value) - left, 18.0), &format!("fill=\"{fill}\""), &title);
        let (low, high) = (x.at(bar.interval.low), x.at(bar.interval.high));
        let style = format!("stroke=\"{INK}\" stroke-width=\"1.6\"");
        canvas.line((low, middle), (high, middle), &style);
        for end in [low, high] {
            canvas.line((end, middle - 4.0), (end, middle + 4.0), &style);
        }
        canvas.text((high + 8.0, middle + 4.0), "start", "", &format!("{:.1}", bar.value * 100.0));
    }
    canvas.finish(label)
}

/// A row of a threshold chart: its values over label runs and whether it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// Its label.
    pub label: String,
    /// Values where they are defined.
    pub values: Vec<f64>,
    /// Their mean.
    pub mean: Option<f64>,
    /// Said at the right end.
    pub note: String,
    /// Whether it stands out.
    pub strong: bool,
}

/// Dots with their mean on one axis, and a dashed line at a threshold.
pub fn thresholds(rows: &[Spread], threshold: f64, threshold_label: &str, label: &str) -> String {
    let (left, row) = (230.0, 26.0);
    let mut canvas = Canvas::new(860.0, rows.len() as f64 * row + 46.0);
    let bottom = canvas.height - 24.0;
    let all = rows.iter().flat_map(|row| row.values.iter().copied());
    let (low, high) = all.fold((0.0f64, threshold), |(low, high), x| (low.min(x), high.max(x)));
    let x =
        Scale { values: ((low * 10.0).floor() / 10.0, ((high * 10.0).ceil() / 10.0).max(0.1)), place: (left, 740.0) };
    for tick in x.ticks() {
        canvas.line((x.at(tick), 20.0), (x.at(tick), bottom), &format!("stroke=\"{GRID}\""));
        canvas.text((x.at(tick), bottom + 16.0), "middle", "soft", &format!("{tick:.2}"));
    }
    let dashed = "stroke=\"#d55e00\" stroke-width=\"1.4\" stroke-dasharray=\"5 4\"";
    canvas.line((x.at(threshold), 16.0), (x.at(threshold), bottom), dashed);
    canvas.text((x.at(threshold), 11.0), "middle", "soft", threshold_label);
    for (index, row_values) in rows.iter().enumerate() {
        let middle = 22.0 + row * (index as f64 + 0.5);
        let fill = if row_values.strong { colour(1) } else { colour(0) };
        canvas.text((left - 10.0, middle + 4.0), "end", "", &row_values.label);
        for value in &row_values.values {
            let title = format!("{}: {value:.3}", row_values.label);
            canvas.dot((x.at(*value), middle), 4.0, &format!("fill=\"{fill}\" fill-opacity=\".28\""), &title);
        }
        match row_values.mean {
            Some(mean) => {
                let title = format!("{}: mean {mean:.3}", row_values.label);
                canvas.dot((x.at(mean), middle), 5.5, &format!("fill=\"{fill}\""), &title);
            }
            None => canvas.text((x.at(0.0) + 8.0, middle + 4.0), "start", "soft", "undefined"),
        }
        canvas.text((850.0, middle + 4.0), "end", "soft", &row_values.note);
    }
    canvas.finish(label)
}

/// A curve: points of (x, y), drawn as a line, as dots, or both.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What it is, shown on hovering.
    pub label: String,
    /// Points in order of x.
    pub points: Vec<(f64, f64)>,
    /// Index of its colour.
    pub colour: usize,
    /// Whether the points are connected.
    pub line: bool,
    /// Radius of the dots.
    pub dots: f64,
}

/// Curves over iterations, y in [0, 1]. `emphasis` marks one point with a ring.
pub fn curves(curves: &[Curve], emphasis: Option<(f64, f64)>, size: (f64, f64), label: &str) -> String {
    let mut canvas = Canvas::new(size.0, size.1);
    let (left, right, top, bottom) = (34.0, size.0 - 10.0, 8.0, size.1 - 22.0);
    let xs = || curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.0));
    let (first, last) = xs().fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
    let x = Scale { values: (first.min(last), if last > first { last } else { first + 1.0 }), place: (left, right) };
    let y = Scale { values: (0.0, 1.0), place: (bottom, top) };
    for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
        canvas.line((left, y.at(tick)), (right, y.at(tick)), &format!("stroke=\"{GRID}\""));
        canvas.text((left - 6.0, y.at(tick) + 4.0), "end", "soft", &format!("{tick}"));
    }
    for tick in x.ticks().into_iter().filter(|tick| tick.fract() == 0.0) {
        canvas.text((x.at(tick), bottom + 16.0), "middle", "soft", &format!("{tick:.0}"));
    }
    for curve in curves {
        let stroke = colour(curve.colour);
        if curve.line {
            let points: Vec<String> =
                curve.points.iter().map(|(px, py)| format!("{:.1},{:.1}", x.at(*px), y.at(*py))).collect();
            let _ = writeln!(
                canvas.body,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>",
                points.join(" ")
            );
        }
        for (px, py) in &curve.points {
            let title = format!("{}, iteration {px:.0}: {py:.3}", curve.label);
            canvas.dot((x.at(*px), y.at(*py)), curve.dots, &format!("fill=\"{stroke}\""), &title);
        }
    }
    if let Some((px, py)) = emphasis {
        let ring = format!("fill=\"none\" stroke=\"{INK}\" stroke-width=\"1.5\"");
        canvas.dot((x.at(px), y.at(py)), 7.0, &ring, "kept");
    }
    canvas.finish(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_scale() {
        let ticks = |low, high| Scale { values: (low, high), place: (0.0, 1.0) }.ticks();
        let near = |a: Vec<f64>, b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-9);
        assert!(near(ticks(0.0, 1.0), &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]));
        assert!(near(ticks(-0.2, 0.5), &[-0.2, 0.0, 0.2, 0.4]));
        assert!(near(ticks(1.0, 20.0), &[5.0, 10.0, 15.0, 20.0]));
    }

    #[test]
    fn a_bar_ends_where_its_value_is_and_texts_are_escaped() {
        let bar = Bar { label: "<b>&".into(), value: 0.5, interval: Interval { low: 0.4, high: 1.0 }, strong: true };
        let svg = intervals(&[bar], "x");
        assert!(svg.contains("width=\"300.0\""), "half of 600: {svg}");
        assert!(svg.contains("&lt;b&gt;&amp;") && !svg.contains("<b>"), "{svg}");
    }

    #[test]
    fn a_single_point_is_drawn() {
        let curve = Curve { label: "a".into(), points: vec![(3.0, 0.5)], colour: 1, line: true, dots: 3.0 };
        let svg = curves(&[curve], Some((3.0, 0.5)), (280.0, 150.0), "x");
        assert!(!svg.contains("NaN") && svg.contains("a, iteration 3: 0.500"), "{svg}");
    }
}
