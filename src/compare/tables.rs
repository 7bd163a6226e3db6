//! The tables of an experiment, as Markdown: readable in a terminal, and ready for a document.

use std::fmt::Write;

use super::{Replicates, Run, grouped};
use crate::config::check::ADAPTER_ARM;
use crate::report::html::percent;
use crate::stats::{Estimate, wilson};

/// All tables of these runs.
pub fn markdown(runs: &[Run]) -> String {
    let mut out = String::new();
    let groups = grouped(runs);
    for group in &groups {
        // Writing to a string does not fail.
        let _ = writeln!(out, "## {}, {} of the rollouts\n", group.base.display(), share(group.share));
        out += &arms(group);
        out += &informative(group);
        out += &matrix(group);
    }
    out += &curve(&groups);
    let unfinished: Vec<String> =
        runs.iter().filter(|run| run.evaluation.is_none()).map(|run| run.dir.display().to_string()).collect();
    if !unfinished.is_empty() {
        let _ = writeln!(out, "Not done, and in no figure above: {}", unfinished.join(", "));
    }
    out
}

fn share(share: f64) -> String {
    format!("{} %", (share * 100.0).round())
}

fn points(x: f64) -> String {
    format!("{:+.1}", x * 100.0)
}

fn difference(estimate: Option<Estimate>) -> String {
    estimate.map_or_else(String::new, |e| {
        format!("{} ({} to {})", points(e.value), points(e.interval.low), points(e.interval.high))
    })
}

/// A table with a header; all columns but the first to the right.
fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule: Vec<String> =
        (0..header.len()).map(|column| if column == 0 { "---" } else { "---:" }.to_owned()).collect();
    let mut out = line(header) + &line(&rule);
    rows.iter().for_each(|row| out += &line(row));
    out + "\n"
}

fn titles(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Pass rates and differences.
fn arms(group: &Replicates) -> String {
    let interval = format!("{} % interval", group.bootstrap().confidence * 100.0);
    let header = titles(&["arm", "pass rate", &interval, "vs base", "trace minus it", "greedy", "rollouts"]);
    let rows: Vec<Vec<String>> = group
        .arms()
        .into_iter()
        .map(|arm| {
            let versus = |a: &str, b: &str| if a == b { String::new() } else { difference(group.difference(a, b)) };
            let rate = group.pass_rate(arm);
            vec![
                arm.to_owned(),
                rate.map_or_else(String::new, |e| percent(e.value)),
                rate.map_or_else(String::new, |e| {
                    format!("{} to {}", percent(e.interval.low), percent(e.interval.high))
                }),
                versus(arm, "base"),
                versus("trace", arm),
                group.mean_of(arm, |result| Some(result.greedy?.value)).map_or_else(String::new, percent),
                group
                    .mean_of(arm, |result| Some(result.rollouts as f64))
                    .map_or_else(String::new, |n| format!("{n:.0}")),
            ]
        })
        .collect();
    let Some((_, first)) = group.runs.first() else { return String::new() };
    let left_out: u64 = group.runs.iter().flat_map(|(_, run)| &run.arms).map(|arm| arm.left_out).sum();
    let seeds: Vec<String> = group.runs.iter().map(|(_, run)| run.seed.to_string()).collect();
    table(&header, &rows)
        + &format!(
            "{} test tasks x {} trials at temperature {}, training seeds {}; percent; intervals from a bootstrap over \
             seeds and tasks, paired where arms are compared; {left_out} episodes without a verdict.\n\n",
            first.tasks,
            first.trials,
            first.temperature,
            seeds.join(", ")
        )
}

/// Shares of informative groups.
fn informative(group: &Replicates) -> String {
    let confidence = group.bootstrap().confidence;
    let rows: Vec<Vec<String>> = group
        .informative()
        .into_iter()
        .map(|(learner, informative, groups)| {
            let interval = wilson(informative, groups, confidence).map_or_else(String::new, |interval| {
                format!("{} to {}", percent(interval.low), percent(interval.high))
            });
            vec![learner, percent(informative as f64 / groups.max(1) as f64), interval, groups.to_string()]
        })
        .collect();
    table(&titles(&["learner", "informative groups, %", "interval", "groups"]), &rows)
}

/// Whether each adapter mends its own checks, and what the others do to them.
fn matrix(group: &Replicates) -> String {
    let shown: Vec<&str> = group
        .arms()
        .into_iter()
        .filter(|arm| ["base", "trace"].contains(arm) || arm.starts_with(ADAPTER_ARM))
        .collect();
    let Some((_, first)) = group.runs.first() else { return String::new() };
    let capabilities: Vec<String> =
        first.arms.first().map_or_else(Vec::new, |arm| arm.capabilities.iter().map(|c| c.capability.clone()).collect());
    let header: Vec<String> =
        std::iter::once("capability shown where called for, %".to_owned()).chain(titles(&shown)).collect();
    let rows: Vec<Vec<String>> = capabilities
        .iter()
        .map(|capability| {
            let cells = shown.iter().map(|arm| match group.capability(arm, capability) {
                Some((present, applicable)) if applicable > 0 => {
                    format!("{} of {applicable}", percent(present as f64 / applicable as f64))
                }
                _ => String::new(),
            });
            std::iter::once(capability.clone()).chain(cells).collect()
        })
        .collect();
    table(&header, &rows)
}

/// Pass rates by share of the rollouts, where there are several.
fn curve(groups: &[Replicates]) -> String {
    let mut out = String::new();
    let mut bases: Vec<&std::path::Path> = groups.iter().map(|group| group.base).collect();
    bases.dedup();
    for base in bases {
        let mut points: Vec<&Replicates> = groups.iter().filter(|group| group.base == base).collect();
        points.reverse();
        let Some(arms) = points.iter().map(|group| group.arms()).min_by_key(Vec::len).filter(|_| points.len() > 1)
        else {
            continue;
        };
        let header: Vec<String> =
            std::iter::once("arm".to_owned()).chain(points.iter().map(|group| share(group.share))).collect();
        let rows: Vec<Vec<String>> = arms
            .into_iter()
            .map(|arm| {
                let cells = points.iter().map(|group| {
                    group.pass_rate(arm).map_or_else(String::new, |e| {
                        format!("{} ({} to {})", percent(e.value), percent(e.interval.low), percent(e.interval.high))
                    })
                });
                std::iter::once(arm.to_owned()).chain(cells).collect()
            })
            .collect();
        let _ = writeln!(out, "## {}, pass rate by share of the rollouts\n", base.display());
        out += &table(&header, &rows);
    }
    out
}
